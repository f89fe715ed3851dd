"""What boards, comparisons and forks claim of supporters: false differences, coverage of intervals, and ranks."""

from collections.abc import Iterator
from itertools import combinations
from typing import cast

import numpy as np

from core.records import Dialogue, Judgement
from core.statistics.bootstrap import Floats
from core.tables import Estimate
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import users_of
from evalsuite.statistics.leaderboard import Tally, by_field
from tests.bench.claims import Claim, coverage, false_alarms, levels
from tests.evalsuite.records import RUBRIC, make_dialogue, make_judgement

EXCHANGEABLE = (
    *(("floor", 3, 12, 7), ("middle", 3, 12, 1), ("ceiling", 3, 30, 7)),
    *(("floor", 20, 12, 7), ("middle", 20, 60, 7), ("ceiling", 20, 60, 1)),
)
CONSTANT = (("floor", 12, 1), ("floor", 12, 7), ("low", 12, 7), ("high", 12, 7), ("ceiling", 30, 7), ("middle", 8, 7))
LARGE = 40_000  # cards of which a population's mean is taken


def _truth(shape: str, dimensions: int, shift: Floats | float = 0.0, supporters: int = 1) -> Floats:
    """The true averages of supporters in points of 0–100."""
    rng = np.random.default_rng(99)
    means: Floats = 25 * levels(shape, rng, LARGE, supporters, dimensions, shift).mean(axis=(0, 2))
    return means


def _differences(points: Floats) -> list[paired.Difference]:
    """Every two supporters of points [cards, supporters, dimensions] in the average."""
    pairs = list(combinations(range(points.shape[1]), 2))
    return paired.differences(points, np.ones_like(points), pairs, average_only=True)


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """False differences first, then coverage."""
    for shape, supporters, cards, dimensions in EXCHANGEABLE:
        rng = np.random.default_rng((seed, cards, supporters, dimensions))
        found = [
            any(one.holds for one in _differences(25 * levels(shape, rng, cards, supporters, dimensions)))
            for _ in range(studies if supporters < 20 else max(studies // 2, 1))
        ]
        population = f"{shape}, {dimensions} dimension{'s' * (dimensions > 1)}, {supporters} exchangeable supporters"
        yield false_alarms("a board finds a difference", population, cards, found)
    for shape, cards, dimensions in CONSTANT:
        rng, constant = np.random.default_rng((seed, cards, dimensions, 1)), float(_truth(shape, dimensions)[0])
        population, gaps, found = f"{shape}, {dimensions} dimensions, against a constant of the same mean", [], []
        for _ in range(2 * studies):
            points = 25 * levels(shape, rng, cards, 1, dimensions)
            (one,) = _differences(np.concatenate([points, np.full_like(points, constant)], axis=1))
            found.append(bool(one.holds))
            gaps.append(one.estimate)
        yield false_alarms("a difference holds", population, cards, found)
        yield coverage("interval of a difference", population, cards, gaps, 0.0)
    yield from _failing(studies, seed)
    yield from _unpaired(studies, seed)
    yield from _by_field(studies, seed)
    yield from _averages(studies, seed)
    yield from _ranks(studies, seed)


def _failing(studies: int, seed: int) -> Iterator[Claim]:
    """A supporter that fails in some dialogues (all scores 0) against one that never does, of the same mean."""
    for shape, rate, cards in (("high", 0.08, 18), ("ceiling", 0.03, 30), ("ceiling", 0.08, 18)):

        def draw(size: int, rng: np.random.Generator, shift: float, shape: str = shape, rate: float = rate) -> Floats:
            points = 25 * levels(shape, rng, size, 2, 7, np.array([0, shift]))
            points[rng.random(size) < rate, 0] = 0
            return points

        lower, upper = -2.0, 0.0  # the shift at which both have the same mean, by bisection
        for _ in range(20):
            shift = (lower + upper) / 2
            first, second = draw(LARGE, np.random.default_rng(98), shift).mean(axis=(0, 2))
            lower, upper = (lower, shift) if second > first else (shift, upper)
        rng = np.random.default_rng((seed, cards, 4))
        gaps = [_differences(draw(cards, rng, shift))[0] for _ in range(2 * studies)]
        population = f"{shape}, one fails in {100 * rate:.0f} of 100 dialogues"
        yield false_alarms("a difference holds", population, cards, [bool(one.holds) for one in gaps])
        yield coverage("interval of a difference", population, cards, [one.estimate for one in gaps], 0.0)


def _unpaired(studies: int, seed: int) -> Iterator[Claim]:
    """Dialogues without cards: two supporters, no card in common, one with more dialogues."""
    for shape, sizes in (("low", (10, 20)), ("middle", (30, 30)), ("ceiling", (30, 15))):
        rng = np.random.default_rng((seed, *sizes))
        found, gaps = [], []
        for _ in range(2 * studies):
            points = np.zeros((sum(sizes), 2, 7))
            points[: sizes[0], 0], points[sizes[0] :, 1] = (25 * levels(shape, rng, n, 1, 7)[:, 0] for n in sizes)
            there = np.zeros_like(points)
            there[: sizes[0], 0], there[sizes[0] :, 1] = 1, 1
            (one,) = paired.differences(points, there, [(0, 1)], average_only=True)
            found.append(bool(one.holds))
            gaps.append(one.estimate)
        yield false_alarms("an unpaired difference holds", f"{shape}, 7 dimensions", min(sizes), found)
        yield coverage("interval of an unpaired difference", f"{shape}, 7 dimensions", min(sizes), gaps, 0.0)


def _by_field(studies: int, seed: int) -> Iterator[Claim]:
    """`report --by version`: people with one to six dialogues each, some of whom have talked to both versions."""
    designs = (("low", 12, 0.0), ("high", 12, 1.0), ("floor", 30, 0.5), ("middle", 30, 0.0), ("ceiling", 30, 1.0))
    for shape, people, of_both in designs:
        rng, found, gaps = np.random.default_rng((seed, people, 5)), list[bool](), list[Estimate]()
        for _ in range(studies):
            scores, sizes = levels(shape, rng, people, 6, 2), rng.integers(1, 7, people)
            changing = np.where(rng.random(people) < of_both, 1, 0)
            dialogues, verdicts = list[Dialogue](), list[Judgement]()
            for person, number in zip(*np.nonzero(np.arange(6) < sizes[:, None]), strict=True):
                name, version = f"{person}-{number}", (person + number * changing[person]) % 2
                dialogues.append(make_dialogue(name, fields={"version": str(version), "user": str(person)}))
                given = zip(RUBRIC.dimensions, scores[person, number], strict=True)
                verdicts += [make_judgement(name, dimension, int(score)) for dimension, score in given]
            _, table = by_field(Tally(dialogues, verdicts, RUBRIC, (), users_of(dialogues)), "version")
            gap = dict(zip(table.columns, table.rows[-1], strict=True))
            found.append(gap["significant"] == "yes")
            gaps.append(cast(Estimate, gap["difference"]))
        population = f"{shape}, {of_both:.0%} of people with both versions"
        yield false_alarms("a difference of --by holds", population, people, found)
        yield coverage("interval of a difference of --by", population, people, gaps, 0.0)


def _averages(studies: int, seed: int) -> Iterator[Claim]:
    for shape, cards, dimensions in (("floor", 5, 7), ("floor", 12, 7), ("middle", 5, 1), ("high", 12, 1), ("ceiling", 30, 7)):
        rng, truth = np.random.default_rng((seed, cards, dimensions, 2)), float(_truth(shape, dimensions)[0])
        found: list[Estimate] = []
        for _ in range(2 * studies):
            points = 25 * levels(shape, rng, cards, 1, dimensions)
            found.append(paired.card_estimates(points, np.ones_like(points), [cards])[0][-1])
        yield coverage("interval of an average", f"{shape}, {dimensions} dimensions", cards, found, truth)


def _ranks(studies: int, seed: int) -> Iterator[Claim]:
    """All true ranks lie in the ranges together. Five supporters that differ a little; two of them do not."""
    shift = np.array([0.5, 0.25, 0.25, 0.0, -0.5])
    true = [1, 2, 2, 4, 5]  # those that are equal are at 2 and at 3
    for shape, cards in (("middle", 18), ("high", 36)):
        rng, wrong = np.random.default_rng((seed, cards, 3)), []
        for _ in range(studies):
            ranks = paired.rank_ranges(_differences(25 * levels(shape, rng, cards, 5, 7, shift)), 5)
            bounds = [(rank or (1, 5), place) for rank, place in zip(ranks, true, strict=True)]
            wrong.append(not all(low <= place and high >= place + (place == 2) for (low, high), place in bounds))
        yield false_alarms("a range of ranks leaves out the true rank", f"{shape}, 5 supporters", cards, wrong)
