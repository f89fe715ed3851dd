"""Dialogues by round: when seekers leave, and how scores change, by hand and against scipy."""

import warnings
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import linregress, ttest_1samp

from core.errors import UserError
from core.records import Dialogue, Judgement, Termination, Turn
from evalsuite.report.charts import survival_charts, trend_charts
from evalsuite.statistics.rounds import Span, curves_of, log_ranks, round_of, span_of, survival_tables, trend_tables, trends_of
from tests.evalsuite.oracles import agrees
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric

Ends = list[tuple[int, bool]]


def talk(name: str, supporter: str, roles: str, termination: Termination | None) -> Dialogue:
    turns = tuple(Turn(role="seeker" if role == "u" else "supporter", text=role) for role in roles)
    return make_dialogue(name, supporter, turns=turns, termination=termination)


def held(supporter: str, ends: Ends) -> list[Dialogue]:
    """Dialogues that the supporter opens: in each the seeker answered so many rounds, and left in the last of them or not."""
    return [
        talk(f"{supporter}{place}", supporter, "ru" * rounds, "seeker_ended" if left else "max_turns")
        for place, (rounds, left) in enumerate(ends)
    ]


@pytest.mark.parametrize(
    ("roles", "termination", "expected"),
    [
        ("rururu", "max_turns", Span(3, False)),
        ("ruru", "seeker_ended", Span(2, True)),
        ("rur", "seeker_ended", Span(2, True)),  # the end itself need not be a turn
        ("rur", "infrastructure", Span(1, False)),  # whether the second round would have been the last is not known
        ("ru", "refusal", Span(1, False)),
        ("ururu", "seeker_ended", Span(2, True)),  # the seeker opens: two replies were heard
        ("ururur", "max_turns", Span(2, False)),  # nobody saw what the third reply did
        ("r", "infrastructure", None),
        ("u", "seeker_ended", None),
        ("ruru", None, None),  # an imported dialogue does not say
    ],
)
def test_how_long_a_dialogue_was_watched(roles: str, termination: Termination | None, expected: Span | None) -> None:
    assert span_of(talk("d", "m", roles, termination)) == expected


def test_a_curve_by_hand() -> None:
    ends: Ends = [(1, True), (2, True), (2, False), (3, True), (5, False), (5, True)]
    dialogues = [*held("m", ends), talk("x", "m", "r", "infrastructure")]
    (curve,) = curves_of(dialogues)
    assert [(step.share.n, step.left) for step in curve.steps] == [(6, 1), (5, 1), (3, 1), (2, 0), (2, 1)]
    assert [step.share.mean for step in curve.steps] == pytest.approx([500 / 6, 400 / 6, 400 / 9, 400 / 9, 200 / 9])
    assert (curve.dialogues, curve.left_out, curve.median) == (6, 1, 3)
    survival = 4 / 6  # Greenwood: 1/(6·5) + 1/(5·4), on the scale of log(−log)
    width = 1.959964 * (1 / 30 + 1 / 20) ** 0.5 / -np.log(survival)
    band = 100 * survival ** np.exp(width), 100 * survival ** np.exp(-width)
    assert (curve.steps[1].share.low, curve.steps[1].share.high) == pytest.approx(band)


ends = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=12)


def censored(lengths: Ends) -> stats.CensoredData:
    return stats.CensoredData(uncensored=[r for r, left in lengths if left], right=[r for r, left in lengths if not left])


@given(ends)
def test_curves_against_scipy(lengths: Ends) -> None:
    (curve,) = curves_of(held("m", lengths))
    expected: Any = stats.ecdf(censored(lengths)).sf  # the stubs take it for a number
    rounds = range(1, len(curve.steps) + 1)
    assert [step.share.mean for step in curve.steps] == pytest.approx(list(100 * expected.evaluate(rounds)))
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        band = expected.confidence_interval(method="log-log")
    for at, (_, share) in zip(rounds, curve.steps, strict=True):
        if 0 < (share.mean or 0) < 100:
            assert (share.low, share.high) == pytest.approx([100 * end.evaluate([at])[0] for end in (band.low, band.high)])
        else:
            assert share.low is share.high is None


@given(ends, ends)
def test_log_rank_against_scipy(one: Ends, other: Ends) -> None:
    (test,) = log_ranks(held("a", one) + held("b", other))
    with np.errstate(all="ignore"):
        expected = stats.logrank(censored(one), censored(other))
    if test.undefined is None:
        assert (test.statistic, test.p) == pytest.approx((expected.statistic**2, expected.pvalue))
    else:
        assert test.p is None and not np.isfinite(expected.statistic)


def test_several_supporters() -> None:
    dialogues = held("a", [(1, True)] * 8) + held("b", [(5, False)] * 8) + held("c", [(2, True), (5, False)] * 4)
    everyone, *pairs = log_ranks(dialogues)
    assert everyone.supporters == ("a", "b", "c") and everyone.df == 2 and everyone.holm is None
    assert everyone.p is not None and everyone.p < 0.001
    p = [pair.p or 0 for pair in pairs]
    assert pairs[0].holm == pytest.approx(3 * p[0]) and p[0] == min(p)
    with_none = log_ranks(held("a", [(3, False)] * 2) + held("b", [(3, False)]))
    assert (with_none[0].p, with_none[0].undefined) == (None, "no seeker left")
    at_once = log_ranks(held("a", [(1, True)]) + held("b", [(1, True)] * 2))
    assert at_once[0].p is None and at_once[0].undefined is not None and at_once[0].undefined.startswith("no round in which")
    assert log_ranks(held("a", [(1, True)])) == [] == curves_of([talk("d", "m", "ru", None)])


def test_tables_and_charts_hold_the_same() -> None:
    dialogues = held("a", [(1, True), (3, False)]) + held("b", [(1, False)])
    found, tests = curves_of(dialogues), log_ranks(dialogues)
    shown, verdicts = survival_tables(found, tests)
    assert shown.columns == ("supporter", "dialogues", "median", "round 1", "round 2", "round 3")
    assert [row[:3] for row in shown.rows] == [("a", 2, 1), ("b", 1, None)] and shown.rows[1][4] is None
    assert verdicts.rows[0][:2] == ("en", "a / b") and len(verdicts.notes) == 1, "no test is undefined"
    (chart,) = survival_charts(found)
    band, line, *other = chart.figure["data"]
    assert chart.after == shown.key and line["line"]["shape"] == "hv" and band["fill"] == "toself" and len(other) == 1
    assert (line["x"], line["y"]) == ([0, 1, 2, 3], [100.0, 50.0, 50.0, 50.0])


RUBRIC = make_rubric("care", "clarity", low=1, high=5)
SCORES: dict[str, list[int | None]] = {"d0": [1, 2, 3], "d1": [5, 4], "d2": [3, None, 5], "d3": [2]}  # care in each round


def rounds_of(name: str, rounds: int, supporter: str = "m") -> Dialogue:
    turns = tuple(Turn(role=role, text="t") for _ in range(rounds) for role in ("supporter", "seeker"))
    return make_dialogue(name, supporter, turns=turns, card_id=f"card-{name}", termination="max_turns")


def turns_judged() -> tuple[list[Dialogue], list[Judgement]]:
    dialogues = [rounds_of(name, len(scores)) for name, scores in SCORES.items()] + [rounds_of("unjudged", 2)]
    judgements = [make_judgement(name, "care", 5) for name in SCORES]  # on the whole: no part of a trend
    for name, scores in SCORES.items():
        for place, score in enumerate(scores):
            judgements += [make_judgement(name, "care", score, turn=2 * place)]
            judgements += [make_judgement(name, "clarity", 3, turn=2 * place)]
    return dialogues, judgements


def test_slopes_are_those_within_dialogues() -> None:
    (found,) = trends_of(*turns_judged(), RUBRIC)
    expected = [float(np.polyfit(x, y, 1)[0]) for x, y in (([1, 2, 3], [0, 25, 50]), ([1, 2], [100, 75]))]
    expected.append(25.0)  # 3 and 5, two rounds apart; d3 has one round and no slope
    average = [estimate.mean for estimate in found.means["average"]]
    assert average == pytest.approx([(25 * 1.75 + 50) / 2, 50, (75 + 50) / 2])
    slope = found.slopes["care"]
    assert (slope.estimate.mean, slope.estimate.n) == (pytest.approx(np.mean(expected)), 3)
    assert agrees(slope.p, float(ttest_1samp(expected, 0).pvalue), slope.estimate)
    assert found.slopes["clarity"].estimate.mean == 0 and found.slopes["clarity"].p == 1


@given(st.lists(st.lists(st.none() | st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_any_trend_against_scipy(talks: list[list[int | None]]) -> None:
    """Rounds without a readable verdict, equal scores, dialogues of one round, one dialogue."""
    dialogues = [rounds_of(f"d{n}", len(marks)) for n, marks in enumerate(talks)]
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


def test_tables_and_charts_of_trends() -> None:
    found = trends_of(*turns_judged(), RUBRIC)
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
    assert trends_of(turns_judged()[0], [make_judgement("d0", "care", 5)], RUBRIC) == []


def test_turns_that_are_no_round() -> None:
    dialogue = make_dialogue("d")  # the seeker opens
    assert round_of(dialogue, 1) == 1
    with pytest.raises(UserError, match="turn: 0 of dialogue d is before the supporter's first"):
        round_of(dialogue, 0)
    with pytest.raises(UserError, match="judgement by j: turn: 2, but dialogue d has turns 0 to 1"):
        trends_of([dialogue], [make_judgement("d", "care", 5, turn=2)], RUBRIC)
    with pytest.raises(UserError, match="no dialogue 'x' in this run"):
        trends_of([dialogue], [make_judgement("x", "care", 5, turn=1)], RUBRIC)
