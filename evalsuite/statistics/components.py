"""Where the variance of a score comes from (a generalizability study), how much every two supporters differ from card to
card, and how many cards a wanted difference needs.

The model is random and crossed: a score is a mean plus an effect of supporter, card, seeker and judge, of every crossing of
them, and of the draw (the dialogue itself, one of several trials); what is left is the judge's own noise on a dialogue. The
components are estimated from sums of squares (Henderson, 1953, method 1), which are unbiased for unbalanced data, too, and need
counts alone. statsmodels' MixedLM fits the same model, but as one group of all scores, whose matrix it inverts: at ESC-Eval's
9,170 dialogues that is 670 MB and hours. It is the oracle of the tests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, nctdtr, ndtri, stdtrit

from core.grouping import group_by
from core.statistics.bootstrap import POINTS, Floats, gap_levels, smoothed_means
from core.statistics.reliability import jackknife_error

FACETS = ("supporter", "card", "seeker", "judge")
DRAW = "draw"
CROSSED = " × "
GROUPS = 40  # of cards (or users), left out in turn by the jackknife
FEWEST = 5  # of them: with fewer an interval says nothing
_SHIFT = 1.5  # chosen by simulated coverage (docs/measurements.md), as is the scale
Codes = NDArray[np.int64]


class Observation(NamedTuple):
    """One judge's average (0–100) of one dialogue. `trial` numbers dialogues of one supporter, card and seeker."""

    supporter: str
    card: str
    seeker: str
    judge: str
    trial: str
    score: float


@dataclass(frozen=True)
class Component:
    """One source of variance. `facets` are those that it crosses; a draw has those that it is nested in, and `DRAW`.
    `variance` may come out below 0 where it is small, and then counts as 0; `low` and `high` are its 95 % interval for other
    cards like these. There is none for fewer than `FEWEST` cards, nor for what does not cross the card: so few supporters or
    judges say little of others."""

    name: str
    facets: frozenset[str]
    variance: float
    low: float | None
    high: float | None
    levels: int

    @property
    def counted(self) -> float:
        """The variance as it is counted on."""
        return max(self.variance, 0.0)


@dataclass(frozen=True)
class Components:
    """The components of one language's scores. `levels` is how many supporters, cards, seekers and judges there are, `trials`
    the mean number of dialogues of one supporter, card and seeker."""

    parts: list[Component]
    levels: Mapping[str, int]
    trials: float
    scores: int
    mean: float

    def difference(self, trials: float) -> tuple[float, float]:
        """The error variance of the difference of two supporters with so many trials: what shrinks with the number of cards,
        for one card, and what does not, where the finding is to apply to other judges and seekers like these."""
        numbers = {**self.levels, DRAW: trials, "card": 1}
        shrinking = staying = 0.0
        for part in self.parts:
            others = part.facets - {"supporter"}
            if "supporter" in part.facets and others:
                variance = 2 * part.counted / float(np.prod([numbers[name] for name in others]))
                shrinking, staying = (shrinking + variance, staying) if "card" in others else (shrinking, staying + variance)
        return shrinking, staying


def components(observations: Sequence[Observation]) -> Components:
    """The components of scores in one language. Effects that the design does not separate are one, named after all of them."""
    scores = np.array([one.score for one in observations])
    effects = _effects(observations)
    variances = _henderson(scores, [codes for _, _, codes in effects])
    cards = _codes([one.card for one in observations])
    bounds = _intervals(scores, [codes for _, _, codes in effects], variances, cards)
    parts = [
        Component(name, facets, float(variance), *(around if "card" in facets else (None, None)), int(codes.max()) + 1)
        for (name, facets, codes), variance, around in zip(effects, variances, bounds, strict=True)
    ]
    levels = {facet: len({getattr(one, facet) for one in observations}) for facet in FACETS}
    dialogues = {(one.supporter, one.card, one.seeker, one.trial) for one in observations}
    cells = {dialogue[:3] for dialogue in dialogues}
    return Components(parts, levels, len(dialogues) / len(cells), len(observations), float(scores.mean()))


def _effects(observations: Sequence[Observation]) -> list[tuple[str, frozenset[str], Codes]]:
    """Name, facets and levels (of every score) of each effect that the design separates, from main effects to what is left."""
    varying = [facet for facet in FACETS if len({getattr(one, facet) for one in observations}) > 1]
    keys: list[tuple[str, frozenset[str], Sequence[object]]] = [
        (CROSSED.join(some), frozenset(some), [tuple(getattr(one, name) for name in some) for one in observations])
        for size in range(1, len(varying) + 1)
        for some in combinations(varying, size)
    ]
    draws = [one._replace(judge="", score=0) for one in observations]
    keys.append((DRAW, frozenset({*varying, DRAW}) - {"judge"}, draws))
    keys.append(("rest", frozenset({*varying, DRAW}), [one._replace(score=0) for one in observations]))
    effects: list[tuple[str, frozenset[str], Codes]] = []
    for name, facets, key in keys:
        codes = _codes(key)
        same = next((place for place, (_, _, known) in enumerate(effects) if np.array_equal(known, codes)), None)
        if same is None:
            effects.append((name, facets, codes))
        else:  # they differ in what the design has one level of: one effect, which shrinks only with what both shrink with
            effects[same] = (f"{effects[same][0]}, {name}", effects[same][1] & facets, codes)
    return effects


def _codes(keys: Sequence[object]) -> Codes:
    """Levels as numbers from 0, in order of appearance."""
    known: dict[object, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys])


def _henderson(scores: Floats, effects: Sequence[Codes]) -> Floats:
    """Variance components of the effects, of which the last has a level for every score.

    For each effect the sum over its levels of (sum of scores)² / n is set equal to what it is expected to be: n µ², and for
    each component the sum over levels of Σ n_ab² / n_a, where n_ab counts scores on level a of one effect and b of the other.
    """
    total, centred = len(scores), scores - scores.mean()  # the mean plays no part, and large numbers lose digits
    whole = np.zeros(total, dtype=np.int64)
    rows, sums = [], []
    for one in (whole, *effects):
        counts = np.bincount(one)
        sums.append(float((np.bincount(one, weights=centred) ** 2 / counts).sum()))
        row = [float(total)]
        for other in effects:
            pairs, both = np.unique(one * (int(other.max()) + 1) + other, return_counts=True)
            row.append(float((both**2 / counts[pairs // (int(other.max()) + 1)]).sum()))
        rows.append(row)
    result: Floats = np.linalg.lstsq(np.array(rows), np.array(sums), rcond=None)[0][1:]
    return result


def _intervals(
    scores: Floats, effects: Sequence[Codes], variances: Floats, cards: Codes
) -> list[tuple[float | None, float | None]]:
    """95 % intervals of the components: cards are left out in turn, in `GROUPS` groups where there are more."""
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
    """95 % intervals of variances, or of ratios of them, from the same with one group left out each [groups, ...].

    Student's t on the scale of the cube root, on which a variance is nearly normal (Wilson and Hilferty): on its own scale such
    an interval covers the truth in 88 to 96 % of simulated runs of 12 cards. The root is taken `_SHIFT` standard errors above
    the figure, which may be near 0 or below it, where the root is too steep: an interval of a small component was up to
    four times as wide, and held the truth in 83 %.
    """
    shift = _SHIFT * jackknife_error(without)
    half = stdtrit(len(without) - 1, 0.975) * jackknife_error(np.cbrt(without + shift))
    middle = np.cbrt(seen + shift)
    return (middle - half) ** 3 - shift, (middle + half) ** 3 - shift


# --- how much a pair differs from card to card -----------------------------------------------------------------------------

FEWEST_PLANNED = 12  # cards of both: with fewer a plan keeps its promise in no simulated study of skewed scores
FEWEST_BOUNDED = 30  # and with fewer its interval does not (docs/measurements.md)
_HEAVY = 2.0  # what the tails that no card has shown add to the error of a variance, in units of variance² / cards


@dataclass(frozen=True)
class Spread:
    """How much the difference of two supporters varies between the cards that both have.

    `variance` (points²) is with the run's own trials. Its `degrees` of freedom are twice its square by its error variance
    (jackknife), since scores have other tails than normal ones; `_HEAVY` is added for tails that no card has shown. Against a
    `floor`, whose scores hardly vary, this is not enough for an interval, though it is for a plan.
    """

    first: str
    second: str
    cards: int
    variance: float
    degrees: float
    floor: bool = False

    @property
    def enough(self) -> bool:
        """Whether there are cards enough to plan from. A floor's pair, whose scores are skewed, takes more."""
        return self.cards >= (FEWEST_BOUNDED if self.floor else FEWEST_PLANNED)

    def bounds(self) -> tuple[float, float] | None:
        """What the true variance is as a multiple of the one seen, at 95 %; None for fewer than `FEWEST_BOUNDED` cards and for
        floors."""
        if self.cards < FEWEST_BOUNDED or self.floor:
            return None
        high, low = self.degrees / _chi_square(np.array([0.025, 0.975]), self.degrees)
        return float(low), float(high)


def spreads(observations: Sequence[Observation], floors: Collection[str] = ()) -> list[Spread]:
    """Of every pair that is asked about and has two cards in common, the widest first: pairs of models, and where there is but
    one, this model with the floors."""
    means: dict[str, dict[str, float]] = {}
    for (name, card), scores in group_by(observations, lambda one: (one.supporter, one.card)).items():
        means.setdefault(name, {})[card] = float(np.mean([one.score for one in scores]))
    models = [name for name in means if name not in floors]
    found = []
    for first, second in combinations(sorted(models if len(models) > 1 else means), 2):
        shared = sorted(means[first].keys() & means[second].keys())
        ends = (first in floors) + (second in floors)
        if len(shared) > 1 and ends < 2:
            gaps = np.array([means[first][card] - means[second][card] for card in shared])
            found.append(Spread(first, second, len(shared), float(gaps.var(ddof=1)), _degrees(gaps), bool(ends)))
    return sorted(found, key=lambda one: -one.variance)


def _degrees(gaps: Floats) -> float:
    """How many degrees of freedom the variance of these differences has."""
    number, squares = len(gaps), (gaps - gaps.mean()) ** 2
    if number < 3 or not squares.sum() > 0:
        return 1.0
    without = (squares.sum() - squares * number / (number - 1)) / (number - 2)
    error = (number - 1) / number * float(jackknife_error(without)) ** 2
    return min(2 / (error / float(gaps.var(ddof=1)) ** 2 + _HEAVY / number), number - 1.0)


# --- how many cards a difference needs -------------------------------------------------------------------------------------

_SLICES = (np.arange(40) + 0.5) / 40  # of the distribution of a variance that is known by a pilot
_FAR = 9.0  # standard errors beyond which the test shows every difference: the noncentral distribution is not asked there
_MANY = 60  # cards, from which on their number says no more than the root of it
MOST = 2**19


def _chi_square(shares: Floats, degrees: float) -> Floats:
    """Quantiles of chi-square."""
    return np.asarray(2 * gammaincinv(degrees / 2, shares), dtype=np.float64)


@cache
def _kept_off_zero(cards: int) -> tuple[Floats, Floats]:
    """How many standard errors a mean difference must lie from 0 for its interval (`paired.differences`) to leave 0 out, by the
    logarithm of the spread times the root of the cards. On many cards it depends on no more than that."""
    rows = ndtri((np.arange(cards) + 0.5) / cards)[:, None] * np.geomspace(0.05, 1000, 40)
    spread, root = rows.std(axis=0, ddof=1), cards**0.5
    every = np.ones(rows.shape)
    draws = smoothed_means(rows, every, gap_levels(POINTS), sides=2)
    own = smoothed_means(every, every, np.zeros(1), sides=2)  # the weight of the cards that were seen
    ends = np.percentile(draws / own, [2.5, 97.5], axis=0)
    return np.log(spread * root), (ends[1] - ends[0]) / 2 * root / spread


def shown_with(
    difference: float, variance: float, cards: int, alpha: float, degrees: float | None = None, staying: float = 0.0
) -> float:
    """The share (0–1) of studies of so many cards in which a difference is significant: by Student's t at
    `alpha`, with an interval that leaves out 0.

    `variance` is that of a card's difference. Where it was estimated with so many `degrees` of freedom, the share is the mean
    over what it may truly be, and so what a plan delivers over many pilots (Julious and Owen 2006). `staying` is an error
    variance that cards do not shrink.
    """
    within = np.array([variance]) if degrees is None else degrees * variance / _chi_square(_SLICES, degrees)
    spread = np.sqrt(within + staying * cards)
    if not spread.all():
        return 1.0
    root = np.sqrt(cards)
    least = np.maximum(stdtrit(cards - 1, 1 - alpha / 2), np.interp(np.log(spread * root), *_kept_off_zero(min(cards, _MANY))))
    away = abs(difference) * root / spread
    shown = 1 - nctdtr(cards - 1, np.minimum(away, least + _FAR), least)
    return float(np.where(away > least + _FAR, 1.0, shown).mean())


def cards_needed(
    difference: float, variance: float, alpha: float, power: float, degrees: float | None = None, staying: float = 0.0
) -> int | None:
    """The least number of cards (at least 3) with which a difference is shown so often (`shown_with`); None where `MOST` are
    too few, and where no variance was seen, which says nothing of more cards."""
    if variance == 0 or difference == 0:
        return None
    numbers = range(3, MOST + 1)
    place = bisect_left(numbers, power, key=lambda cards: shown_with(difference, variance, cards, alpha, degrees, staying))
    return numbers[place] if place < len(numbers) else None


def least_shown(variance: float, cards: int, alpha: float, power: float, degrees: float | None = None) -> float | None:
    """The least difference (to a hundredth of a point) that so many cards show so often; None where none of the scale is."""
    points = np.arange(1, 10_001) / 100
    place = bisect_left(points, power, key=lambda one: shown_with(float(one), variance, cards, alpha, degrees))
    return float(points[place]) if place < len(points) else None
