"""Statistics of a run against hand-worked examples and scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records import Judgement, Termination, Turn, Usage
from core.tables import Estimate
from evalsuite.report.charts import distribution_charts
from evalsuite.report.headlines import unread
from evalsuite.statistics.leaderboard import Tally, leaderboard
from evalsuite.statistics.paired import over_cards
from evalsuite.statistics.summary import TROUBLE, cut_off, distributions, failed_calls, terminations
from tests.evalsuite.oracles import smoothed
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric

RUBRIC = make_rubric("fluency", "empathy")


def estimates(values: np.ndarray) -> list[Estimate]:
    """Each dialogue on a card of its own."""
    return over_cards(values, [f"{place:06}" for place in range(len(values))])


def test_interval_of_the_average_keeps_the_correlation_between_dimensions() -> None:
    first = np.random.default_rng(0).normal(50, 20, 200)
    same = estimates(np.stack([first, first], axis=1))
    assert (same[2].low, same[2].high) == pytest.approx((same[0].low, same[0].high))
    opposed = estimates(np.stack([first, 100 - first], axis=1))[2]
    assert (opposed.low, opposed.high) == pytest.approx((50, 50), abs=0.5)  # each dialogue averages to 50


def test_one_dialogue_has_no_interval_and_equal_scores_have_one() -> None:
    assert estimates(np.array([[25.0]]))[0] == Estimate(25.0, None, None, 1)
    three, twelve = (estimates(np.full((size, 1), 25.0))[0] for size in (3, 12))
    for found, size in ((three, 3), (twelve, 12)):
        assert (found.mean, found.n) == (25, size)
        assert (found.low, found.high) == pytest.approx(smoothed([25.0] * size, range(0, 101, 25)), abs=3)
    assert twelve.low > three.low and twelve.high < three.high  # type: ignore[operator]
    best = estimates(np.full((12, 1), 100.0))[0]
    assert best.high == pytest.approx(100) and 75 < (best.low or 0) < 95


def test_terminations_say_why_and_who() -> None:
    spoken = (Turn(role="seeker", text="a"),)
    answered = (*spoken, Turn(role="supporter", text="b"))
    ends: list[tuple[str, Termination, tuple[Turn, ...]]] = [
        ("m", "max_turns", answered),
        ("m", "max_turns", answered),
        ("m", "seeker_ended", answered),
        ("m", "refusal", spoken),  # the supporter was to speak
        ("n", "refusal", answered),  # the seeker was
    ]
    dialogues = [make_dialogue(str(n), s, termination=e, turns=t) for n, (s, e, t) in enumerate(ends)]
    table = terminations(dialogues)
    reasons = ("max_turns", "seeker_ended", "refusal (seeker)", "refusal (supporter)")
    assert table.columns == ("supporter", "language", "dialogues", *reasons, "ended by seeker", "ended by supporter")
    assert table.rows == (("m", "en", 4, 2, 1, 0, 1, 1, 1), ("n", "en", 1, 0, 0, 1, 0, 1, 0))
    assert table.notes == ()


def test_replies_that_were_cut_off_are_counted_by_role() -> None:
    cut = [Usage(calls=4, cut_off={"supporter": 2}), Usage(calls=4, cut_off={"seeker": 1, "supporter": 1}), Usage(calls=4)]
    table = terminations([make_dialogue(str(n), termination="max_turns", usage=usage) for n, usage in enumerate(cut)])
    assert table.columns[3:] == (
        "max_turns",
        "ended by seeker",
        "ended by supporter",
        "cut off (seeker)",
        "cut off (supporter)",
    )
    assert table.rows == (("m", "en", 3, 3, 0, 0, 1, 3),)
    stages = [{"supporter": {"m": Usage(calls=7, cut_off={"supporter": 3})}, "judge": {"j": Usage(calls=2)}}]
    stages += [{"judge": {"j": Usage(calls=1_500, cut_off={"judge": 1})}}]
    assert cut_off(stages) == "Replies cut off at their token limit: 3 of 7 by the supporter m, 1 of 1,502 by the judge j."
    assert cut_off(stages, TROUBLE) == "Replies cut off at their token limit: 1 of 1,502 by the judge j."
    assert cut_off([{"judge": {"j": Usage(calls=2)}}]) == ""
    assert "cut_off" not in Usage(calls=1).model_dump()  # records of before stay as they were


def test_failed_calls_are_grouped_with_an_example() -> None:
    call = {"role": "judge", "model": "j", "dialogue": "d", "outcome": "rejected", "status": 400, "reason": "no"}
    lost = call | {"outcome": "infrastructure", "status": None, "reason": "gone"}
    table = failed_calls({"simulate": [call | {"dialogue": "e"}, lost, call], "gold": [call]})
    assert table is not None and table.rows == (
        ("simulate", "judge", "j", "rejected", 400, 2, 2, "no"),
        ("gold", "judge", "j", "rejected", 400, 1, 1, "no"),
        ("simulate", "judge", "j", "infrastructure", None, 1, 1, "gone"),
    )
    assert failed_calls({}) is None


def missing(dialogue: str, failure: str) -> Judgement:
    return make_judgement(dialogue, "fluency", None, condition={"mode": "native", "failure": failure})


def test_what_was_refused_or_lost_is_not_called_unreadable() -> None:
    broken = make_judgement("a", "fluency", 4, condition={"mode": "native", "probabilities": "broken"})
    unread = make_judgement("b", "fluency", None, condition={"mode": "native"})
    table = distributions(
        [broken, unread, missing("c", "refusal"), missing("d", "infrastructure"), missing("e", "odd")], RUBRIC
    )
    columns = ("unreadable", "refusal", "lost", "odd", "verdicts", "broken probabilities")
    assert table.columns == ("language", "dimension", "0", "1", "2", "3", "4", *columns)  # one scorer, whatever became of calls
    assert table.rows[0] == ("en", "Fluency", 0, 0, 0, 0, 1, 1, 1, 1, 1, 5, 1)
    three = distributions([broken, unread, missing("d", "infrastructure")], RUBRIC)
    (chart,) = distribution_charts(three, RUBRIC)
    assert [(trace["name"], trace["x"][0]) for trace in chart.figure["data"]][4:] == [
        ("4", pytest.approx(100 / 3)),
        ("unreadable", pytest.approx(100 / 3)),
        ("lost", pytest.approx(100 / 3)),
    ]


def test_the_summary_says_why_verdicts_are_missing() -> None:
    own = [make_judgement(name, "fluency", 1) for name in "abcd"]
    assert unread(own) == ""
    own += [missing("e", "refusal"), missing("f", "infrastructure"), missing("g", "infrastructure"), missing("h", "odd")]
    said = "1 of 8 verdicts (12.5 %) were refused by the judge, 2 were lost with a server, 1 failed (odd): they are in no mean."
    assert unread(own) == said
    own[0] = own[0].model_copy(update={"condition": {"probabilities": "broken"}})
    assert unread(own).endswith("no mean. 1 verdicts came with broken probabilities: the score in their text stands.")


def test_a_lost_verdict_does_not_lower_the_parse_rate() -> None:
    dialogues = [make_dialogue(name, supporter="m") for name in "ab"]
    read, lost = make_judgement("a", "fluency", 4), missing("b", "infrastructure")
    read = read.model_copy(update={"condition": lost.condition | {"failure": "x"}})
    for own, rate in (([read, lost], 100.0), ([lost], None), ([read, missing("b", "refusal")], 50.0)):
        (table,) = leaderboard(Tally(dialogues, own, RUBRIC).boards, RUBRIC)
        assert table.rows[0][-1] == rate


@given(st.lists(st.tuples(st.sampled_from(["fluency", "empathy"]), st.none() | st.integers(0, 16).map(lambda n: n / 4))))
def test_distributions_against_numpy(verdicts: list[tuple[str, float | None]]) -> None:
    """Between two scores the nearest counts, halves upwards: numpy's bins hold their lower edge."""
    table = distributions([make_judgement("a", name, value) for name, value in verdicts], RUBRIC)
    found = {row[1]: row[2:] for row in table.rows}
    assert len(found) == (2 if verdicts else 0)
    for name in RUBRIC.dimensions if verdicts else ():
        own = [value for given, value in verdicts if given == name]
        read = [value for value in own if value is not None]
        counts = np.histogram(read, bins=np.arange(-0.5, 5))[0].tolist()
        assert found[name.title()] == (*counts, len(own) - len(read), len(own))
