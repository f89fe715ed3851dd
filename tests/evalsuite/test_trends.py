"""Scores by round and costs of a dialogue: by hand, and slopes against numpy."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from scipy.stats import linregress, ttest_1samp

from core.errors import UserError
from core.files import write_json, write_jsonl
from core.records import Dialogue, Judgement, Turn
from evalsuite.report.charts import trend_charts
from evalsuite.runs.folder import USED
from evalsuite.statistics.rounds import round_of, trend_tables, trends_of
from evalsuite.statistics.summary import cost_table, dialogue_costs
from tests.conftest import EscEval
from tests.evalsuite.oracles import agrees
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric, make_run
from tests.files_of_rows import read_sheet

RUBRIC = make_rubric("care", "clarity", low=1, high=5)
SCORES: dict[str, list[int | None]] = {"d0": [1, 2, 3], "d1": [5, 4], "d2": [3, None, 5], "d3": [2]}  # care in each round


def talk(name: str, rounds: int, supporter: str = "m") -> Dialogue:
    turns = tuple(Turn(role=role, text="t") for _ in range(rounds) for role in ("supporter", "seeker"))
    return make_dialogue(name, supporter, turns=turns, card_id=f"card-{name}", termination="max_turns")


def given() -> tuple[list[Dialogue], list[Judgement]]:
    dialogues = [talk(name, len(scores)) for name, scores in SCORES.items()] + [talk("unjudged", 2)]
    judgements = [make_judgement(name, "care", 5) for name in SCORES]  # on the whole: no part of a trend
    for name, scores in SCORES.items():
        for place, score in enumerate(scores):
            judgements += [make_judgement(name, "care", score, turn=2 * place)]
            judgements += [make_judgement(name, "clarity", 3, turn=2 * place)]
    return dialogues, judgements


def test_slopes_are_those_within_dialogues() -> None:
    (found,) = trends_of(*given(), RUBRIC)
    expected = [float(np.polyfit(x, y, 1)[0]) for x, y in (([1, 2, 3], [0, 25, 50]), ([1, 2], [100, 75]))]
    expected.append(25.0)  # 3 and 5, two rounds apart; d3 has one round and no slope
    average = [estimate.mean for estimate in found.means["average"]]
    assert average == pytest.approx([(25 * 1.75 + 50) / 2, 50, (75 + 50) / 2])
    slope = found.slopes["care"]
    assert (slope.estimate.mean, slope.estimate.n) == (pytest.approx(np.mean(expected)), 3)
    assert agrees(slope.p, float(ttest_1samp(expected, 0).pvalue), slope.estimate)
    assert found.slopes["clarity"].estimate.mean == 0 and found.slopes["clarity"].p == 1


@drawn(st.lists(st.lists(st.none() | st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_any_trend_against_scipy(talks: list[list[int | None]]) -> None:
    """Rounds without a readable verdict, equal scores, dialogues of one round, one dialogue."""
    dialogues = [talk(f"d{n}", len(marks)) for n, marks in enumerate(talks)]
    judgements = [
        make_judgement(f"d{n}", "care", mark, turn=2 * place)
        for n, marks in enumerate(talks)
        for place, mark in enumerate(marks)
    ]
    (found,) = trends_of(dialogues, judgements, make_rubric("care", low=1, high=5))
    slopes = []
    for marks in talks:
        points = [(place, 25 * (mark - 1)) for place, mark in enumerate(marks) if mark is not None]
        if len(points) > 1:
            slopes.append(linregress(*np.transpose(points)).slope)
    slope = found.slopes["care"].estimate
    assert slope.n == len(slopes) and slope.mean == (pytest.approx(np.mean(slopes), abs=1e-9) if slopes else None)
    assert (slope.low is None) == (slope.high is None) == (len(slopes) < 2)
    for place, (estimate, reached) in enumerate(zip(found.means["care"], found.reached, strict=True)):
        scores = [25 * (mark - 1) for marks in talks for mark in marks[place : place + 1] if mark]
        assert reached == sum(len(marks) > place for marks in talks) and estimate.n == len(scores)
        assert estimate.mean == (pytest.approx(np.mean(scores)) if scores else None)


def test_tables_and_charts() -> None:
    found = trends_of(*given(), RUBRIC)
    means, slopes = trend_tables(found, RUBRIC)
    assert means.columns == ("supporter", "dimension", "round 1", "round 2", "round 3")
    assert [row[1] for row in means.rows] == ["Care", "Clarity", "average"] == [row[1] for row in slopes.rows]
    (chart,) = trend_charts(found, RUBRIC)
    titles = [title["text"] for title in chart.figure["layout"]["annotations"]]
    assert chart.after == slopes.key and titles == ["<b>Care</b>", "<b>Clarity</b>", "<b>Average</b>"]
    first = [trace for trace in chart.figure["data"] if trace["xaxis"] == "x"]
    bars, line = first[0], first[-1]
    assert list(zip(bars["x"], bars["text"], strict=True)) == [(1, "5 dialogues"), (2, "4 dialogues"), (3, "2 dialogues")]
    assert list(bars["y"]) == [100, 80, 40] and line["x"] == [1, 2, 3]
    orjson.dumps(chart.figure)
    assert trends_of(given()[0], [make_judgement("d0", "care", 5)], RUBRIC) == []


def test_turns_that_are_no_round() -> None:
    dialogue = make_dialogue("d")  # the seeker opens
    assert round_of(dialogue, 1) == 1
    with pytest.raises(UserError, match="turn: 0 of dialogue d is before the supporter's first"):
        round_of(dialogue, 0)
    with pytest.raises(UserError, match="judgement by j: turn: 2, but dialogue d has turns 0 to 1"):
        trends_of([dialogue], [make_judgement("d", "care", 5, turn=2)], RUBRIC)
    with pytest.raises(UserError, match="no dialogue 'x' in this run"):
        trends_of([dialogue], [make_judgement("x", "care", 5, turn=1)], RUBRIC)


def used(calls: int, prompt: int, completion: int) -> dict[str, int]:
    return {"calls": calls, "prompt_tokens": prompt, "completion_tokens": completion}


def test_costs_by_hand(esc_eval: EscEval, tmp_path: Path) -> None:
    """Two dialogues with a, one with b; the judge was asked again later (stage score), which replaces its first asking."""
    dialogues = [
        make_dialogue(
            f"d{place}", supporter, usage=used(4, 1000 * (place + 1), 100), termination="max_turns", card_id=f"c{place}"
        )
        for place, supporter in enumerate("aab")
    ]
    usage = {
        "simulate": {
            "seeker": {"s": used(6, 3000, 150)},
            "supporter": {"a": used(4, 2000, 80), "b": used(2, 1000, 70)},
            "judge": {"j": used(30, 9, 9)},
        },
        "score": {"judge": {"j": used(3, 600, 30)}},
        "gold": {"judge": {"j": used(99, 99, 99)}},
    }
    calls = {
        "s/seeker": {"asked": 2, "seconds": 3.0},
        "a/supporter": {"asked": 4, "seconds": 8.0},
        "b/supporter": {"asked": 0, "seconds": 0},
    }
    timing = {"simulate": {"seconds": 9.0, "calls": calls}}
    timing["score"] = {"seconds": 2.0, "calls": {"j/judge": {"asked": 3, "seconds": 1.5}}}
    in_stages = USED.validate_python(usage)
    found = {cost.name: cost[1:] for cost in dialogue_costs(dialogues, in_stages, timing)}
    assert found == {
        "seeker s": (3, 3.0, 1000, 50, 2),  # 1.5 s a call, 6 calls of 3 dialogues
        "supporter a": (2, 4.0, 1000, 40, 2),
        "supporter b": (1, None, 1000, 70, 2),
        "judge j": (3, 0.5, 200, 10, 1),
        "dialogue with a": (2, 7.5, 1700, 110, 5),
        "dialogue with b": (1, None, 3200, 110, 5),
    }
    assert cost_table(dialogue_costs(dialogues, in_stages, timing)).rows[4] == ("dialogue with a", 2, 7.5, 1.7, 0.11, 5)
    assert dialogue_costs([make_dialogue("d")], {}, {}) == []

    run = make_run(tmp_path / "run", {"a": [1, 2], "b": [3, 4]})
    write_jsonl(run / "dialogues.jsonl", dialogues)
    write_jsonl(run / "judgements.jsonl", [make_judgement("d0", "fluency", 3, turn=1)])
    write_json(run / "usage.json", usage)
    write_json(run / "timing.json", timing)
    assert esc_eval("report", "run", "--against", "emoharbor") == (0, "")
    (costs,) = (run / "tables").glob("dialogue-costs.csv")
    rows = {row["what"]: row for row in read_sheet(costs)[1]}
    assert float(rows["dialogue with a"]["seconds"]) == 7.5 and rows["paper: EmoHarbor"]["seconds"].startswith("188.8")
    assert "Not in the paper" not in (run / "report.md").read_text().split("Cost of a dialogue")[1].split("###")[0]
