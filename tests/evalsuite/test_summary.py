"""Statistics of a run against hand-worked examples and scipy."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

from data_prep.records import Dialogue, Judgement, Language, Termination, Turn, Usage
from data_prep.rubrics import Dimension, Rubric, Scale
from data_prep.tables import Estimate, Table
from evalsuite.summary import (
    AVERAGE,
    Value,
    costs,
    distributions,
    estimates,
    leaderboard,
    scores,
    terminations,
)
from serve.errors import UserError


def make_rubric(*names: str, low: int = 0, high: int = 4) -> Rubric:
    levels = {score: f"level {score}" for score in range(low, high + 1)}
    dimensions = {n: Dimension(label={"en": n.title()}, about={"en": n}, levels={"en": levels}) for n in names}
    scale = Scale(min=low, max=high)
    return Rubric(name="test", source="made up", languages=("en",), scale=scale, dimensions=dimensions)


def make_dialogue(name: str, supporter: str | None = "m", language: Language = "en", **more: Any) -> Dialogue:
    turns = more.pop("turns", None) or (Turn(role="seeker", text="a"), Turn(role="supporter", text="b"))
    return Dialogue(id=name, language=language, source="corpus", supporter=supporter, turns=turns, **more)


def make_judgement(dialogue: str, dimension: str, value: float | None, **more: Any) -> Judgement:
    base = {"language": "en", "judge": "j", "rubric": "test", "method": "joint", "raw": "raw"}
    return Judgement.model_validate(base | {"dialogue_id": dialogue, "dimension": dimension, "value": value} | more)


RUBRIC = make_rubric("fluency", "empathy")


def board(dialogues: list[Dialogue], judgements: list[Judgement], rubric: Rubric = RUBRIC, value: Value = "value") -> Table:
    (table,) = leaderboard(dialogues, judgements, rubric, value)
    return table


def cell(table: Table, row: int, column: str) -> Estimate:
    return cast(Estimate, table.rows[row][table.columns.index(column)])


def test_by_hand() -> None:
    dialogues = [make_dialogue(name) for name in "abcd"]
    judgements = [make_judgement(name, "fluency", score) for name, score in zip("abcd", (4, 3, 2, 3), strict=True)]
    judgements += [make_judgement(name, "empathy", score) for name, score in zip("abcd", (1, None, 0, 1), strict=True)]
    table = board(dialogues, judgements)
    assert table.columns == ("supporter", "Fluency", "Empathy", "average", "parse rate %")
    assert (table.key, table.rows[0][0]) == ("leaderboard-en", "m")
    fluency, empathy, average = (cell(table, 0, name) for name in ("Fluency", "Empathy", AVERAGE))
    assert (fluency.mean, fluency.n) == (75, 4)  # 12 / 4 × 25
    assert empathy.mean == pytest.approx(100 / 6) and empathy.n == 3  # 2 / 3 × 25: the unreadable one is no zero
    assert average.mean == pytest.approx((75 + 100 / 6) / 2) and average.n == 4
    assert table.rows[0][-1] == pytest.approx(100 * 7 / 8)


def test_average_as_in_the_papers_table_2() -> None:
    """GPT-4, English: the seven printed means average to the printed 63.78."""
    printed = (74.32, 71.68, 71.22, 73.72, 74.92, 36.40, 44.18)
    rubric = make_rubric(*"abcdefg")
    judgements = [make_judgement("x", name, mean / 25) for name, mean in zip("abcdefg", printed, strict=True)]
    assert cell(board([make_dialogue("x")], judgements, rubric), 0, AVERAGE).mean == pytest.approx(63.78, abs=0.005)


def test_other_scales_also_run_from_0_to_100() -> None:
    rubric = make_rubric("empathy", low=1, high=5)
    judgements = [make_judgement("a", "empathy", 1), make_judgement("b", "empathy", 4)]
    assert cell(board([make_dialogue("a"), make_dialogue("b")], judgements, rubric), 0, "Empathy").mean == 37.5


@pytest.mark.parametrize("size", [5, 40, 331])
def test_interval_agrees_with_scipy(size: int) -> None:
    values = np.random.default_rng(size).integers(0, 5, size).astype(np.float64) * 25
    own = estimates(values[:, None])[0]
    other = bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    width = other.high - other.low
    assert own.low == pytest.approx(other.low, abs=0.08 * width)
    assert own.high == pytest.approx(other.high, abs=0.08 * width)


def test_interval_of_the_average_keeps_the_correlation_between_dimensions() -> None:
    first = np.random.default_rng(0).normal(50, 20, 200)
    same = estimates(np.stack([first, first], axis=1))
    assert (same[2].low, same[2].high) == pytest.approx((same[0].low, same[0].high))
    opposed = estimates(np.stack([first, 100 - first], axis=1))[2]
    assert (opposed.low, opposed.high) == pytest.approx((50, 50))  # each dialogue averages to 50


def test_one_dialogue_has_no_interval_and_equal_scores_one_without_width() -> None:
    assert estimates(np.array([[25.0]]))[0] == Estimate(25.0, None, None, 1)
    assert estimates(np.array([[75.0], [75.0], [75.0]]))[0] == Estimate(75.0, 75.0, 75.0, 3)
    table = board([make_dialogue("a")], [make_judgement("a", name, 3) for name in RUBRIC.dimensions])
    assert any("No interval is given at n = 1" in note for note in table.notes)


def test_nothing_readable() -> None:
    judgements = [make_judgement("a", "fluency", 2), make_judgement("a", "empathy", None), make_judgement("b", "fluency", 4)]
    table = board([make_dialogue("a"), make_dialogue("b")], judgements)
    assert cell(table, 0, "Empathy") == Estimate(None, None, None, 0)
    assert cell(table, 0, AVERAGE).mean is None  # an average over fewer dimensions would not compare
    assert table.rows[0][-1] == pytest.approx(100 * 2 / 3)
    assert board([make_dialogue("a")], [make_judgement("a", "fluency", None)]).rows[0][-1] == 0


def test_few_readable_verdicts_still_give_an_interval() -> None:
    values = np.full((50, 2), np.nan)
    values[:, 0] = 50
    values[:2, 1] = (0, 100)
    assert estimates(values)[1] == Estimate(50, 0, 100, 2)


def test_intervals_do_not_depend_on_the_order_of_records() -> None:
    dialogues = [make_dialogue(f"d{number:02d}") for number in range(30)]
    values = np.random.default_rng(3).uniform(0, 4, 30).tolist()
    judgements = [make_judgement(d.id, "fluency", value) for d, value in zip(dialogues, values, strict=True)]
    rubric = make_rubric("fluency")
    here, there = (board(dialogues, own, rubric) for own in (judgements, judgements[::-1]))
    assert cell(here, 0, "Fluency").low == pytest.approx(cell(there, 0, "Fluency").low, rel=1e-12)


def test_repeats_and_turns_count_once_per_dialogue() -> None:
    rubric = make_rubric("fluency")
    judgements = [make_judgement("a", "fluency", 4, repeat=n) for n in range(9)] + [make_judgement("b", "fluency", 0)]
    estimate = cell(board([make_dialogue("a"), make_dialogue("b")], judgements, rubric), 0, "Fluency")
    assert (estimate.mean, estimate.n) == (50, 2)


def test_expected_scores() -> None:
    rubric = make_rubric("fluency")
    judgements = [
        make_judgement("a", "fluency", 3, expected=2.6),
        make_judgement("b", "fluency", 3, expected=3.0),
        make_judgement("c", "fluency", 3),  # a judge without token probabilities
        make_judgement("d", "fluency", None, expected=1.0),  # unreadable: left out here too
    ]
    table = board([make_dialogue(name) for name in "abcd"], judgements, rubric, "expected")
    estimate = cell(table, 0, "Fluency")
    assert estimate.mean == pytest.approx(70) and estimate.n == 2
    assert "expected" in table.title and table.rows[0][-1] == 75


def test_judges_methods_and_conditions_are_never_mixed() -> None:
    rubric = make_rubric("fluency")
    variants: list[dict[str, Any]] = [{}, {"judge": "k"}, {"method": "paper"}, {"condition": {"order": "ba"}}]
    judgements = [make_judgement("a", "fluency", score, **variant) for score, variant in enumerate(variants)]
    table = board([make_dialogue("a")], judgements, rubric)
    found = {row[1]: cell(table, number, "Fluency").mean for number, row in enumerate(table.rows)}
    assert found == {"j · joint": 0, "k · joint": 25, "j · paper": 50, "j · joint · order=ba": 75}
    given = distributions(judgements, rubric)
    assert given.columns[:3] == ("language", "judged by", "dimension") and [row[-1] for row in given.rows] == [1, 1, 1, 1]


def test_languages_have_their_own_tables() -> None:
    dialogues = [make_dialogue("a", language="zh"), make_dialogue("b")]
    judgements = [make_judgement("a", "fluency", 4, language="zh"), make_judgement("b", "fluency", 0)]
    tables = leaderboard(dialogues, judgements, make_rubric("fluency"))
    assert [(t.key, cell(t, 0, "Fluency").mean) for t in tables] == [("leaderboard-en", 0), ("leaderboard-zh", 100)]
    assert [t.key for t in leaderboard(dialogues, judgements[:1], make_rubric("fluency"))] == ["leaderboard-zh"]
    assert leaderboard([], [], RUBRIC) == []


def test_best_average_first_and_corpora_under_their_source() -> None:
    dialogues = [make_dialogue("a", "low"), make_dialogue("b", "high"), make_dialogue("c", None)]
    judgements = [make_judgement(name, "fluency", score) for name, score in (("a", 1), ("b", 3), ("c", 2))]
    table = board(dialogues, judgements, make_rubric("fluency"))
    assert [row[0] for row in table.rows] == ["high", "corpus", "low"]


def test_other_rubrics_are_passed_over() -> None:
    judgements = [make_judgement("a", "fluency", 1), make_judgement("a", "warmth", 99, rubric="other")]
    assert cell(board([make_dialogue("a")], judgements, make_rubric("fluency")), 0, "Fluency").mean == 25


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dimension": "warmth"}, "dialogue a by j: dimension: 'warmth' is not in rubric test"),
        ({"value": 5}, "value: 5 is off the scale 0 to 4"),
        ({"value": -1}, "value: -1 is off the scale"),
        ({"expected": 4.5}, "expected: 4.5 is off the scale"),
        ({"dialogue_id": "z"}, "dialogue_id: no dialogue 'z' in this run"),
    ],
)
def test_records_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    judgement = make_judgement("a", "fluency", 1).model_copy(update=changed)
    with pytest.raises(UserError, match=message):
        scores([make_dialogue("a")], [judgement], RUBRIC)


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=2, max_size=2), min_size=1, max_size=12))
def test_means_are_numpys_and_intervals_hold_them(verdicts: list[list[int | None]]) -> None:
    values = np.array([[np.nan if v is None else 25.0 * v for v in row] for row in verdicts])
    *own, average = estimates(values)
    for column, estimate in enumerate(own):
        present = values[:, column][~np.isnan(values[:, column])]
        assert estimate.n == len(present)
        assert estimate.mean == (pytest.approx(present.mean()) if len(present) else None)
        if estimate.low is not None and estimate.high is not None and estimate.mean is not None:
            assert present.min() - 1e-9 <= estimate.low <= estimate.mean + 1e-9 <= estimate.high + 2e-9 <= present.max() + 3e-9
    means = [estimate.mean for estimate in own]
    assert average.mean == (None if None in means else pytest.approx(np.mean(cast(list[float], means))))


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
    assert table.notes == ("Did not occur: empty_reply, context_overflow, infrastructure.",)


def test_terminations_of_a_corpus() -> None:
    table = terminations([make_dialogue("a", None)])
    assert table.rows == (("corpus", "en", 1, 1, 0, 0),) and table.columns[3] == "not recorded"


def test_costs_add_up() -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=4, reasoning_tokens=1, calls=2)
    dialogues = [make_dialogue("a", usage=usage), make_dialogue("b", usage=usage), make_dialogue("c", "imported")]
    table = costs(dialogues, {"j": Usage(prompt_tokens=100, completion_tokens=7, calls=1)}, {"dialogues": 3.5, "total": 5.0})
    assert table.rows == (
        ("dialogues with imported", None, None, None, None, None),
        ("dialogues with m", 4, 20, 8, 2, None),
        ("judge j", 1, 100, 7, 0, None),
        ("total", 5, 120, 15, 2, 5.0),
        ("stage: dialogues", None, None, None, None, 3.5),
    )


def test_distributions_count_labels() -> None:
    verdicts = [("fluency", 0), ("fluency", 4), ("fluency", 4), ("fluency", None), ("empathy", 2.5), ("empathy", 2.4)]
    table = distributions([make_judgement("a", name, value) for name, value in verdicts], RUBRIC)
    assert table.columns == ("language", "dimension", "0", "1", "2", "3", "4", "unreadable", "verdicts")
    assert table.rows == (("en", "Fluency", 1, 0, 0, 0, 2, 1, 4), ("en", "Empathy", 0, 0, 1, 1, 0, 0, 2))
