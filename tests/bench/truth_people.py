"""What `leaderboard --people` claims, on boards whose truth is known: differences, intervals, labels saved."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from core.statistics.bootstrap import Floats
from core.tables import Estimate
from evalsuite.statistics.suggestions import chances
from evalsuite.trust.powered_board import LabelledScores, differences_of, estimates, powered, saved
from tests.bench.claims import Claim, coverage, false_alarms, judged, levels, systematic

CARDS = 60


@dataclass(frozen=True)
class Shape:
    """A board: supporters, labels of each by people, dimensions, shape of the scores, and how often the judge is right (else it
    is a level off); `drawn` says whose cards are scored: each supporter's own, the same ones, or those of `people suggest`. A
    supporter has `each` dialogues on every card, of which people score so many in all."""

    supporters: int
    labels: int
    dimensions: int
    scores: str
    agreement: float = 0.6
    drawn: str = "own"
    shift: float = 0.0  # of the first supporter's latent quality
    each: int = 1

    def __str__(self) -> str:
        return (
            f"{self.supporters} supporters, {self.labels} labels, {self.dimensions} dimensions, {self.scores}, judge right in "
            f"{100 * self.agreement:.0f} %, cards {self.drawn}"
        )

    def sample(self, rng: np.random.Generator) -> LabelledScores:
        shift = np.where(np.arange(self.supporters) == 0, self.shift, 0.0)
        gold = levels(self.scores, rng, CARDS, self.each * self.supporters, self.dimensions, np.tile(shift, self.each))
        flat = (CARDS * self.each, self.supporters, self.dimensions)  # row by row the dialogues of a card
        people, judge = (25 * scores.reshape(flat) for scores in (gold, judged(gold, rng, self.agreement)))
        unsure = np.abs(people - judge).mean(axis=2) + rng.exponential(10, people.shape[:2])
        chance = chances(unsure if self.drawn == "suggested" else np.ones(unsure.shape), self.labels)
        # One order of cards for all supporters, or one of its own for each.
        picked = systematic(chance, rng, 1 if self.drawn == "own" else self.supporters)
        weight = np.broadcast_to((picked / chance)[..., None], people.shape)
        parts = (judge, np.ones(people.shape), weight * people, weight * judge, weight)
        return LabelledScores(*(part.reshape(CARDS, self.each, *flat[1:]).sum(axis=1) for part in parts))

    def truth(self, supporter: int = 1) -> float:
        """A supporter's true mean."""
        return _mean(self.scores, self.shift if supporter == 0 else 0.0)


@cache
def _mean(scores: str, shift: float) -> float:
    return 25 * float(levels(scores, np.random.default_rng(7), 200_000, 1, 1, shift).mean())


@dataclass(frozen=True)
class Outcome:
    """Of so many boards: whether any difference holds, intervals of means and differences, labels saved, and λ [boards,
    dimensions]."""

    alarms: list[bool]
    means: list[Estimate]
    gaps: list[Estimate]
    saved: list[Estimate]
    tuning: list[Floats]


def simulate(shape: Shape, studies: int, seed: int, judge: bool = True) -> Outcome:
    """So many boards, by both or (without `judge`) by people alone."""
    rng = np.random.default_rng((seed, shape.supporters, shape.labels, shape.dimensions))
    pairs, labels = list(combinations(range(shape.supporters), 2)), [shape.labels] * shape.supporters
    outcome = Outcome([], [], [], [], [])
    for _ in range(studies):
        found = powered(shape.sample(rng))
        side = found.both if judge else found.people
        gaps = differences_of(found, side, pairs)
        outcome.alarms.append(any(one.holds for one in gaps))
        outcome.means.extend(row[-1] for row in estimates(found, side, labels)[1:])  # all of one true mean
        outcome.gaps.extend(one.estimate for one in gaps)
        outcome.saved.append(saved(found, shape.labels))
        outcome.tuning.append(found.tuning)
    return outcome


def true_saved(shape: Shape, tuning: Floats) -> float:
    """Labels saved of boards with these λ [boards, dimensions] by the mean squared errors of both estimates, which are known
    from the moments of the population."""
    rng = np.random.default_rng(8)
    gold = levels(shape.scores, rng, 40_000, 1, shape.dimensions)
    people, judge = 25 * gold[:, 0].mean(axis=1), 25 * judged(gold, rng, shape.agreement)[:, 0]
    used = tuning / shape.dimensions
    of_judge = np.einsum("sd,de,se->s", used, np.cov(judge.T).reshape(2 * [shape.dimensions]), used)
    together = used @ ((people - people.mean()) @ (judge - judge.mean(axis=0)) / len(people))
    squared = people.var() / shape.labels + (of_judge - 2 * together) * (1 / shape.labels - 1 / CARDS)
    return max(shape.labels * float(people.var() / shape.labels / squared.mean() - 1), 0.0)


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """Supporters that are alike, on boards of 3 and of 20; and labels saved, which are not given with unequal weights."""
    for shape in SHAPES:
        found, population, labels = simulate(shape, studies, seed), str(shape), shape.labels
        yield false_alarms("people and judge: no difference holds", population, labels, found.alarms)
        yield coverage("people and judge: interval of an average", population, labels, found.means, shape.truth())
        yield coverage("people and judge: interval of a difference", population, labels, found.gaps, 0.0)
        if shape.drawn != "suggested" and any(one.mean is not None for one in found.saved):
            known = true_saved(shape, np.array(found.tuning))
            yield coverage("people and judge: labels saved", population, shape.supporters * labels, found.saved, known)


SHAPES = (
    *(
        Shape(supporters, labels, *setting)
        for supporters, labels in ((3, 5), (3, 12), (20, 12))
        for setting in (
            (1, "floor", 0.9),
            (1, "middle", 0.3),
            (1, "ceiling", 0.6, "suggested"),
            (7, "floor", 0.6, "same"),
            (7, "middle", 0.9),
            (7, "ceiling", 0.3),
        )
    ),
    Shape(20, 5, 1, "middle", 0.3),
    Shape(20, 5, 7, "floor", 0.6, "same"),
    Shape(20, 30, 1, "ceiling", 0.9),
    Shape(20, 30, 7, "middle", 0.3),
)
