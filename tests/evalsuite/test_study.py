"""Frameworks side by side: tau against scipy, reliability and attenuation with known truth, and the verb against scripted
models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from core.records import Dialogue, Judgement
from evalsuite.statistics.between_frameworks import Framework, call_table, dimension_table, kendall, rank_table, reliabilities
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric


def test_tau_is_scipys() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(4, size=(30, 6)).astype(float), rng.integers(4, size=(30, 6)).astype(float)
    for found, one, other in zip(kendall(x, y), x, y, strict=True):
        expected = kendalltau(one, other).statistic
        assert found == pytest.approx(expected) or (np.isnan(found) and np.isnan(expected))


def test_reliability_is_the_share_that_is_no_luck() -> None:
    """Cells of variance 9, trials of variance 4: a mean over two trials has the reliability 9 / (9 + 4 / 2)."""
    rng = np.random.default_rng(1)
    cells = [[np.array([level + rng.normal(0, 2)]) for _ in range(2)] for level in rng.normal(0, 3, 6000)]
    assert reliabilities(cells)[0] == pytest.approx(9 / 11, abs=0.02)
    assert np.isnan(reliabilities([trials[:1] for trials in cells])).all(), "one trial says nothing of luck"


def frameworks(seed: int, upside_down: bool = False) -> list[Framework]:
    """Two frameworks that measure one true quality of a dialogue's cell, each with noise of its own."""
    rng = np.random.default_rng(seed)
    dialogues: list[Dialogue] = []
    verdicts: list[list[Judgement]] = [[], []]
    rubrics = [make_rubric("warm", low=0, high=100), make_rubric("kind", low=0, high=100)]
    for rank, supporter in enumerate("abcd"):
        for card in range(30):
            true = 30 + 12 * rank + rng.normal(0, 10)
            for trial in range(2):
                id = f"{supporter}{card}{trial}"
                dialogues.append(make_dialogue(id, supporter, card_id=f"c{card}", trial=trial))
                for place, name in enumerate(("warm", "kind")):
                    level = 100 - true if upside_down and place else true
                    value = float(np.clip(level + rng.normal(0, 12), 0, 100))
                    verdicts[place].append(make_judgement(id, name, value))
    titles = zip(("One", "Other"), verdicts, rubrics, (1200, 240), strict=True)
    return [Framework(title, "cards", dialogues, found, rubric, calls) for title, found, rubric, calls in titles]


def test_frameworks_that_measure_the_same_agree() -> None:
    both = frameworks(2)
    _, ranks = rank_table(both, "en")
    tau = ranks.rows[0][2]
    assert tau.mean == 1 and tau.low > 0.3  # type: ignore[union-attr, operator]
    dimensions = dimension_table(both[0], both[1], "en")
    assert dimensions is not None
    _, _, seen, cleared, *trust = dimensions.rows[0]
    assert 0.6 < seen.mean < 0.9 < cleared <= 1, "noise apart, they are one"  # type: ignore[union-attr, operator]
    assert all(0.6 < part < 0.95 for part in trust)  # type: ignore[operator]
    calls = call_table(both, "en")
    assert calls is not None
    (told, needed), (told2, needed2) = ((row[4], row[6]) for row in calls.rows)
    assert min(told, told2) >= 4 and needed > 3 * needed2, "a fifth of the calls for the same word"  # type: ignore[operator, type-var]


def test_frameworks_that_measure_the_opposite_do_not() -> None:
    both = frameworks(3, upside_down=True)
    assert rank_table(both, "en")[1].rows[0][2].mean == -1  # type: ignore[union-attr]
    dimensions = dimension_table(both[0], both[1], "en")
    assert dimensions is not None and dimensions.rows[0][3] < -0.9  # type: ignore[operator]


def behave(body: dict[str, Any], count: int) -> Answer:
    constraint = body.get("structured_outputs") or {}
    return echo(body, count) if constraint else Answer(f"I hear you, {count}")


def test_three_frameworks_run_on_the_same_supporters(esc_eval: EscEval) -> None:
    with Endpoint(behave, models=("a", "all")) as endpoint:
        call = ["study", "--supporter", f"a@{endpoint.url}", "--model", f"all@{endpoint.url}", "--language", "en"]
        call += ["--limit", "2", "--trials", "2", "--exchanges", "1", "--out", "s"]
        code, error = esc_eval(*call)
        assert code == 0, error
        asked = len(endpoint.requests)
        assert esc_eval(*call)[0] == 0 and len(endpoint.requests) == asked, "nothing is asked twice"
    tables = {table["key"]: table for table in json.loads(Path("s/study.json").read_text())["tables"]}
    assert set(tables) == {"study-averages-en", "study-ranks-en", "study-calls-en", "study-dimensions-en"}
    assert tables["study-averages-en"]["columns"] == ["supporter", "ESC-Eval", "EmoHarbor", "FEEL"]
    assert [row[0] for row in tables["study-averages-en"]["rows"]] == ["a", "lecture", "parrot", "silent"]
    assert [row[3] for row in tables["study-ranks-en"]["rows"]] == ["others", "the same", "others"]
    assert sum(row[2] for row in tables["study-calls-en"]["rows"]) == asked, "every call is in the table"
    assert len(tables["study-dimensions-en"]["rows"]) == 7 * 6
