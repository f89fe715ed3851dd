"""EmoHarbor's tables as numbers: what does not follow in them, and where ours stand beside them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr

from core.records import HumanScore
from core.rubrics import load_rubric
from core.tables import Estimate, Table
from evalsuite.papers.reported.against import against, beside
from evalsuite.papers.reported.recomputation import check
from evalsuite.papers.reported.tables import Counterpart, Reported, load_reported
from evalsuite.statistics.correlation import alignment_tables, correlations
from tests.evalsuite.records import make_dialogue, make_judgement

DISAGREEMENTS = [
    # Closer to people with profile and states, says section 4.1.2; not in these two cells.
    ("1", "Kimi-K2 / states", "SF", 0.46, 0.54),
    ("1", "GPT-4 / states", "EP", 0.33, 0.35),
    # 0.745 · 20 · 99/19 = 77.6 by formula 13, 0.745 · 2000/19 = 78.4 by the standard F.
    ("2", "EmoHarbor", "F", 112, 78),
    # 30.29 / 10.
    ("5", "Open-Source / non-RLM / Llama-3-8B-Instruct", "Avg.", 3.04, 3.03),
]


@pytest.fixture(scope="module")
def paper() -> Reported:
    return load_reported("emoharbor")


def test_all_tables_are_there_and_what_disagrees(paper: Reported) -> None:
    sizes = {name: len(cells) for name, cells in paper.cells.items()}
    assert sizes == {"1": 12 * 10, "2": 4, "3": 20 * 11, "4": 3, "5": 17 * 11, "text": 16}
    found = check(paper)
    assert [(d.table, d.row, d.column, d.printed, d.recomputed) for d in found.disagreements] == DISAGREEMENTS
    (f,) = [each for each in found.disagreements if each.column == "F"]
    assert len(f.notes) == 3 and "formula 13" in f.notes[0] and "standard F" in f.notes[1]


def test_what_the_notes_say_of_table_2(paper: Reported) -> None:
    averages = [cell.value for cell in paper.cells["3"] if cell.column == "Avg."]
    variance = np.var(np.array(averages, dtype=float))
    assert (variance, variance / 0.745) == pytest.approx((0.457, 0.613), abs=5e-4)
    of_three = 0.745 * 100 * 3 / 2
    assert round(of_three) == 112
    assert not any(round(k / 3, 2) == 0.87 for k in range(4))


def test_scores_stand_beside_ours_on_our_scale(paper: Reported) -> None:
    labels = [dimension.label["en"] for dimension in load_rubric("emoharbor").dimensions.values()]
    for name in ("3", "5"):
        assert set(paper.tables[name].beside[0].columns) == {*labels, "average"}
    own = beside(Table("leaderboard-own-zh", "L", ("supporter", "average"), (("gpt-4o-2024-11-20", 3.4),)), paper)
    assert own.rows == (("gpt-4o-2024-11-20", 3.4, 3.5),)
    rows = (("gpt-4o-2024-11-20", Estimate(50.0, 49.0, 51.0, 9), 1.0), ("my-model", 50.0, 1.0))
    shown = beside(Table("leaderboard-zh", "L", ("supporter", "Problem resolution", "average"), rows), paper)
    assert shown.columns[2] == "paper: Problem resolution"
    assert shown.rows[0][2] == pytest.approx(25 * (2.98 - 1)) and shown.rows[0][4] == pytest.approx(25 * (3.5 - 1))
    assert shown.rows[1][2] is None and "as 0 to 100" in shown.notes[0]


def test_a_scale_must_rise() -> None:
    base = {"tables": ["t"], "rows": {"m": {}}, "columns": {"a": {}}}
    assert Counterpart.model_validate(base | {"scale": [1, 5]}).ours(4) == 75
    for wrong in ({"scale": [5, 1]}, {"scale": [0, 1], "as_rows": True}):
        with pytest.raises(ValueError, match="scale: "):
            Counterpart.model_validate(base | wrong)


def test_judges_and_strategies_as_in_table_1() -> None:
    rng = np.random.default_rng(3)
    people, judged = rng.integers(1, 6, (2, 12)), rng.integers(1, 6, (2, 12))
    dialogues = [make_dialogue(f"d{place}", card_id=f"c{place}") for place in range(12)]
    gold = [
        HumanScore(dialogue_id=f"d{n}", language="en", annotator="x", rubric="human", dimension=name, value=int(people[row, n]))
        for row, name in enumerate(("empathetic", "safety"))
        for n in range(12)
    ]
    judgements = [
        make_judgement(f"d{n}", name, int(judged[row, n]) if strategy == "states" else 3, judge="gpt-4", condition=condition)
        for strategy in ("dialogue", "states")
        for condition in [{"strategy": strategy, "mode": "paper"}]
        for row, name in enumerate(("empathetic", "safety"))
        for n in range(12)
    ]
    (table,) = alignment_tables(correlations(judgements, gold, dialogues)[0])
    assert table.columns[:4] == ("judge", "strategy", "empathetic", "safety")
    assert [row[:2] for row in table.rows] == [("gpt-4 · joint · mode=paper", name) for name in ("dialogue", "states")]
    blind, seeing = ([cell for cell in row[2:4] if isinstance(cell, Estimate)] for row in table.rows)
    assert [cell.mean for cell in blind] == [None, None], "a judge that always says 3 has no coefficient, not 0"
    expected = [100 * pearsonr(people[row], judged[row]).statistic for row in range(2)]
    assert [cell.mean for cell in seeing] == pytest.approx(expected) and seeing[0].n == 12
    (shown,) = against([table], "emoharbor")
    assert shown.rows[1][3] == pytest.approx(33) and shown.rows[0][5] == pytest.approx(38)
