"""Leaderboards, their ranks and groups against hand-worked examples and plain definitions."""

from statistics import fmean
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind

from core.errors import UserError
from core.languages import PAPER_LANGUAGES
from core.records import Dialogue, Judgement, Language, Turn
from core.rubrics import Rubric
from core.tables import Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import POOLED, design_of, pooled
from evalsuite.statistics.leaderboard import Board, Tally, leaderboard, pairwise_differences
from evalsuite.statistics.summary import AVERAGE, distributions
from tests.evalsuite.oracles import agrees, corrected, smoothed, student
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric

RUBRIC = make_rubric("fluency", "empathy")


def board(dialogues: list[Dialogue], judgements: list[Judgement], rubric: Rubric = RUBRIC) -> Table:
    table, *_ = leaderboard(Tally(dialogues, judgements, rubric).boards, rubric)
    return table


def cell(table: Table, row: int, column: str) -> Estimate:
    return cast(Estimate, table.rows[row][table.columns.index(column)])


def test_average_as_in_the_papers_table_2() -> None:
    """GPT-4, English: the seven printed means average to the printed 63.78."""
    printed = (74.32, 71.68, 71.22, 73.72, 74.92, 36.40, 44.18)
    rubric = make_rubric(*"abcdefg")
    judgements = [make_judgement("x", name, mean / 25) for name, mean in zip("abcdefg", printed, strict=True)]
    assert cell(board([make_dialogue("x")], judgements, rubric), 0, AVERAGE).mean == pytest.approx(63.78, abs=0.005)


def test_nothing_readable() -> None:
    judgements = [make_judgement("a", "fluency", 2), make_judgement("a", "empathy", None), make_judgement("b", "fluency", 4)]
    table = board([make_dialogue("a"), make_dialogue("b")], judgements)
    assert cell(table, 0, "Empathy") == Estimate(None, None, None, 0)
    assert cell(table, 0, AVERAGE).mean is None  # an average over fewer dimensions would not compare
    assert table.rows[0][-1] == pytest.approx(100 * 2 / 3)
    assert board([make_dialogue("a")], [make_judgement("a", "fluency", None)]).rows[0][-1] == 0


def test_a_scale_that_does_not_begin_at_0_has_a_board_of_its_own() -> None:
    """EmoHarbor's tables are on 1–5: (2 + 5) / 2 is 3.5 of them, and 62.5 of 100."""
    rubric = make_rubric("fluency", low=1, high=5)
    dialogues = [make_dialogue(name, card_id=name) for name in "ab"]
    judgements = [make_judgement("a", "fluency", 2), make_judgement("b", "fluency", 5)]
    of_100, own = leaderboard(Tally(dialogues, judgements, rubric).boards, rubric)
    assert own.title == "Leaderboard on 1–5, en" and own.columns == of_100.columns
    for column in ("Fluency", AVERAGE):
        mine, theirs = cell(own, 0, column), cell(of_100, 0, column)
        assert (mine.mean, mine.n, theirs.mean) == (3.5, 2, 62.5) and theirs.low is not None and theirs.high is not None
        assert (mine.low, mine.high) == (pytest.approx(1 + theirs.low / 25), pytest.approx(1 + theirs.high / 25))


def test_best_average_first_and_corpora_under_their_source() -> None:
    dialogues = [make_dialogue("a", "low"), make_dialogue("b", "high"), make_dialogue("c", None)]
    judgements = [make_judgement(name, "fluency", score) for name, score in (("a", 1), ("b", 3), ("c", 2))]
    table = board(dialogues, judgements, make_rubric("fluency"))
    assert [row[0] for row in table.rows] == ["high", "corpus", "low"], (
        "one dialogue each: nothing was tested, nobody has a rank"
    )


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
        board([make_dialogue("a")], [judgement])


def test_judges_methods_and_conditions_are_never_mixed() -> None:
    rubric = make_rubric("fluency")
    variants: list[dict[str, Any]] = [{}, {"judge": "k"}, {"method": "paper"}, {"condition": {"order": "ba"}}]
    judgements = [make_judgement("a", "fluency", score, **variant) for score, variant in enumerate(variants)]
    table = board([make_dialogue("a")], judgements, rubric)
    found = {row[1]: cell(table, number, "Fluency").mean for number, row in enumerate(table.rows)}
    assert found == {"j · joint": 0, "k · joint": 25, "j · paper": 50, "j · joint · order=ba": 75}
    given = distributions(judgements, rubric)
    assert given.columns[:3] == ("language", "judged by", "dimension") and [row[-1] for row in given.rows] == [1, 1, 1, 1]


Figures = dict[str, list[list[float | None]]]  # supporter → card → score on each dimension of `RUBRIC`


def field(figures: Figures, language: Language = "en") -> tuple[list[Dialogue], list[Judgement]]:
    """Dialogues and verdicts of supporters on shared cards."""
    dialogues, judgements = [], []
    for supporter, cards in figures.items():
        for card, verdicts in enumerate(cards):
            name = f"{language}-{supporter}-{card}"
            dialogues.append(make_dialogue(name, supporter, card_id=f"c{card}", language=language))
            judgements += [
                make_judgement(name, dimension, value, language=language)
                for dimension, value in zip(RUBRIC.dimensions, verdicts, strict=True)
            ]
    return dialogues, judgements


def test_a_rank_is_the_range_that_the_differences_leave_open() -> None:
    figures: Figures = {
        "a": [[3 + card % 2, 3] for card in range(12)],
        "b": [[4 - card % 2, 3] for card in range(12)],  # the same mean: +1 and −1 by turns
        "c": [[1, 1 + (card % 3 > 0)] for card in range(12)],  # worse on every card
    }
    (one,) = Tally(*field(figures), RUBRIC).boards
    assert [each.supporter for each in one.contestants] == ["a", "b", "c"] and one.ranks == [(1, 2), (1, 2), (3, 3)]
    (table,) = leaderboard(Tally(*field(figures), RUBRIC).boards, RUBRIC)
    assert table.columns[:3] == ("rank", "supporter", "average") and paired.RANKS in table.notes
    assert [row[:2] for row in table.rows] == [("1–2", "a"), ("1–2", "b"), ("3", "c")]
    (pairs,) = pairwise_differences(Tally(*field(figures), RUBRIC).boards)
    assert pairs.columns == ("supporter", "against", "difference", "p", "p (Holm)", "significant")
    assert [(*row[:2], row[-1]) for row in pairs.rows] == [("a", "b", "no"), ("a", "c", "yes"), ("b", "c", "yes")]


def test_floors_are_not_ranked_and_cost_models_nothing() -> None:
    rng = np.random.default_rng(2)
    base = rng.integers(1, 3, (12, 1)) + np.zeros((12, 2), dtype=int)
    figures = {name: (base + rng.integers(0, 2, (12, 2)) + gain).tolist() for name, gain in (("a", 1), ("b", 0))}
    floors = {f"floor{n}": rng.integers(0, 2, (12, 2)).tolist() for n in range(3)}
    (alone,), (beside,) = Tally(*field(figures), RUBRIC).boards, Tally(*field(figures | floors), RUBRIC, floors=floors).boards

    def tested(board: Board) -> dict[tuple[str, str], tuple[float | None, float | None]]:
        names = [one.supporter for one in board.contestants]
        return {(names[one.first], names[one.second]): (one.p, one.holm) for one in board.differences}

    assert tested(beside)["a", "b"] == tested(alone)["a", "b"], "the same p and the same correction"
    assert all((p is None) == (a in floors and b in floors) for (a, b), (p, _) in tested(beside).items())
    assert [beside.contestants[place].supporter for place in beside.models] == ["a", "b"]
    assert [rank is None for rank in beside.ranks] == [False, False, True, True, True]


def test_a_dimension_at_the_end_of_the_scale_is_named() -> None:
    figures: Figures = {name: [[4, n] for n in range(4)] for name in ("a", "b")}
    (one,) = Tally(*field(figures), RUBRIC).boards
    (table,) = leaderboard([one], RUBRIC)
    assert any(note.startswith("At 100 for every model: Fluency.") for note in table.notes)


def test_trials_in_which_the_same_is_said_are_one() -> None:
    """At temperature 0 a second trial is the first once more: it adds nothing to n and nothing to the interval."""
    turns = (Turn(role="seeker", text="a"), Turn(role="supporter", text="b"))
    dialogues = [make_dialogue(f"{n}-{t}", card_id=f"c{n}", trial=t, turns=turns) for n in range(4) for t in range(3)]
    verdicts = [make_judgement(one.id, name, int(one.id[0])) for one in dialogues for name in RUBRIC.dimensions]
    (many,), (once,) = (
        Tally(dialogues, verdicts, RUBRIC).boards,
        Tally(dialogues[::3], verdicts[::6] + verdicts[1::6], RUBRIC).boards,
    )
    assert [cell.estimate for cell in many.cells] == [cell.estimate for cell in once.cells] and many.cells[0].estimate.n == 4


def test_languages_are_decided_together_and_shown_apart() -> None:
    """Six cards per language decide nothing, the twelve of both do; without a second language the board is the pooled one."""
    rng = np.random.default_rng(8)
    records: tuple[list[Dialogue], list[Judgement]] = ([], [])
    for language in PAPER_LANGUAGES:
        figures = {name: (rng.integers(0, 3, (6, 2)) + gain).tolist() for name, gain in (("a", 1), ("b", 0), ("floor", 0))}
        for every, own in zip(records, field(figures, language), strict=True):
            every.extend(own)  # type: ignore[attr-defined]
    tally = Tally(*records, RUBRIC, ["floor"])
    (both,) = tally.pooled
    strata = design_of(pooled(tally.contestants)).strata
    assert strata is not None and sorted(strata.tolist()) == [0] * 6 + [1] * 6, "a language is a stratum"
    assert both.language == POOLED and [board.language for board in tally.boards] == ["en", "zh"]
    (decided,) = both.asked
    assert decided.holds and decided.estimate.n == 12, "a card of the same name in two languages is two cards"
    assert not any(one.holds for board in tally.boards for one in board.asked) and both.fewest_cards is None
    parts = [board.scores[0][-1].estimate for board in tally.boards]
    assert both.scores[0][-1].estimate.mean == pytest.approx(fmean(cast(float, part.mean) for part in parts))
    english = Tally(*([one for one in part if one.language == "en"] for part in records), RUBRIC)  # type: ignore[call-arg, arg-type]
    assert english.pooled is english.boards


def test_dialogues_without_cards_are_compared_unpaired() -> None:
    rng = np.random.default_rng(1)
    values = {"a": rng.integers(2, 5, 30), "b": rng.integers(0, 4, 20)}
    dialogues = [make_dialogue(f"{name}{n}", name) for name, own in values.items() for n in range(len(own))]
    verdicts = [
        make_judgement(f"{name}{n}", dimension, int(value))
        for name, own in values.items()
        for n, value in enumerate(own)
        for dimension in RUBRIC.dimensions
    ]
    (one,) = Tally(dialogues, verdicts, RUBRIC).boards
    (difference,) = one.differences
    assert difference.unpaired and difference.estimate.n == 50
    assert difference.p == pytest.approx(ttest_ind(values["a"], values["b"], equal_var=False).pvalue)
    (pairs,) = pairwise_differences([one])
    assert paired.UNPAIRED in pairs.notes and one.ranks == [(1, 1), (2, 2)]


def test_any_field_of_a_dialogue_can_be_what_is_drawn_whole() -> None:
    """Cards of one source hang together: the same figures, and intervals and p as if each source were one card."""
    rng = np.random.default_rng(6)
    figures: Figures = {
        name: (rng.integers(0, 3, (4, 1)).repeat(3, axis=0) + rng.integers(0, 2, (12, 2)) + gain).tolist()
        for name, gain in (("a", 1), ("b", 0))
    }
    dialogues, verdicts = field(figures)
    dialogues = [one.model_copy(update={"source": f"corpus {int((one.card_id or 'c0')[1:]) // 3}"}) for one in dialogues]
    (cards,), (sources,) = (Tally(dialogues, verdicts, RUBRIC, cluster=by).boards for by in (None, "source"))
    assert [cell.estimate.mean for cell in sources.cells] == pytest.approx([cell.estimate.mean for cell in cards.cells])
    gaps = np.array(figures["a"], dtype=float).mean(axis=1) - np.array(figures["b"], dtype=float).mean(axis=1)
    whole = 25 * gaps.reshape(4, 3).mean(axis=1)
    assert sources.differences[0].estimate.mean == pytest.approx(cards.differences[0].estimate.mean)
    assert agrees(sources.differences[0].p, float(ttest_1samp(whole, 0).pvalue), sources.differences[0].estimate)
    (alone,) = Tally(dialogues, verdicts, RUBRIC, cluster="dialogue").boards
    assert alone.differences[0].unpaired, "dialogues that are drawn by themselves are not paired"


def test_a_single_supporter_has_no_rank_and_no_pairs() -> None:
    records = field({"a": [[4, 4]] * 3})
    assert board(*records).columns[:3] == ("supporter", "average", "Fluency")
    assert [*pairwise_differences(Tally(*records, RUBRIC).boards)] == []


def test_a_group_is_a_mark_and_does_not_sort() -> None:
    names = ("x", "tuned", "weights", "api", "api2")
    records = field({name: [[place % 5, 2]] * 3 for place, name in enumerate(names)})
    groups = {"tuned": "domain", "weights": "open", "api": "closed", "api2": "closed"}
    (table,) = leaderboard(Tally(*records, RUBRIC).boards, RUBRIC, groups=groups)
    assert table.columns[:4] == ("rank", "supporter", "average", "group")
    listed = [(row[1], row[3]) for row in table.rows]
    assert listed == [("api2", "closed"), ("api", "closed"), ("weights", "open"), ("tuned", "domain"), ("x", "other")]
    assert next(leaderboard(Tally(*records, RUBRIC).boards, RUBRIC, groups={"nobody": "open"})).columns[:4] == (
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
    assert any("dialogues that are all on one card" in note for note in one_card.notes)


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
def test_ranks_against_scipy_and_holms_definition(figures: dict[str, list[list[float | None]]]) -> None:
    """Who is how much better on shared cards, Student's t, Holm's correction, and the ranks that follow."""
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    (one,) = Tally(*field(figures), RUBRIC).boards
    names = [each.supporter for each in one.contestants]
    found = {frozenset((names[each.first], names[each.second])): each for each in one.differences}
    for first, second in pairs:
        gaps = [
            [None if None in (x, y) else 25.0 * (int(x) - int(y)) for x, y in zip(*cards, strict=True)]  # type: ignore[arg-type]
            for cards in zip(figures[first], figures[second], strict=True)
        ]
        shared = [[gap for gap in column if gap is not None] for column in zip(*gaps, strict=True)]
        each = found[frozenset((first, second))]
        if not any(shared):
            assert each.unpaired or each.p is None
            continue
        sign = 1 if names[each.first] == first else -1
        lead = fmean(fmean(column) for column in shared) if all(shared) else None
        assert each.estimate.mean == (None if lead is None else pytest.approx(sign * lead))
        assert agrees(each.p, student(gaps) if lead is not None else None, each.estimate)
    assert [each.holm for each in one.differences] == pytest.approx(corrected([each.p for each in one.differences]))
    held = [(each, (each.estimate.mean or 0) > 0) for each in one.differences if each.holm is not None]
    tested = {place for each, _ in held for place in (each.first, each.second)}
    for place, rank in enumerate(one.ranks):
        above = sum(each.holm <= 0.05 and (each.second if up else each.first) == place for each, up in held)  # type: ignore[operator]
        below = sum(each.holm <= 0.05 and (each.first if up else each.second) == place for each, up in held)  # type: ignore[operator]
        assert rank == ((1 + above, len(tested) - below) if place in tested else None)
