"""Where the variance of a score comes from (a generalizability study), and how many cards a wanted difference needs.

The model is random and crossed: a score is a mean plus an effect of supporter, card, seeker and judge, of every crossing of
them, and of the draw (the dialogue itself, one of several trials); what is left is the judge's own noise on a dialogue. The
components are estimated from sums of squares (Henderson, 1953, method 1), which are unbiased for unbalanced data, too, and need
counts alone. statsmodels' MixedLM fits the same model, but as one group of all scores, whose matrix it inverts: at ESC-Eval's
9,170 dialogues that is 670 MB and hours. It is the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from core.statistics.bootstrap import Floats
from core.statistics.reliability import jackknife_error

FACETS = ("supporter", "card", "seeker", "judge")
DRAW = "draw"
CROSSED = " × "
_GROUPS = 40  # of cards, left out in turn by the jackknife
_FEWEST = 5  # cards: with fewer an interval says nothing
_SHIFT = 1.5  # chosen by simulated coverage (docs/measurements.md), as is the scale
Codes = NDArray[np.int64]


class Observation(NamedTuple):
    """One judge's average (0–100) of one dialogue. `trial` tells dialogues of one supporter, card and seeker apart."""

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
    cards like these. There is none for fewer than `_FEWEST` cards, nor for what does not cross the card: so few supporters or
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

    def difference(self, trials: float, judges: int, seekers: int, other_judges: bool) -> tuple[float, float]:
        """The error variance of the difference of two supporters on the same cards: (what shrinks with the number of cards, for
        one card, what does not).

        What a supporter's crossing with judges or seekers adds is error only where the finding is to hold for other ones than
        these (`other_judges`).
        """
        numbers = {"judge": judges, "seeker": seekers, DRAW: trials}
        shrinking = staying = 0.0
        for part in self.parts:
            others = part.facets - {"supporter"}
            if "supporter" not in part.facets or not others:
                continue
            variance = 2 * part.counted / float(np.prod([numbers.get(name, 1) for name in others]))
            if "card" in others:
                shrinking += variance
            elif other_judges:
                staying += variance
        return shrinking, staying


def components(observations: Sequence[Observation]) -> Components:
    """The components of scores in one language. Effects that the design cannot tell apart are one, named after all of them."""
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
    """Name, facets and levels (of every score) of each effect that can be told apart, from main effects to what is left."""
    varying = [facet for facet in FACETS if len({getattr(one, facet) for one in observations}) > 1]
    keys: list[tuple[str, frozenset[str], Sequence[object]]] = []
    for size in range(1, len(varying) + 1):
        for some in combinations(varying, size):
            keys.append(
                (CROSSED.join(some), frozenset(some), [tuple(getattr(one, name) for name in some) for one in observations])
            )
    held = frozenset(facet for facet in varying if facet != "judge")
    draws = [(one.supporter, one.card, one.seeker, one.trial) for one in observations]
    keys.append((DRAW, held | {DRAW}, draws))
    rest = [(*draw, one.judge) for draw, one in zip(draws, observations, strict=True)]
    keys.append(("rest", frozenset(varying) | {DRAW}, rest))
    effects: list[tuple[str, frozenset[str], Codes]] = []
    for name, facets, key in keys:
        codes = _codes(key)
        same = next((place for place, (_, _, known) in enumerate(effects) if np.array_equal(known, codes)), None)
        if same is None:
            effects.append((name, facets, codes))
        else:  # told apart by what the design has one level of: one effect, which shrinks only with what both shrink with
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
    return np.linalg.lstsq(np.array(rows), np.array(sums), rcond=None)[0][1:]


def _intervals(
    scores: Floats, effects: Sequence[Codes], variances: Floats, cards: Codes
) -> list[tuple[float | None, float | None]]:
    """95 % intervals of the components: cards are left out in turn, in `_GROUPS` groups where there are more.

    Student's t on the scale of the cube root, on which a variance is nearly normal (Wilson and Hilferty): on its own scale such
    an interval holds the truth in 88 to 96 % of simulated runs of 12 cards. The root is taken `_SHIFT` standard errors above
    the component, which may be near 0 or below it, where the root is too steep: an interval of a small component was up to
    four times as wide, and held the truth in 83 %.
    """
    groups = cards % _GROUPS
    number = int(groups.max()) + 1
    if number < _FEWEST:
        return [(None, None)] * len(effects)
    without = []
    for group in range(number):
        kept = groups != group
        without.append(_henderson(scores[kept], [np.unique(codes[kept], return_inverse=True)[1] for codes in effects]))
    shift = _SHIFT * jackknife_error(np.array(without))
    half = stdtrit(number - 1, 0.975) * jackknife_error(np.cbrt(without + shift))
    middle = np.cbrt(variances + shift)
    return list(zip(((middle - half) ** 3 - shift).tolist(), ((middle + half) ** 3 - shift).tolist(), strict=True))


# --- how many cards a difference needs -------------------------------------------------------------------------------------


def shown_with(difference: float, shrinking: float, staying: float, cards: float, alpha: float) -> float:
    """The power (0–1) of a paired t test of a difference on so many cards; error variances as `Components.difference` has
    them."""
    from statsmodels.stats.power import TTestPower

    spread = float(np.sqrt(shrinking + staying * cards))
    return 1.0 if spread == 0 else float(TTestPower().power(abs(difference) / spread, cards, alpha))


MOST = 10**6


def cards_needed(difference: float, shrinking: float, staying: float, alpha: float, power: float) -> int | None:
    """The least number of cards (at least 3) with which a difference is shown so often; None where a million are too few, and
    where no variance was seen, which says nothing of more cards."""
    if shrinking == staying == 0:
        return None
    low, high = 2, 4
    while shown_with(difference, shrinking, staying, high, alpha) < power:
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = shown_with(difference, shrinking, staying, middle, alpha) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def least_shown(shrinking: float, staying: float, cards: int, alpha: float, power: float) -> float:
    """The least difference that so many cards show so often."""
    from statsmodels.stats.power import TTestPower

    effect = TTestPower().solve_power(None, cards, alpha, power)
    return float(effect) * float(np.sqrt(shrinking + staying * cards))
