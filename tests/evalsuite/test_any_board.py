"""Leaderboards of any records against plain means, ranks against scipy and Holm's definition."""

from statistics import fmean
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tables import Estimate
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import AVERAGE
from tests.evalsuite.oracles import agrees, corrected, student
from tests.evalsuite.records import make_dialogue, make_judgement
from tests.evalsuite.test_leaderboard import RUBRIC, field

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
