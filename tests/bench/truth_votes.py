"""Choices between two systems: intervals of win rates and strengths, and differences that are called where there is none.

Several annotators vote on an item and see the same replies, so their votes go together; the schedule is unbalanced, since some
pairs are shown far more often than others, and what is shown first is picked a little more often.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from core.statistics.bootstrap import Floats
from evalsuite.papers.win_rates import Choice, rate, strengths_of
from tests.bench.claims import Claim, coverage, false_alarms

ANNOTATORS = 3
ITEM, EYE = 1.0, 0.7  # standard deviations of a reply's quality on an item, and of an annotator's view of a pair
FIRST, TIE = 0.2, 0.25  # what the first place adds, and how near two replies are to be a tie
_LARGE = 1500  # items of a study in which little is left to chance
_APART = (1.5, 0.6, 0.2, 0.0, -0.3)  # the best meets the rest, of which the weak ones meet each other


def voted(strengths: Sequence[float], rng: np.random.Generator, items: int) -> list[Choice]:
    """Votes of `ANNOTATORS` on the pairs of each item that the schedule has: from one in ten items to nine in ten."""
    count = len(strengths)
    pairs = [*combinations(range(count), 2)]
    often = np.linspace(0.9, 0.1, len(pairs)) * min(1, 12 / len(pairs))
    replies = np.asarray(strengths) + rng.normal(0, ITEM, (items, count))
    names = [f"s{system:02}" for system in range(count)]
    found = []
    for item in range(items):
        for (a, b), chance in zip(pairs, often, strict=True):
            if rng.random() >= chance:
                continue
            for annotator in range(ANNOTATORS):
                first = rng.random() < 0.5
                gap = replies[item, a] - replies[item, b] + (FIRST if first else -FIRST) + rng.normal(0, EYE)
                verdict = "tie" if abs(gap) < TIE else "a" if gap > 0 else "b"
                shown = names[a if first else b]
                found.append(
                    Choice("", f"{item:04}", names[a], names[b], verdict, annotator=f"p{annotator}", first=shown)  # type: ignore[arg-type]
                )
    return found


def _won(choices: Sequence[Choice]) -> list[Choice]:
    return [one for one in choices if one.systems == ("s00", "s01")]


def _points(vote: Choice) -> float:
    return 0.5 if vote.verdict == "tie" else float(vote.verdict == "a")


def _true(strengths: Sequence[float], seed: int) -> tuple[Floats, float]:
    """The expected share of every system and the win rate of the first against the second."""
    large = voted(strengths, np.random.default_rng((seed, 1)), _LARGE)
    found, _ = strengths_of(large, sorted({name for one in large for name in one.systems}))
    assert found is not None
    return np.array([one.mean for one in found.shares]), 100 * float(np.mean([_points(one) for one in _won(large)]))


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """Systems apart, whose intervals are to hold the truth; and systems alike, of which none is to be called better."""
    systems = [f"s{system:02}" for system in range(20)]
    truth, against = _true(_APART, seed)
    for items in (8, 12, 30):
        rng = np.random.default_rng((seed, items))
        found = [voted(_APART, rng, items) for _ in range(studies)]
        rates = [rate(_won(one), _points) for one in found]
        yield coverage("interval of a win rate", "one pair of five systems", items, rates, against)
        strong = [told for one in found if (told := strengths_of(one, systems[: len(_APART)])[0])]
        for place, share in enumerate(truth):
            shares = [one.shares[place] for one in strong]
            yield coverage("interval of an expected share", f"{place + 1}. of five systems", items, shares, share)
    for count, items in ((2, 8), (2, 30), (4, 12), (8, 30), (20, 12), (20, 60)):
        rng = np.random.default_rng((seed, count, items))
        number = -(-studies * 4 // (4 + count))
        boards = (strengths_of(voted([0.0] * count, rng, items), systems[:count])[1] for _ in range(number))
        alarms = [any(one.holds for one in board) for board in boards]
        yield false_alarms("a difference of two systems holds", f"{count} alike", items, alarms)
