"""Variance components against statsmodels and simulations of known truth; the cards that a difference needs against tests."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame  # type: ignore[import-untyped]
from scipy.stats import ttest_1samp

from core.files import write_json, write_jsonl
from core.rubrics import load_rubric
from evalsuite.statistics.components import Components, Observation, cards_needed, components, least_shown, shown_with
from tests.conftest import EscEval
from tests.evalsuite.records import make_dialogue, make_judgement

TRUE = {
    "supporter": 30.0,
    "card": 90.0,
    "judge": 12.0,
    "supporter × card": 40.0,
    "supporter × judge": 6.0,
    "card × judge": 15.0,
    "supporter × card × judge": 8.0,
    "draw": 50.0,
    "rest": 20.0,
}


def simulated(
    rng: np.random.Generator, supporters: int = 8, cards: int = 40, judges: int = 4, trials: int = 2, lost: float = 0
) -> list[Observation]:
    effects: dict[tuple[Any, ...], float] = {}

    def effect(name: str, *at: Any) -> float:
        if (name, *at) not in effects:
            effects[name, *at] = rng.normal(0, TRUE[name] ** 0.5)
        return effects[name, *at]

    found = []
    for s, c, t, j in product(range(supporters), range(cards), range(trials), range(judges)):
        score = 50 + effect("supporter", s) + effect("card", c) + effect("judge", j) + effect("supporter × card", s, c)
        score += effect("supporter × judge", s, j) + effect("card × judge", c, j) + effect("supporter × card × judge", s, c, j)
        score += effect("draw", s, c, t) + effect("rest", s, c, t, j)
        if rng.random() >= lost:
            found.append(Observation(f"s{s}", f"c{c}", "k", f"j{j}", str(t), score))
    return found


def variances(found: Components) -> dict[str, float]:
    return {part.name: part.variance for part in found.parts}


def assert_recovered(rounds: list[dict[str, float]]) -> None:
    for name, true in TRUE.items():
        found = np.array([one[name] for one in rounds])
        error = found.std(ddof=1) / len(found) ** 0.5
        assert abs(found.mean() - true) < 3.5 * error, f"{name}: {found.mean():.1f} ± {error:.1f}, true {true}"


def test_known_components_are_recovered() -> None:
    rng = np.random.default_rng(5)
    assert_recovered([variances(components(simulated(rng, 5, 8, 3, lost=0.2))) for _ in range(12)])


@pytest.mark.full
def test_known_components_are_recovered_at_full_size() -> None:
    rng = np.random.default_rng(6)
    assert_recovered([variances(components(simulated(rng, 6, 12, 3, lost=0.1))) for _ in range(500)])


def test_components_are_those_of_a_mixed_model() -> None:
    """REML and sums of squares agree on balanced data where no component is at its bound."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    rng = np.random.default_rng(1)
    main = rng.normal(0, 6, 5)[:, None, None] + rng.normal(0, 9, 8)[:, None]
    scores = main + rng.normal(0, 4, (5, 8, 1)) + rng.normal(0, 5, (5, 8, 3))
    found = [
        Observation(f"s{s}", f"c{c}", "k", "j", str(t), scores[s, c, t]) for s, c, t in product(range(5), range(8), range(3))
    ]
    frame = DataFrame(found).assign(every=1)
    names = {"supporter": "supporter", "card": "card", "supporter:card": "supporter × card"}
    formulas = {name: f"0 + {':'.join(f'C({part})' for part in name.split(':'))}" for name in names}
    fitted = MixedLM.from_formula("score ~ 1", frame, groups="every", vc_formula=formulas).fit(reml=True)
    expected = dict(zip((names[name] for name in fitted.model.exog_vc.names), fitted.vcomp, strict=True))
    assert variances(components(found)) == pytest.approx(expected | {"draw, rest": fitted.scale}, rel=2e-3)


def test_what_a_design_cannot_tell_apart_is_one() -> None:
    rng = np.random.default_rng(2)
    assert list(variances(components(simulated(rng, 3, 6, 1, 1)))) == ["supporter", "card", "supporter × card, draw, rest"]
    names = list(variances(components(simulated(rng, 3, 6, 2, 1))))
    assert names[3] == "supporter × card, draw" and names[-1] == "supporter × card × judge, rest"
    one = components(simulated(rng, 3, 6, 2, 1))
    # Twice the crossings with the card, that with the judge by the number of judges; supporter × judge stays.
    parts = {part.name: part.counted for part in one.parts}
    shrinking, staying = one.difference(1, 2, 1, other_judges=True)
    assert shrinking == pytest.approx(2 * (parts["supporter × card, draw"] + parts["supporter × card × judge, rest"] / 2))
    assert staying == pytest.approx(2 * parts["supporter × judge"] / 2)
    assert one.difference(1, 2, 1, other_judges=False) == (shrinking, 0.0)


def rejected(rng: np.random.Generator, cards: int, difference: float, variance: float, rounds: int) -> float:
    gaps = rng.normal(difference, variance**0.5, (rounds, cards))
    return float(np.mean(ttest_1samp(gaps, 0, axis=1).pvalue <= 0.05))


def test_so_many_cards_show_the_difference_so_often() -> None:
    rng = np.random.default_rng(4)
    for difference, variance in ((3.0, 400.0), (8.0, 150.0), (20.0, 100.0)):
        cards = cards_needed(difference, variance, 0, 0.05, 0.8)
        assert cards is not None and 0.77 < rejected(rng, cards, difference, variance, 4000) < 0.93
        assert shown_with(difference, variance, 0, cards, 0.05) >= 0.8
        assert cards <= 3 or shown_with(difference, variance, 0, cards - 1, 0.05) < 0.8
        assert least_shown(variance, 0, cards, 0.05, 0.8) <= difference
    assert cards_needed(3, 100, 9, 0.05, 0.8) is None, "what cards do not shrink hides it"


def test_a_run_says_what_it_needs_and_the_paper_what_it_could_show(esc_eval: EscEval, tmp_path: Path) -> None:
    rng, rubric, dialogues, judgements = np.random.default_rng(0), load_rubric("esc_eval"), [], []
    for s, c, t in product(("a", "b"), range(8), range(2)):
        dialogues.append(make_dialogue(f"{s}{c}{t}", s, card_id=f"c{c}", trial=t, simulator="k"))
        for name in rubric.dimensions:
            judgements.append(make_judgement(f"{s}{c}{t}", name, int(rng.integers(5)), rubric="esc_eval"))
    Path("run").mkdir()
    write_jsonl(Path("run/dialogues.jsonl"), dialogues)
    write_jsonl(Path("run/judgements.jsonl"), judgements)
    write_json(Path("run/config.json"), {"score": {"judge": {"name": "j"}, "rubric": rubric.model_dump(mode="json")}})
    assert esc_eval("power", "run", "--difference", 5, "--against", "paper", "--out", "out")[0] == 0
    tables = {table["key"]: table for table in json.loads(Path("out/power.json").read_text())["tables"]}
    assert set(tables) == {"components-en", "needed-en", "table2-power", "table2-gaps"}
    assert [row[0] for row in tables["needed-en"]["rows"]] == [1, 2, 3, 5]
    assert {(row[0], row[1], row[-1]) for row in tables["table2-power"]["rows"]} == {("EN", 331, 91), ("ZH", 324, 66)}
    code, error = esc_eval("power")
    assert code == 2 and "give scored run folders, or --against paper" in error
