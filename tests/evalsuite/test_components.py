"""Variance components against statsmodels and simulations of known truth; the cards that a difference needs against tests."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame  # type: ignore[import-untyped]
from scipy.special import ndtri
from scipy.stats import chi2

from core.files import write_json, write_jsonl
from core.records import Turn
from core.rubrics import load_rubric
from core.statistics.bootstrap import LEVEL
from evalsuite.statistics.components import (
    Components,
    Looks,
    Observation,
    Spread,
    cards_needed,
    components,
    least_shown,
    shown_with,
    spreads,
)
from evalsuite.statistics.paired import differences
from evalsuite.trust.commands.power import PlannedStudy
from tests.bench.known_truth import DESIGNS, Design, component_studies, observed, true_variance
from tests.conftest import EscEval
from tests.evalsuite.records import make_dialogue, make_judgement


def variances(found: Components) -> dict[str, float]:
    return {part.name: part.variance for part in found.parts}


@pytest.mark.slow
def test_known_components_are_recovered() -> None:
    rounds = [variances(found) for found in component_studies(DESIGNS["40 cards, a tenth lost"], 30, seed=5)]
    recovered = 0
    for name in rounds[0]:
        if (true := true_variance(name, judges=2)) is not None:
            found = np.array([variance[name] for variance in rounds])
            error = found.std(ddof=1) / len(found) ** 0.5
            assert abs(found.mean() - true) < 3.5 * error, f"{name}: {found.mean():.1f} ± {error:.1f}, true {true}"
            recovered += 1
    assert recovered == 6


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
    assert list(variances(components(observed(Design(3, 6, 1, 1), rng)))) == [
        "supporter",
        "card",
        "supporter × card, draw, rest",
    ]
    names = list(variances(components(observed(Design(3, 6, 2, 1), rng))))
    assert names[3] == "supporter × card, draw" and names[-1] == "supporter × card × judge, rest"
    one = components(observed(Design(3, 6, 2, 1), rng))
    # Twice the crossings with the card, that with the judge by the number of judges; supporter × judge stays.
    parts = {part.name: part.counted for part in one.parts}
    shrinking, staying = one.difference(1)
    assert shrinking == pytest.approx(2 * (parts["supporter × card, draw"] + parts["supporter × card × judge, rest"] / 2))
    assert staying == pytest.approx(2 * parts["supporter × judge"] / 2)


def test_a_spread_is_the_pairs_own() -> None:
    """Three supporters on 15 cards, of which the third varies more: the variance over cards of the differences of means."""
    rng = np.random.default_rng(2)
    scores = 50 + rng.normal(0, 1, (3, 15, 2)) * np.array([2, 2, 9])[:, None, None] + rng.normal(0, 8, (15, 1))
    every = [
        Observation(f"s{s}", f"c{c}", "k", "j", str(t), scores[s, c, t]) for s, c, t in product(range(3), range(15), range(2))
    ]
    found = spreads(every)
    assert {(one.first, one.second) for one in found[:2]} == {("s0", "s2"), ("s1", "s2")}
    assert (found[2].first, found[2].second, found[2].cards) == ("s0", "s1", 15)
    gaps = (scores[0] - scores[1]).mean(axis=1)
    assert found[2].variance == pytest.approx(gaps.var(ddof=1))
    # With other trials as the components say of all: half of the draw goes with two.
    whole = components(every)
    crossed, draw = (
        next(part.counted for part in whole.parts if part.name.startswith(name)) for name in ("supporter × c", "draw")
    )
    one, two = (PlannedStudy("en", whole, found, 3, 3, 0.8).variance(found[2], trials) for trials in (1, 2))
    assert two == found[2].variance and one / two == pytest.approx((crossed + draw) / (crossed + draw / 2))
    # Degrees of freedom: twice the variance's square by its jackknife error variance and 2 / cards more, 14 at most.
    without = np.array([np.delete(gaps, card).var(ddof=1) for card in range(15)])
    error = 14 / 15 * ((without - without.mean()) ** 2).sum() / gaps.var(ddof=1) ** 2
    assert found[2].degrees == pytest.approx(min(2 / (error + 2 / 15), 14))
    assert found[2].bounds() is None, "15 cards"
    known, floor = Spread("a", "b", 40, 9.0, 30.0), Spread("a", "b", 40, 9.0, 30.0, floor=True)
    assert known.bounds() == pytest.approx(30 / chi2.ppf([0.975, 0.025], 30)) and floor.bounds() is None


def test_pairs_of_models_are_asked_about_and_floors_of_a_single_model() -> None:
    rng = np.random.default_rng(3)
    every = [Observation(s, f"c{c}", "k", "j", "0", rng.normal()) for s, c in product("abfg", range(12))]
    assert [(one.first, one.second) for one in spreads(every, {"f", "g"})] == [("a", "b")]
    assert {(one.first, one.second) for one in spreads(every, {"b", "f", "g"})} == {("a", "b"), ("a", "f"), ("a", "g")}
    assert spreads(every, set("abfg")) == []
    assert spreads([one for one in every if one.supporter == "a" or one.card == "c0"]) == [], "one card in common"


def test_power_is_that_of_a_t_test_where_the_interval_rules_nothing() -> None:
    from statsmodels.stats.power import TTestPower

    for difference, variance in ((3.0, 400.0), (2.0, 150.0)):
        cards = cards_needed(difference, variance, 0.05, 0.8)
        assert cards is not None
        known = TTestPower().solve_power(difference / variance**0.5, None, 0.05, 0.8)
        assert cards == pytest.approx(known, rel=0.06)
        assert shown_with(difference, variance, cards - 1, 0.05) < 0.8 <= shown_with(difference, variance, cards, 0.05)
        least = least_shown(variance, cards, 0.05, 0.8)
        assert least is not None and difference - 0.05 < least <= difference
    assert cards_needed(3, 100, 0.05, 0.8, staying=9.0) is None, "what cards do not shrink hides it"
    assert shown_with(90, 1e-6, 9, 0.05) == pytest.approx(1) and cards_needed(3, 0, 0.05, 0.8) is None


@pytest.mark.slow
def test_power_is_that_of_the_boards_test() -> None:
    """On few cards the interval rules, which allows for cards that nobody has seen: by t alone 6 points hold in all of 20 cards
    with a spread of 5. Half of the pairs differ the other way round."""
    rng = np.random.default_rng(4)
    for cards, spread, difference in ((12, 15, 15), (20, 5, 6), (40, 15, 8), (80, 10, 3)):
        scores = np.zeros((cards, 300, 2, 1))
        scores[:, :, 0, 0] = rng.normal(difference, spread, (cards, 300)) * np.where(np.arange(300) % 2, 1, -1)
        pairs = [(2 * study, 2 * study + 1) for study in range(300)]
        arrays = scores.reshape(cards, -1, 1), np.ones((cards, 600, 1))
        shown = [bool(one.holds) for one in differences(*arrays, pairs, average_only=True, families=range(300))]
        assert shown_with(difference, spread**2, cards, 0.05) == pytest.approx(np.mean(shown), abs=0.1)


def test_a_run_says_what_it_needs_and_the_paper_what_it_could_show(esc_eval: EscEval, tmp_path: Path) -> None:
    rng, rubric, dialogues, judgements = np.random.default_rng(0), load_rubric("esc_eval"), [], []
    for s, c, t in product(("a", "b"), range(12), range(3)):
        turns = (Turn(role="seeker", text="It hurts."), Turn(role="supporter", text=f"{s} {max(t, 1)}"))  # two of three alike
        dialogue = make_dialogue(f"{s}{c}{t}", s, card_id=f"c{c}", trial=t, simulator="k")
        dialogues.append(dialogue.model_copy(update={"turns": turns}))
        for name in rubric.dimensions:
            judgements.append(make_judgement(f"{s}{c}{t}", name, int(rng.integers(5)), rubric="esc_eval"))
    Path("run").mkdir()
    write_jsonl(Path("run/dialogues.jsonl"), dialogues)
    write_jsonl(Path("run/judgements.jsonl"), judgements)
    write_json(Path("run/config.json"), {"score": {"judge": {"name": "j"}, "rubric": rubric.model_dump(mode="json")}})
    assert esc_eval("power", "run", "--difference", 5, "--against", "paper", "--out", "out")[0] == 0
    page = json.loads(Path("out/power.json").read_text())
    tables = {table["key"]: table for table in page["tables"]}
    assert set(tables) == {"components-en", "needed-en", "table2-power", "table2-gaps"}
    (row,) = tables["needed-en"]["rows"]
    assert tables["needed-en"]["columns"][3:7] == [f"cards, {n} trial{'s' * (n > 1)}" for n in (1, 2, 3, 5)]
    assert row[:2] == ["a", "b"] and row[3]["mean"] > row[6]["mean"] > 12 and row[3]["low"] is None
    assert page["languages"]["en"]["trials"] == 2, "of three trials two are the same dialogue"
    assert {(row[0], row[1], row[-1]) for row in tables["table2-power"]["rows"]} == {("EN", 331, 91), ("ZH", 324, 66)}
    code, error = esc_eval("power")
    assert code == 2 and "give scored run folders, or --against paper" in error


@pytest.mark.parametrize(
    ("available", "cards", "limits"),
    [
        ([18, 18], (12, 18, 28, 36), [6, 9, 14, 18]),
        ([18], (12, 18), [12, 18]),
        ([4, 50], (12, 16, 22, 31, 45, 54), [8, 12, 18, 27, 41, 50]),
        ([5, 5], (10,), [5]),
        ([1], (1,), [1]),
    ],
)
def test_looks_begin_with_a_dozen_cards_and_end_with_all(
    available: list[int], cards: tuple[int, ...], limits: list[int]
) -> None:
    assert Looks.plan(available) == (Looks(cards), limits)


def test_a_run_that_is_looked_at_once_has_the_usual_level() -> None:
    assert Looks((10,)).levels == pytest.approx([LEVEL], abs=1e-5)


@pytest.mark.parametrize("cards", [(12, 18, 28, 36), (12, 18, 28, 42, 64, 96, 144)])
def test_what_is_spent_by_each_look_is_proportional_to_its_cards(cards: tuple[int, ...]) -> None:
    """Random walks of so many normal cards each: how many have been beyond their bound by each look."""
    looks, walks = Looks(cards), 100_000
    rng = np.random.default_rng(1)
    sizes = np.diff([0, *cards])
    z = np.cumsum(rng.normal(size=(walks, len(cards))) * np.sqrt(sizes), axis=1) / np.sqrt(cards)
    beyond = np.abs(z) > -ndtri((1 - np.array(looks.levels)) / 2)
    spent = np.logical_or.accumulate(beyond, axis=1).mean(axis=0)
    assert spent == pytest.approx(0.05 * np.array(cards) / cards[-1], abs=4 * np.sqrt(0.05 / walks))


def test_cards_between_two_looks_have_the_level_of_the_next() -> None:
    looks = Looks((12, 18, 36))
    assert [looks.level_at(n) for n in (3, 12, 13, 36)] == [looks.levels[place] for place in (0, 0, 1, 2)]
    assert looks.level_at(40) == LEVEL
