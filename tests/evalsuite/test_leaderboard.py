"""Leaderboards, their ranks and groups against hand-worked examples and plain definitions."""

from __future__ import annotations

from statistics import fmean
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.records import Dialogue, Judgement
from core.rubrics import Rubric
from core.tables import Estimate, Table
from evalsuite.statistics.leaderboard import Tally, boards_of, leaderboard, pairwise_differences
from evalsuite.statistics.summary import AVERAGE, Value, distributions
from tests.evalsuite.oracles import card_shares, corrected, sign_flip, smoothed
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric

RUBRIC = make_rubric("fluency", "empathy")


def board(dialogues: list[Dialogue], judgements: list[Judgement], rubric: Rubric = RUBRIC, value: Value = "value") -> Table:
    (table,) = leaderboard(boards_of(dialogues, judgements, rubric, value), rubric, value)
    return table


def cell(table: Table, row: int, column: str) -> Estimate:
    return cast(Estimate, table.rows[row][table.columns.index(column)])


def test_by_hand() -> None:
    dialogues = [make_dialogue(name) for name in "abcd"]
    judgements = [make_judgement(name, "fluency", score) for name, score in zip("abcd", (4, 3, 2, 3), strict=True)]
    judgements += [make_judgement(name, "empathy", score) for name, score in zip("abcd", (1, None, 0, 1), strict=True)]
    table = board(dialogues, judgements)
    assert table.columns == ("supporter", "average", "Fluency", "Empathy", "parse rate %")
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


def test_nothing_readable() -> None:
    judgements = [make_judgement("a", "fluency", 2), make_judgement("a", "empathy", None), make_judgement("b", "fluency", 4)]
    table = board([make_dialogue("a"), make_dialogue("b")], judgements)
    assert cell(table, 0, "Empathy") == Estimate(None, None, None, 0)
    assert cell(table, 0, AVERAGE).mean is None  # an average over fewer dimensions would not compare
    assert table.rows[0][-1] == pytest.approx(100 * 2 / 3)
    assert board([make_dialogue("a")], [make_judgement("a", "fluency", None)]).rows[0][-1] == 0


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


def test_languages_have_their_own_tables() -> None:
    dialogues = [make_dialogue("a", language="zh"), make_dialogue("b")]
    judgements = [make_judgement("a", "fluency", 4, language="zh"), make_judgement("b", "fluency", 0)]
    rubric = make_rubric("fluency")
    tables = leaderboard(boards_of(dialogues, judgements, rubric), rubric)
    assert [(t.key, cell(t, 0, "Fluency").mean) for t in tables] == [("leaderboard-en", 0), ("leaderboard-zh", 100)]
    assert [t.key for t in leaderboard(boards_of(dialogues, judgements[:1], rubric), rubric)] == ["leaderboard-zh"]
    assert [*leaderboard(boards_of([], [], RUBRIC), RUBRIC)] == []


def test_best_average_first_and_corpora_under_their_source() -> None:
    dialogues = [make_dialogue("a", "low"), make_dialogue("b", "high"), make_dialogue("c", None)]
    judgements = [make_judgement(name, "fluency", score) for name, score in (("a", 1), ("b", 3), ("c", 2))]
    table = board(dialogues, judgements, make_rubric("fluency"))
    assert [row[1] for row in table.rows] == ["high", "corpus", "low"]


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
        boards_of([make_dialogue("a")], [judgement], RUBRIC)


def test_judges_methods_and_conditions_are_never_mixed() -> None:
    rubric = make_rubric("fluency")
    variants: list[dict[str, Any]] = [{}, {"judge": "k"}, {"method": "paper"}, {"condition": {"order": "ba"}}]
    judgements = [make_judgement("a", "fluency", score, **variant) for score, variant in enumerate(variants)]
    table = board([make_dialogue("a")], judgements, rubric)
    found = {row[1]: cell(table, number, "Fluency").mean for number, row in enumerate(table.rows)}
    assert found == {"j · joint": 0, "k · joint": 25, "j · paper": 50, "j · joint · order=ba": 75}
    given = distributions(judgements, rubric)
    assert given.columns[:3] == ("language", "judged by", "dimension") and [row[-1] for row in given.rows] == [1, 1, 1, 1]


def field(figures: dict[str, list[list[float | None]]], **more: Any) -> tuple[list[Dialogue], list[Judgement]]:
    """Dialogues and verdicts of supporters on shared cards: supporter → card → score on each dimension of `RUBRIC`."""
    dialogues, judgements = [], []
    for supporter, cards in figures.items():
        for card, verdicts in enumerate(cards):
            dialogue = make_dialogue(f"{supporter}-{card}", supporter, card_id=f"c{card}")
            dialogues.append(dialogue)
            for name, value in zip(RUBRIC.dimensions, verdicts, strict=True):
                judgements.append(make_judgement(dialogue.id, name, value, **more))
    return dialogues, judgements


def test_ranks_have_ties_where_a_difference_does_not_hold() -> None:
    figures: dict[str, list[list[float | None]]] = {
        "a": [[2 + card % 2, 2] for card in range(12)],
        "b": [[3 - card % 2, 2] for card in range(12)],  # the same mean: +1 and −1 by turns
        "c": [[1, 2] for _ in range(12)],  # worse on every card
    }
    (one,) = boards_of(*field(figures), RUBRIC)
    assert [each.supporter for each in one.contestants] == ["a", "b", "c"] and one.ranks == [1, 1, 3]
    (table,) = leaderboard(boards_of(*field(figures), RUBRIC), RUBRIC)
    assert table.columns[:3] == ("rank", "supporter", "average")
    assert [row[:2] for row in table.rows] == [(1, "a"), (1, "b"), (3, "c")]
    (pairs,) = pairwise_differences(boards_of(*field(figures), RUBRIC))
    assert pairs.columns == ("supporter", "against", "difference", "p", "p (Holm)", "holds")
    assert [(*row[:2], row[-1]) for row in pairs.rows] == [("a", "b", "no"), ("a", "c", "yes"), ("b", "c", "yes")]
    # a − c is (1 or 2 on fluency, 0 on empathy) × 25 / 2; p by hand: 2 of 2^12 sign patterns reach the sum, Holm × 3.
    assert pairs.rows[1][2:5] == (Estimate(18.75, *_bounds(pairs.rows[1][2]), 12), f"{2 / 4096:.4f}", f"{6 / 4096:.4f}")
    assert pairs.rows[0][2:5] == (Estimate(0.0, *_bounds(pairs.rows[0][2]), 12), "1.0000", "1.0000")


def _bounds(estimate: Any) -> tuple[float, float]:
    return estimate.low, estimate.high


def test_few_cards_never_hold() -> None:
    """Four cards: 2 of 16 sign patterns are as extreme, p = 0.125, however large the difference."""
    (one,) = boards_of(*field({"a": [[4, 4]] * 4, "b": [[0, 0]] * 4}), RUBRIC)
    assert one.ranks == [1, 1]


def test_ranks_of_the_incomparable_are_undefined() -> None:
    dialogues, judgements = field({"a": [[4, 4]] * 12, "b": [[0, 0]] * 12, "unread": [[4, None]] * 12})
    alone = make_dialogue("x", "alone", card_id="another")
    judgements += [make_judgement("x", name, 4) for name in RUBRIC.dimensions]
    (one,) = boards_of([*dialogues, alone], judgements, RUBRIC)
    found = dict(zip([each.supporter for each in one.contestants], one.ranks, strict=True))
    assert found == {"a": 1, "alone": None, "b": 2, "unread": None}


def test_a_single_supporter_has_no_rank_and_no_pairs() -> None:
    records = field({"a": [[4, 4]] * 3})
    assert board(*records).columns[:3] == ("supporter", "average", "Fluency")
    assert [*pairwise_differences(boards_of(*records, RUBRIC))] == []


def test_a_group_is_a_mark_and_does_not_sort() -> None:
    names = ("x", "tuned", "weights", "api", "api2")
    records = field({name: [[place % 5, 2]] * 2 for place, name in enumerate(names)})
    groups = {"tuned": "domain", "weights": "open", "api": "closed", "api2": "closed"}
    (table,) = leaderboard(boards_of(*records, RUBRIC), RUBRIC, groups=groups)
    assert table.columns[:4] == ("rank", "supporter", "average", "group")
    listed = [(row[1], row[3]) for row in table.rows]
    assert listed == [("api2", "closed"), ("api", "closed"), ("weights", "open"), ("tuned", "domain"), ("x", "other")]
    assert next(leaderboard(boards_of(*records, RUBRIC), RUBRIC, groups={"nobody": "open"})).columns[:4] == (
        *("rank", "supporter", "average", "Fluency"),
    )


def test_trials_of_a_card_are_drawn_together() -> None:
    """Two cards with ten equal trials each are two observations, whatever the number of trials."""
    dialogues = [make_dialogue(f"{card}-{n}", card_id=f"c{card}", trial=n) for card in (0, 1) for n in range(10)]
    judgements = [make_judgement(d.id, "fluency", 4 * (d.card_id == "c1")) for d in dialogues]
    rubric = make_rubric("fluency")
    found = cell(board(dialogues, judgements, rubric), 0, "Fluency")
    assert isinstance(found, Estimate) and (found.mean, found.n) == (50, 20)
    once = cell(board(dialogues[::10], judgements[::10], rubric), 0, "Fluency")
    assert isinstance(once, Estimate) and (found.low, found.high) == pytest.approx((once.low, once.high))
    assert (once.low, once.high) == pytest.approx(smoothed([0, 100], range(0, 101, 25)), abs=3)
    one_card = board(dialogues[:10], judgements[:10], rubric)
    assert cell(one_card, 0, "Fluency") == Estimate(0, None, None, 10)
    assert any("all dialogues are on one card" in note for note in one_card.notes)


def test_items_of_a_corpus_pair_as_cards_do() -> None:
    dialogues = [make_dialogue(f"{s}{n}", s, source_id=str(n)) for s in "ab" for n in range(12)]
    judgements = [make_judgement(d.id, name, 3 if d.supporter == "a" else 1) for d in dialogues for name in RUBRIC.dimensions]
    (table,) = pairwise_differences(boards_of(dialogues, judgements, RUBRIC))
    found = table.rows[0][2]
    assert isinstance(found, Estimate) and (found.mean, found.n) == (50, 12) and table.rows[0][-1] == "yes"
    assert found.low is not None and found.high is not None and 0 < found.low < 50 < found.high < 100, (
        "no certainty in 12 cards"
    )


def test_the_order_of_records_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    figures = {s: rng.integers(0, 5, (20, 2)).tolist() for s in "abc"}
    dialogues, judgements = field(figures)
    here = boards_of(dialogues, judgements, RUBRIC)
    judgements = [judgements[place] for place in rng.permutation(len(judgements))]
    there = boards_of(dialogues[::-1], judgements, RUBRIC)
    assert [*leaderboard(here, RUBRIC, groups={"a": "open"})] == [*leaderboard(there, RUBRIC, groups={"a": "open"})]
    assert [*pairwise_differences(here)] == [*pairwise_differences(there)]


def test_ranks_are_within_one_judge() -> None:
    figures: dict[str, list[list[float | None]]] = {"a": [[4, 4]] * 12, "b": [[0, 0]] * 12}
    dialogues, judgements = field(figures)
    judgements += [j.model_copy(update={"judge": "k", "value": 4 - (j.value or 0)}) for j in judgements]
    (table,) = leaderboard(boards_of(dialogues, judgements, RUBRIC), RUBRIC)
    assert [row[:3] for row in table.rows] == [
        (1, "a", "j · joint"),
        (2, "b", "j · joint"),
        (1, "b", "k · joint"),
        (2, "a", "k · joint"),
    ]
    (pairs,) = pairwise_differences(boards_of(dialogues, judgements, RUBRIC))
    assert [row[:3] for row in pairs.rows] == [("a", "b", "j · joint"), ("b", "a", "k · joint")]


# --- any records ----------------------------------------------------------------------------------------------------------

MARK = st.none() | st.integers(0, 4)
HELD = st.lists(  # of each dialogue: supporter, card, and the verdicts on both dimensions, asked twice or once
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.lists(st.tuples(MARK, MARK), min_size=1, max_size=2)),
    min_size=1,
    max_size=8,
)


@given(HELD)
def test_any_records_against_plain_means(held: list[tuple[str, int, list[tuple[int | None, int | None]]]]) -> None:
    """Repeats make a dialogue's mean, dialogues the supporter's: gaps, ties, constants, one dialogue, one card."""
    dialogues = [make_dialogue(f"d{n}", supporter, card_id=f"c{card}") for n, (supporter, card, _) in enumerate(held)]
    judgements = [
        make_judgement(f"d{n}", name, value, repeat=repeat)
        for n, (_, _, asked) in enumerate(held)
        for repeat, verdicts in enumerate(asked)
        for name, value in zip(RUBRIC.dimensions, verdicts, strict=True)
    ]
    found = {(cell.supporter, cell.dimension): cell for cell in Tally(dialogues, judgements, RUBRIC).scores}
    assert len(found) == 3 * len({supporter for supporter, _, _ in held})
    for supporter in {supporter for supporter, _, _ in held}:
        own = [(card, asked) for given, card, asked in held if given == supporter]
        means: list[float | None] = []
        on_cards: list[int] = []
        readable: dict[int, int] = {}  # dialogue → its card, where any verdict could be read
        for column, name in enumerate(RUBRIC.dimensions):
            read = [(n, card, [v[column] for v in asked if v[column] is not None]) for n, (card, asked) in enumerate(own)]
            each = [(n, card, 25 * fmean(cast(list[int], values))) for n, card, values in read if values]
            readable |= {n: card for n, card, _ in each}
            values = [mean for _, _, mean in each]
            means.append(fmean(values) if values else None)
            cell = found[supporter, name]
            assert cell.estimate.mean == pytest.approx(means[-1]) and cell.estimate.n == len(each)
            assert (cell.asked, cell.read) == (sum(len(a) for _, a in own), sum(len(v) for _, _, v in read))
            on_cards.append(len({card for _, card, _ in each}))
            check_interval(cell.estimate, on_cards[-1])
        average = found[supporter, AVERAGE]
        assert average.estimate.mean == (None if None in means else pytest.approx(fmean(cast(list[float], means))))
        assert average.estimate.n == len(readable) and average.read == sum(found[supporter, d].read for d in RUBRIC.dimensions)
        check_interval(average.estimate, min(on_cards))


def check_interval(estimate: Estimate, cards: int) -> None:
    if estimate.mean is None or cards < 2:
        assert estimate.low is estimate.high is None, "never an interval that rests on one card"
    else:
        assert estimate.low is not None and estimate.high is not None
        assert -1e-9 <= estimate.low <= estimate.mean <= estimate.high <= 100 + 1e-9 and estimate.low < estimate.high


@st.composite
def rivals(draw: st.DrawFn) -> dict[str, list[list[float | None]]]:
    """Three supporters on up to seven cards, some of them clearly better than others, some verdicts unreadable."""
    cards = draw(st.sampled_from([7, 7, 1, 2, 6]))  # seven are the fewest on which a difference holds among three
    gap = st.sampled_from([None, *[0] * 9])
    return {
        name: [
            [None if draw(gap) is None else draw(st.integers(0, 1)) + shift for _ in RUBRIC.dimensions] for _ in range(cards)
        ]
        for name, shift in (("a", draw(st.integers(0, 3))), ("b", draw(st.integers(0, 3))), ("c", draw(st.integers(0, 3))))
    }


@given(rivals())
def test_ranks_against_every_pattern_of_signs_and_holms_definition(figures: dict[str, list[list[float | None]]]) -> None:
    """Who is how much better on shared cards, its exact p, Holm's correction, and the ranks that follow."""
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    leads: list[float | None] = []
    p: list[float | None] = []
    for one, other in pairs:
        gaps = [
            [None if None in (x, y) else int(x) - int(y) for x, y in zip(*cards, strict=True)]  # type: ignore[arg-type]
            for cards in zip(figures[one], figures[other], strict=True)
        ]
        shared = [[gap for gap in column if gap is not None] for column in zip(*gaps, strict=True)]
        leads.append(25 * fmean(fmean(column) for column in shared) if all(shared) else None)
        p.append(sign_flip(card_shares(gaps)) if all(shared) else None)
    holm = corrected(p)
    expected: dict[str, int | None] = dict.fromkeys("abc")
    for (one, other), lead, own in zip(pairs, leads, holm, strict=True):
        if lead is not None and own is not None:
            worse = other if lead > 0 else one
            for name in (one, other):
                expected[name] = (expected[name] or 1) + (own <= 0.05 and name == worse)
    records = field(figures)
    assert dict(zip("abc", boards_of(*records, RUBRIC)[0].ranks, strict=True)) == expected
    (table,) = pairwise_differences(boards_of(*records, RUBRIC))
    shown = {frozenset(map(str, row[:2])): row for row in table.rows}
    for (one, other), lead, raw, own in zip(pairs, leads, p, holm, strict=True):
        first, _, difference, *tested = shown[frozenset((one, other))]
        assert isinstance(difference, Estimate)
        assert difference.mean == (None if lead is None else pytest.approx(lead if first == one else -lead))
        wanted = [None if raw is None else f"{raw:.4f}", None if own is None else f"{own:.4f}"]
        assert tested == [*wanted, None if own is None else "yes" if own <= 0.05 else "no"]
