"""Spearman's, Pearson's and Kendall's (tau-b) coefficients, with bootstrap intervals, over many selections of pairs at once.

A selection weighs whole groups of pairs: a single group (within a sample), all groups once (the data set), or a bootstrap
resample. Calling scipy for each of a hundred thousand selections would take a millisecond each.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from core.statistics.accuracy import ratio
from core.statistics.bootstrap import RESAMPLES, SEED, Floats, estimate, resampled_means
from core.tables import Estimate

Level = Literal["sample", "dataset"]
LEVELS: tuple[Level, ...] = get_args(Level)
Coefficient = Literal["spearman", "pearson", "kendall"]
COEFFICIENTS: tuple[Coefficient, ...] = get_args(Coefficient)
_BATCH = 200  # selections at a time: bounds memory at 8,500 pairs
_FEW = 100  # distinct values on one side: below this, Kendall's tau for all selections at once is faster than scipy


def figures(x: Floats, y: Floats, place: NDArray[np.intp], level: Level) -> dict[Coefficient, tuple[Estimate, int, int]]:
    """{coefficient: (estimate, undefined samples, resamples left out)} of pairs `x`, `y` [n] with `place` [n], each pair's
    sample as an index from 0. There is no interval for a single sample, nor when every resample is undefined."""
    size = int(place.max()) + 1 if len(place) else 0
    if level == "sample":
        within = np.full((size, len(COEFFICIENTS)), np.nan)
        several = np.flatnonzero(np.bincount(place, minlength=size) > 1)
        singles = np.zeros((len(several), size))
        singles[np.arange(len(several)), several] = 1
        within[several] = coefficients(x, y, place, singles)
        defined = ~np.isnan(within)
        filled, rows = np.where(defined, within, 0.0), defined.sum(axis=0)
        points = ratio(filled.sum(axis=0), rows.astype(np.float64))
        ns, undefined = rows, size - rows
    else:
        points = coefficients(x, y, place, np.ones((1, size)))[0]
        ns, undefined, rows = (np.full(len(COEFFICIENTS), number) for number in (len(x), 0, size))
    drawn = (rows > 1) & ~np.isnan(points)
    draws = np.full((0, len(COEFFICIENTS)), np.nan)
    if drawn.any():
        if level == "sample":
            draws = resampled_means(filled, defined.astype(float))
        else:  # of the samples, each with all its pairs
            times = np.random.default_rng(SEED).multinomial(size, np.full(size, 1 / size), RESAMPLES)
            draws = coefficients(x, y, place, times.astype(np.float64))
    left_out = np.where(drawn, np.isnan(draws).sum(axis=0), 0)
    cells = (estimate(points[i], draws[:, i], int(ns[i]), int(rows[i])) for i in range(len(COEFFICIENTS)))
    return dict(zip(COEFFICIENTS, zip(cells, undefined.tolist(), left_out.tolist(), strict=True), strict=True))


def coefficients(x: Floats, y: Floats, place: NDArray[np.intp], weights: Floats) -> Floats:
    """[selections, 3]: the three coefficients, −1 to 1, NaN where undefined (fewer than two pairs, or a constant side), of
    pairs `x`, `y` [n] with `place` [n], their groups as indices from 0. `weights` [selections, groups] are whole numbers: how
    often a selection contains a group."""
    result = np.full((len(weights), len(COEFFICIENTS)), np.nan)
    if not len(x):
        return result
    # Equal pairs are merged into one weighted pair: ratings take few distinct values, however many dialogues there are.
    pairs, which = np.unique(np.stack([x, y], axis=1), axis=0, return_inverse=True)
    which = which.reshape(-1)  # some versions of numpy keep the axis
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(pairs)))
    for start in range(0, len(weights), _BATCH):
        batch = weights[start : start + _BATCH]
        counts = np.add.reduceat(batch[:, place[order]], starts, axis=1)  # [batch, distinct pairs]
        used = counts.any(axis=0)
        if used.any():
            with np.errstate(all="ignore"):  # undefined coefficients come out as NaN
                result[start : start + _BATCH] = _coefficients(pairs[used, 0], pairs[used, 1], counts[:, used])
    return result


def _coefficients(x: Floats, y: Floats, weights: Floats) -> Floats:
    ranks_x, levels_x, ties_x, several_x = _ranks(x, weights)
    ranks_y, levels_y, ties_y, several_y = _ranks(y, weights)
    if min(levels_x.max(), levels_y.max()) < _FEW:
        everything = weights.sum(axis=1) ** 2
        net = _concordance(levels_x, levels_y, weights)
        kendall = net / np.sqrt((everything - ties_x) * (everything - ties_y))
    else:
        from scipy.stats import kendalltau

        sides = ((np.repeat(x, times), np.repeat(y, times)) for times in weights.astype(np.intp))
        kendall = np.array([kendalltau(*both, method="asymptotic").statistic for both in sides], dtype=np.float64)
    values = np.stack([_moment(ranks_x, ranks_y, weights), _moment(x[None], y[None], weights), kendall], axis=1)
    defined = (several_x & several_y)[:, None] & np.isfinite(values)
    return np.where(defined, np.clip(values, -1, 1), np.nan)


def _ranks(x: Floats, weights: Floats) -> tuple[Floats, NDArray[np.intp], Floats, NDArray[np.bool_]]:
    """Mean ranks [selections, pairs]; each pair's place among the distinct values [pairs]; the number of tied pairs
    [selections], counted in both orders and each pair with itself; whether there are two distinct values [selections]."""
    order = np.argsort(x, kind="stable")
    starts = np.flatnonzero(np.diff(x[order], prepend=-np.inf))
    totals = np.add.reduceat(weights[:, order], starts, axis=1)  # [selections, distinct values]
    levels = np.empty(len(x), dtype=np.intp)
    levels[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(x)))
    ranks = totals.cumsum(axis=1) - (totals - 1) / 2
    return ranks[:, levels], levels, (totals**2).sum(axis=1), (totals > 0).sum(axis=1) > 1


def _concordance(levels_x: NDArray[np.intp], levels_y: NDArray[np.intp], weights: Floats) -> Floats:
    """Concordant minus discordant pairs [selections], each counted in both orders.

    Goes up the levels of the side with fewer, keeping the weight so far at each level of the other side.
    """
    fewer, other = sorted((levels_x, levels_y), key=lambda levels: int(levels.max()))
    lower = np.zeros((len(weights), int(other.max()) + 1))
    net = np.zeros(len(weights))
    for level in range(int(fewer.max()) + 1):
        pairs = np.flatnonzero(fewer == level)
        up_to = lower.cumsum(axis=1)
        lead = 2 * up_to - lower - up_to[:, -1:]  # weight below a level minus weight above it
        net += (weights[:, pairs] * lead[:, other[pairs]]).sum(axis=1)
        lower[:, other[pairs]] += weights[:, pairs]  # pairs are distinct, so no place is repeated
    return 2 * net


def _moment(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's coefficient of each selection; `x` and `y` are [1 or selections, pairs]."""
    total = weights.sum(axis=1, keepdims=True)
    x, y = (side - (weights * side).sum(axis=1, keepdims=True) / total for side in (x, y))
    x, y = (side / np.abs(side).max(axis=1, keepdims=True) for side in (x, y))  # squares neither overflow nor vanish
    result: Floats = (weights * x * y).sum(axis=1) / np.sqrt((weights * x * x).sum(axis=1) * (weights * y * y).sum(axis=1))
    return result
