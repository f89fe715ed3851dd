"""The draws behind every interval: rows (cards, dialogues) are drawn whole, so that all observations of a row stay together.

- `smoothed_means` is for means of bounded scores, shares included: averages, their differences, accuracies. A percentile
  bootstrap of few scores is too narrow, and has no width at all if all of them are equal. This one is a Bayesian bootstrap with
  Dirichlet weights of the rows, and of half an unseen row that may have any level of the scale, in a difference on each side.
  It was chosen among other intervals by its coverage (`python -m tests.bench coverage`; docs/measurements.md has the table).
- `resampled_means` is the plain bootstrap, for anything but means of bounded scores: correlations, corpus BLEU, perplexity.

Both are followed by `interval`, the percentiles of the draws.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.tables import Estimate

RESAMPLES = 2000
LEVEL = 0.95
SEED = 20240619
UNSEEN = 0.5  # unseen rows: the weight of the scale's levels compared with the observed rows
SMOOTHED = "95 % smoothed Bayesian bootstrap"  # the name of `smoothed_means` in tables
PERCENTILE = "95 % percentile bootstrap"  # the name of intervals from `resampled_means` and other resamples
_BATCH = 200  # resamples drawn at a time: limits memory at 8,500 rows
_KEPT = 1000  # rows up to which the weights of all draws are kept (16 MB): a report asks for the same ones dozens of times
_MANY = 100  # rows from which the shape of the weights changes an interval's width by less than half a per cent

Floats = NDArray[np.float64]


def scale_levels(low: float, high: float) -> Floats:
    """Five levels from a scale's lowest to its highest score: the possible scores of an unseen row."""
    return np.linspace(low, high, 5)


def gap_levels(levels: Floats) -> Floats:
    """All differences of two scores with these levels."""
    return np.subtract.outer(levels, levels).ravel()


POINTS = scale_levels(0, 100)
BELOW = scale_levels(-100, 100)  # if negative points may outweigh positive ones
SHARES = np.array([0.0, 1.0])  # for events that occur or not


def smoothed_means(sums: Floats, counts: Floats, levels: Floats, seed: int = SEED, blocks: int = 1, sides: int = 1) -> Floats:
    """Column means of bounded scores in `RESAMPLES` draws, [RESAMPLES, columns]; NaN in columns without observations.

    `sums` and `counts` are [rows, columns]: the sum and the number of a row's observations. In a draw, each of n rows has the
    weight Gamma(1 − 1/n), which spreads the draws of few rows further. An unseen row, of a column's usual size and with a
    random level of `levels` in all columns, has the weight Gamma(`UNSEEN` · `sides`); two levels, as in `SHARES`, count as two
    sides. Each of the consecutive `blocks` of columns draws its own level, so that levels do not cancel in differences. The
    same number of rows and the same seed give the same weights, so that means over the same rows compare in pairs.
    """
    size = len(sums)
    # For all-or-nothing rows, half a row is too little: 12 hits of 12 then had a lower end of 87 %.
    batches = (_kept if size <= _KEPT else _weights)(seed, size, UNSEEN * (2 if len(levels) == 2 else sides), RESAMPLES)
    # A generator of its own, so that the weights do not depend on the levels.
    level = np.random.default_rng((seed, 1)).choice(levels, (RESAMPLES, blocks)).repeat(sums.shape[1] // blocks, axis=1)
    rows_with = (counts > 0).sum(axis=0)
    usual = np.divide(counts.sum(axis=0), rows_with, out=np.zeros(len(rows_with)), where=rows_with > 0)

    means = np.empty((RESAMPLES, sums.shape[1]))
    for batch, weights, unseen in batches:
        more = unseen * usual
        totals = weights @ counts + more
        above = weights @ sums + level[batch] * more
        with np.errstate(invalid="ignore"):  # 0 / 0 in columns without observations
            np.divide(above, totals, out=means[batch])
    return means


def _weights(seed: int, size: int, unseen: float, draws: int) -> Iterator[tuple[slice, Floats, Floats]]:
    """Of each batch of draws: its place, the weights of the rows [batch, size] and of the unseen row [batch, 1]."""
    rng = np.random.default_rng(seed)
    beside = rng.standard_gamma(unseen, (draws, 1))
    for start in range(0, draws, _BATCH):
        batch = slice(start, min(start + _BATCH, draws))
        drawn = (len(beside[batch]), size)
        yield (
            batch,
            rng.standard_exponential(drawn) if size >= _MANY else rng.standard_gamma(1 - 1 / size, drawn),
            beside[batch],
        )


@lru_cache(maxsize=2)
def _kept(seed: int, size: int, unseen: float, draws: int) -> list[tuple[slice, Floats, Floats]]:
    return list(_weights(seed, size, unseen, draws))


def resampled_means(sums: Floats, counts: Floats, seed: int = SEED) -> Floats:
    """Column means of `RESAMPLES` resamples of the rows, [RESAMPLES, columns]; NaN where a resample has no observation of a
    column. `sums`, `counts` and `seed` are as in `smoothed_means`: means over the same rows compare in pairs."""
    rng = np.random.default_rng(seed)
    size = len(sums)
    means = []
    for start in range(0, RESAMPLES, _BATCH):
        rows = min(_BATCH, RESAMPLES - start)
        picks = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
        weights = np.bincount(picks.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float64)
        totals = weights @ counts
        means.append(np.divide(weights @ sums, totals, out=np.full_like(totals, np.nan), where=totals > 0))
    return np.concatenate(means)


def interval(draws: Floats, level: float = LEVEL) -> tuple[float, float]:
    """The percentile interval of a column's draws without NaN; NaN if all of them are."""
    low, high = intervals(draws[:, None], level)[:, 0].tolist()
    return low, high


def intervals(draws: Floats, level: float = LEVEL) -> Floats:
    """The `interval` of every column of [draws, columns], as [2, columns], in a third of the time of `np.percentile`."""
    ordered = np.sort(np.ascontiguousarray(draws.T), axis=1)  # NaN comes last
    defined = ordered.shape[1] - np.isnan(ordered).sum(axis=1)
    tail = 100 * (1 - level) / 2
    places = np.array([[tail], [100 - tail]]) / 100 * np.maximum(defined - 1, 0)
    below = places.astype(np.intp)
    columns, part = np.arange(len(ordered)), places - below
    low, high = ordered[columns, below], ordered[columns, np.minimum(below + 1, np.maximum(defined - 1, 0))]
    return np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))


def estimate(mean: float, draws: Floats, n: int, rows: int, level: float = LEVEL) -> Estimate:
    """A mean of n observations in this many rows, with the interval of its draws; NaN becomes None.

    There is no interval for a single row, nor for two rows whose draws have at most three values, as resamples of two have. The
    interval always contains the mean: if all scores are the scale's highest, draws may end a rounding error below it.
    """
    if np.isnan(mean):
        return Estimate(None, None, None, n)
    if rows < 2 or np.isnan(draws).all() or (rows == 2 and len(np.unique(draws.round(9))) <= 3):
        return Estimate(float(mean), None, None, n)
    low, high = interval(draws, level)
    return Estimate(float(mean), min(low, float(mean)), max(high, float(mean)), n)


def estimates(means: Floats, draws: Floats, n: ArrayLike, rows: ArrayLike, level: float = LEVEL) -> list[Estimate]:
    """The `estimate` of every column of [draws, columns]."""
    columns = zip(means.tolist(), draws.T, np.asarray(n).tolist(), np.asarray(rows).tolist(), strict=True)
    return [
        Estimate(mean, min(low, mean), max(high, mean), int(size))
        if on > 2 and not np.isnan(mean + low)
        else estimate(mean, column, int(size), int(on), level)
        for (mean, column, size, on), (low, high) in zip(columns, intervals(draws, level).T.tolist(), strict=True)
    ]
