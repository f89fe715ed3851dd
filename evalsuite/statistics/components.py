"""Where the variance of a score comes from (a generalizability study), how much each pair of supporters differs from card to
card, and how many cards it takes to show a given difference; and at how many cards a run may be looked at that ends when it is
decided.

The model is random and crossed: a score is a mean plus an effect of supporter, card, seeker and judge, of every interaction
between them, and of the draw (the dialogue itself, one of several trials); the residual is the judge's noise on a dialogue. The
components are estimated from sums of squares (Henderson, 1953, method 1): unbiased for unbalanced data too, and they need only
counts. statsmodels' MixedLM fits the same model, but as a single group of all scores whose matrix it inverts: for ESC-Eval's
9,170 dialogues that takes 670 MB and hours. It is the oracle of the tests.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, nctdtr, ndtr, ndtri, stdtrit

from core.grouping import group_by
from core.statistics.accuracy import jackknife_error
from core.statistics.bootstrap import LEVEL, POINTS, Floats, gap_levels, smoothed_means
from core.statistics.inference import ALPHA

FACETS = ("supporter", "card", "seeker", "judge")
DRAW = "draw"
CROSSED = " × "
GROUPS = 40  # of cards (or users), left out in turn by the jackknife
FEWEST = 5  # groups that an interval needs: with fewer it says nothing
_SHIFT = 1.5  # chosen by simulated coverage (docs/measurements.md), as is the scale
Codes = NDArray[np.int64]


class Observation(NamedTuple):
    """One judge's average (0–100) of one dialogue. `trial` tells apart the dialogues of one supporter, card and seeker."""

    supporter: str
    card: str
    seeker: str
    judge: str
    trial: str
    score: float


@dataclass(frozen=True)
class Component:
    """One source of variance. `facets` are those that it crosses; a draw has those it is nested in, and `DRAW`. A `variance`
    below 0 counts as 0. `low` and `high` are its 95 % interval for other cards like these; None for fewer than `FEWEST` cards,
    and for a source that does not cross the card: a handful of supporters or judges says little about others."""

    name: str
    facets: frozenset[str]
    variance: float
    low: float | None
    high: float | None
    levels: int

    @property
    def counted(self) -> float:
        """The variance, not below 0."""
        return max(self.variance, 0.0)


@dataclass(frozen=True)
class Components:
    """The components of one language's scores. `levels` counts supporters, cards, seekers and judges; `trials` is the mean
    number of dialogues per supporter, card and seeker."""

    parts: list[Component]
    levels: Mapping[str, int]
    trials: float
    scores: int
    mean: float

    def difference(self, trials: float) -> tuple[float, float]:
        """The error variance of the difference between two supporters with so many trials per card: the part that shrinks with
        the number of cards (for one card), and the part that does not, if findings are to apply to other judges and seekers."""
        numbers = {**self.levels, DRAW: trials, "card": 1}
        shrinking = staying = 0.0
        for part in self.parts:
            others = part.facets - {"supporter"}
            if "supporter" in part.facets and others:
                variance = 2 * part.counted / float(np.prod([numbers[name] for name in others]))
                shrinking, staying = (shrinking + variance, staying) if "card" in others else (shrinking, staying + variance)
        return shrinking, staying


def components(observations: Sequence[Observation]) -> Components:
    """The components of scores in one language. Effects that the design does not separate become one, named after all."""
    scores = np.array([score.score for score in observations])
    effects = _effects(observations)
    variances = _henderson(scores, [codes for _, _, codes in effects])
    cards = _codes([score.card for score in observations])
    bounds = _intervals(scores, [codes for _, _, codes in effects], variances, cards)
    parts = [
        Component(name, facets, float(variance), *(bounds_of if "card" in facets else (None, None)), int(codes.max()) + 1)
        for (name, facets, codes), variance, bounds_of in zip(effects, variances, bounds, strict=True)
    ]
    levels = {facet: len({getattr(score, facet) for score in observations}) for facet in FACETS}
    dialogues = {(score.supporter, score.card, score.seeker, score.trial) for score in observations}
    cells = {dialogue[:3] for dialogue in dialogues}
    return Components(parts, levels, len(dialogues) / len(cells), len(observations), float(scores.mean()))


def _effects(observations: Sequence[Observation]) -> list[tuple[str, frozenset[str], Codes]]:
    """Name, facets and levels (of every score) of each effect that the design separates, from main effects to the residual."""
    varying = [facet for facet in FACETS if len({getattr(score, facet) for score in observations}) > 1]
    keys: list[tuple[str, frozenset[str], Sequence[object]]] = [
        (CROSSED.join(crossed), frozenset(crossed), [tuple(getattr(score, name) for name in crossed) for score in observations])
        for size in range(1, len(varying) + 1)
        for crossed in combinations(varying, size)
    ]
    draws = [score._replace(judge="", score=0) for score in observations]
    keys.append((DRAW, frozenset({*varying, DRAW}) - {"judge"}, draws))
    keys.append(("rest", frozenset({*varying, DRAW}), [score._replace(score=0) for score in observations]))
    effects: list[tuple[str, frozenset[str], Codes]] = []
    for name, facets, key in keys:
        codes = _codes(key)
        same = next((place for place, (_, _, others) in enumerate(effects) if np.array_equal(others, codes)), None)
        if same is None:
            effects.append((name, facets, codes))
        else:  # they differ in a facet with a single level: one effect, which shrinks only with the facets of both
            effects[same] = (f"{effects[same][0]}, {name}", effects[same][1] & facets, codes)
    return effects


def _codes(keys: Sequence[object]) -> Codes:
    """Levels as numbers from 0, in order of appearance."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _henderson(scores: Floats, effects: Sequence[Codes]) -> Floats:
    """Variance components of the effects, the last of which has a level for every score.

    For each effect the sum over its levels of (sum of scores)² / n is set equal to its expectation: n µ², and for each
    component the sum over levels of Σ n_ab² / n_a, where n_ab counts scores on level a of one effect and b of the other."""
    total, centred = len(scores), scores - scores.mean()  # the mean cancels, and large numbers would lose digits
    constant = np.zeros(total, dtype=np.int64)
    rows, sums = [], []
    for effect in (constant, *effects):
        counts = np.bincount(effect)
        sums.append(float((np.bincount(effect, weights=centred) ** 2 / counts).sum()))
        rows.append([float(total)])
        for other in effects:
            pairs, both = np.unique(effect * (int(other.max()) + 1) + other, return_counts=True)
            rows[-1].append(float((both**2 / counts[pairs // (int(other.max()) + 1)]).sum()))
    result: Floats = np.linalg.lstsq(np.array(rows), np.array(sums), rcond=None)[0][1:]
    return result


def _intervals(
    scores: Floats, effects: Sequence[Codes], variances: Floats, cards: Codes
) -> list[tuple[float | None, float | None]]:
    """95 % intervals of the components, leaving out cards in turn (in `GROUPS` groups if there are more)."""
    groups = cards % GROUPS
    number = int(groups.max()) + 1
    if number < FEWEST:
        return [(None, None)] * len(effects)
    without = []
    for group in range(number):
        kept = groups != group
        without.append(_henderson(scores[kept], [np.unique(codes[kept], return_inverse=True)[1] for codes in effects]))
    low, high = root_interval(variances, np.array(without))
    return list(zip(low.tolist(), high.tolist(), strict=True))


def root_interval(seen: Floats, without: Floats) -> tuple[Floats, Floats]:
    """95 % intervals of variances, or of ratios of variances, given as `seen` [...] and without each group [groups, ...].

    Student's t on the scale of the cube root, on which a variance is nearly normal (Wilson and Hilferty): on the original scale
    it covers the truth in 88 to 96 % of simulated runs of 12 cards. The root is taken `_SHIFT` standard errors above the
    figure: near 0 the root is too steep, and a small component's interval covered the truth in 83 %."""
    shift = _SHIFT * jackknife_error(without)
    half = stdtrit(len(without) - 1, 0.975) * jackknife_error(np.cbrt(without + shift))
    middle = np.cbrt(seen + shift)
    return (middle - half) ** 3 - shift, (middle + half) ** 3 - shift


# --- how much a pair differs from card to card -----------------------------------------------------------------------------

FEWEST_PLANNED = 12  # shared cards: with fewer, plans broke their promise in simulated studies of skewed scores
FEWEST_BOUNDED = 30  # shared cards: with fewer, their intervals did (docs/measurements.md)
_HEAVY = 2.0  # what tails that no card has shown add to the error of a variance, in units of variance² / cards


@dataclass(frozen=True)
class Spread:
    """How much the difference between two supporters varies over the cards that both have: `variance` in points², with the
    run's number of trials, and its `degrees` of freedom. Against a `floor`, whose scores hardly vary, this is good enough for a
    plan but not for an interval."""

    first: str
    second: str
    cards: int
    variance: float
    degrees: float
    floor: bool = False

    @property
    def enough(self) -> bool:
        """Whether there are enough cards to plan from; a pair with a floor, whose scores are skewed, needs more."""
        return self.cards >= (FEWEST_BOUNDED if self.floor else FEWEST_PLANNED)

    def bounds(self) -> tuple[float, float] | None:
        """95 % interval of the true variance as a multiple of the one seen; None for fewer than `FEWEST_BOUNDED` cards and for
        floors."""
        if self.cards < FEWEST_BOUNDED or self.floor:
            return None
        high, low = self.degrees / _chi_square(np.array([0.025, 0.975]), self.degrees)
        return float(low), float(high)


def spreads(observations: Sequence[Observation], floors: Collection[str] = ()) -> list[Spread]:
    """The spread of every pair of models with two shared cards, widest first; of a single model, its pairs with the floors."""
    means: dict[str, dict[str, float]] = {}
    for (name, card), scores in group_by(observations, lambda score: (score.supporter, score.card)).items():
        means.setdefault(name, {})[card] = float(np.mean([score.score for score in scores]))
    models = [name for name in means if name not in floors]
    pairs = []
    for first, second in combinations(sorted(models if len(models) > 1 else means), 2):
        shared = sorted(means[first].keys() & means[second].keys())
        ends = (first in floors) + (second in floors)
        if len(shared) > 1 and ends < 2:
            gaps = np.array([means[first][card] - means[second][card] for card in shared])
            pairs.append(Spread(first, second, len(shared), float(gaps.var(ddof=1)), _degrees(gaps), bool(ends)))
    return sorted(pairs, key=lambda score: -score.variance)


def _degrees(gaps: Floats) -> float:
    """The degrees of freedom of the variance of these differences [cards]: twice its square over its error variance
    (jackknife), since scores are not normal, with `_HEAVY` added for tails that no card has shown."""
    number, squares = len(gaps), (gaps - gaps.mean()) ** 2
    if number < 3 or not squares.sum() > 0:
        return 1.0
    without = (squares.sum() - squares * number / (number - 1)) / (number - 2)
    error = (number - 1) / number * float(jackknife_error(without)) ** 2
    return min(2 / (error / float(gaps.var(ddof=1)) ** 2 + _HEAVY / number), number - 1.0)


# --- how many cards a difference needs -------------------------------------------------------------------------------------

_SLICES = (np.arange(40) + 0.5) / 40  # quantiles of a variance that a pilot has estimated
_FAR = 9.0  # standard errors beyond which the test shows every difference, so the noncentral t is not evaluated there
_MANY = 60  # cards above which only their square root matters
MOST = 2**19


def _chi_square(shares: Floats, degrees: float) -> Floats:
    """Quantiles of the chi-square distribution."""
    return np.asarray(2 * gammaincinv(degrees / 2, shares), dtype=np.float64)


@cache
def _kept_off_zero(cards: int) -> tuple[Floats, Floats]:
    """Log(spread × √cards), and how many standard errors from 0 a mean difference must then lie for its interval
    (`paired.differences`) to exclude 0. With many cards it depends on nothing else."""
    rows = ndtri((np.arange(cards) + 0.5) / cards)[:, None] * np.geomspace(0.05, 1000, 40)
    spread, root = rows.std(axis=0, ddof=1), cards**0.5
    every = np.ones(rows.shape)
    draws = smoothed_means(rows, every, gap_levels(POINTS), sides=2)
    own = smoothed_means(every, every, np.zeros(1), sides=2)  # the weight of the observed cards
    ends = np.percentile(draws / own, [2.5, 97.5], axis=0)
    return np.log(spread * root), (ends[1] - ends[0]) / 2 * root / spread


def shown_with(
    difference: float, variance: float, cards: int, alpha: float, degrees: float | None = None, staying: float = 0.0
) -> float:
    """The share (0–1) of studies of so many cards in which a difference is significant: by Student's t at `alpha`, with an
    interval that excludes 0. `variance` is that of a card's difference; if it was estimated, with so many `degrees` of freedom,
    the share is the mean over its possible true values, which is what a plan delivers over many pilots (Julious and Owen 2006).
    `staying` is an error variance that more cards do not shrink."""
    within = np.array([variance]) if degrees is None else degrees * variance / _chi_square(_SLICES, degrees)
    spread = np.sqrt(within + staying * cards)
    if not spread.all():
        return 1.0
    root = np.sqrt(cards)
    least = np.maximum(stdtrit(cards - 1, 1 - alpha / 2), np.interp(np.log(spread * root), *_kept_off_zero(min(cards, _MANY))))
    distance = abs(difference) * root / spread
    shown = 1 - nctdtr(cards - 1, np.minimum(distance, least + _FAR), least)
    return float(np.where(distance > least + _FAR, 1.0, shown).mean())


def cards_needed(
    difference: float, variance: float, alpha: float, power: float, degrees: float | None = None, staying: float = 0.0
) -> int | None:
    """The smallest number of cards (at least 3) with which `shown_with` reaches `power`; None if `MOST` are too few, or without
    variance, which says nothing about more cards."""
    if variance == 0 or difference == 0:
        return None
    numbers = range(3, MOST + 1)
    place = bisect_left(numbers, power, key=lambda cards: shown_with(difference, variance, cards, alpha, degrees, staying))
    return numbers[place] if place < len(numbers) else None


def least_shown(variance: float, cards: int, alpha: float, power: float, degrees: float | None = None) -> float | None:
    """The smallest difference (to a hundredth of a point) shown in a share `power` of studies; None if none on the scale is."""
    points = np.arange(1, 10_001) / 100
    place = bisect_left(points, power, key=lambda point: shown_with(float(point), variance, cards, alpha, degrees))
    return float(points[place]) if place < len(points) else None


# --- looks at a run that goes on until its differences are decided --------------------------------------------------------


GROWTH = 1.5  # ratio of the cards of a look to those of the previous one
_REACH, _STEPS = 8.0, 8001  # the grid of the statistic: range in final standard errors, and points


@dataclass(frozen=True)
class Looks:
    """The numbers of cards, over all languages, at which a run is looked at; the last is all cards.

    Stopping as soon as something is significant (`--until decided`) finds a difference between equal models in far more than 5
    of 100 runs. So the looks are planned, and the 5 % are spent on them in proportion to the cards (Lan and DeMets 1983, with
    the linear spending function of Kim and DeMets 1987). The joint distribution of one difference at all looks turns what a
    look may spend into the level of its tests and intervals; levels for normal statistics also serve for Student's t (Jennison
    and Turnbull 2000, section 3.8). Within a look, Holm's correction runs over all pairs. Intervals at these levels cover the
    truth at all looks together in 95 of 100 runs, wherever the run stops (`tests.bench known-truth --only looks`)."""

    cards: tuple[int, ...]

    @classmethod
    def plan(cls, available: Sequence[int]) -> tuple[Looks, list[int]]:
        """The looks for the `available` cards of each language, and the limit of cards per language at each look. The first has
        `FEWEST_PLANNED` cards, below which nothing is decided; each later one has `GROWTH` times the cards per language."""
        maximum = max(available)
        limit = next((n for n in range(1, maximum) if sum(min(n, own) for own in available) >= FEWEST_PLANNED), maximum)
        limits = [limit]
        while limits[-1] < maximum:
            limits.append(min(math.ceil(limits[-1] * GROWTH), maximum))
        return cls(tuple(sum(min(n, own) for own in available) for n in limits)), limits

    @cached_property
    def levels(self) -> list[float]:
        """The level of tests and intervals at each look: 1 minus the error rate of a single test.

        With B a Brownian motion and t the share of the cards, P(|B(t)| / √t exceeds the bound of this look, but of no earlier
        one) is 5 % of the share of new cards. The density of B within all bounds is carried from look to look on a grid."""
        shares = np.array(self.cards) / self.cards[-1]
        grid = np.linspace(-_REACH, _REACH, _STEPS)
        step, levels = grid[1] - grid[0], []
        density, before = np.zeros(_STEPS), 0.0
        for share in shares:
            spread = np.sqrt(share - before)
            moved = np.exp(-((grid / spread) ** 2) / 2) / (spread * np.sqrt(2 * np.pi))
            density = np.convolve(density, moved, "same") * step if before else moved
            tails = (np.cumsum(density[::-1])[::-1] - density / 2) * step * 2  # beyond a point, on both sides
            upper = slice(_STEPS // 2, None)
            bound = float(np.interp(-ALPHA * (share - before), -tails[upper], grid[upper]))
            density[np.abs(grid) > bound] = 0
            levels.append(1 - 2 * float(ndtr(-bound / np.sqrt(share))))
            before = share
        return levels

    def level_at(self, cards: int) -> float:
        """The level at the look that so many cards belong to."""
        return next((level for limit, level in zip(self.cards, self.levels, strict=True) if cards <= limit), LEVEL)
