"""Draws behind every interval: rows (cards, dialogues) are drawn whole, so that what belongs to one row stays together.

- `smoothed_means` is for means of bounded scores, shares among them: all averages, their differences, accuracies. A percentile
  bootstrap of few scores is too narrow, and has no width at all where all of them are equal. This is a Bayesian bootstrap whose
  rows have Dirichlet weights, and beside them stands half a row that nobody has seen, which may have any level of the scale.
  Of a difference half a row of each side is unseen: with half of one, a supporter that fails in 8 of 100 dialogues was called
  different from an even one of the same mean in 12 % of boards of 18 cards (`python -m tests.bench known-truth`).
  It was chosen among other intervals by its coverage (`python -m tests.bench coverage`; docs/measurements.md has the table).
- `resampled_means` is the plain bootstrap, for what is no mean of bounded scores: correlations, BLEU of a corpus, perplexity.

Both end in `interval`, the percentiles of the draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.tables import Estimate

RESAMPLES = 2000
LEVEL = 0.95
SEED = 20240619
UNSEEN = 0.5  # rows that nobody has seen: how much the scale weighs beside the rows that were
SMOOTHED = "95 % smoothed Bayesian bootstrap"  # what tables call `smoothed_means`
PERCENTILE = "95 % percentile bootstrap"  # what they call the intervals of `resampled_means` and of other resamples
_BATCH = 200  # resamples drawn at a time: bounds memory at 8,500 rows
_MANY = 100  # rows, from which on the weights' shape makes less than half a per cent of an interval's width

Floats = NDArray[np.float64]


def scale_levels(low: float, high: float) -> Floats:
    """Five levels from a scale's lowest to its highest score: where a row that nobody has seen may lie."""
    return np.linspace(low, high, 5)


def gap_levels(levels: Floats) -> Floats:
    """The differences of two scores of which each may have any of these levels."""
    return np.subtract.outer(levels, levels).ravel()


POINTS = scale_levels(0, 100)
BELOW = scale_levels(-100, 100)  # where points that are taken off may outweigh those that are given
SHARES = np.array([0.0, 1.0])  # of what is right or wrong, there or not


def smoothed_means(sums: Floats, counts: Floats, levels: Floats, seed: int = SEED, blocks: int = 1, sides: int = 1) -> Floats:
    """Column means of bounded scores in `RESAMPLES` draws, [RESAMPLES, columns]; NaN where a column has no observation.

    `sums` and `counts` are [rows, columns]: the sum of a row's observations and their number (zero where it has none). In a
    draw each of n rows weighs Gamma(1 − 1/n), which spreads the draws of few rows further, and one row more, of a column's
    usual size and with one of `levels` in all columns, weighs Gamma(`UNSEEN` · `sides`): a difference has two sides; and
    where there are but two levels, as in `SHARES`, it weighs as much. Columns that come in `blocks` of one size, one after the
    other, have a level of its own in each block, so that it does not cancel in their differences. A row alone says nothing: its
    draws are the levels. The same number of rows and the same seed give the same weights, so that means over the same rows
    compare in pairs.
    """
    rng = np.random.default_rng(seed)
    # Where a row is all or nothing, half of one is too little: 12 hits of 12 then had a lower end of 87 %.
    unseen = rng.standard_gamma(UNSEEN * (2 if len(levels) == 2 else sides), (RESAMPLES, 1))
    # Drawn apart: weights are the same for all levels.
    level = np.random.default_rng((seed, 1)).choice(levels, (RESAMPLES, blocks)).repeat(sums.shape[1] // blocks, axis=1)
    size = len(sums)
    shape = 1 - 1 / size
    rows_with = (counts > 0).sum(axis=0)
    usual = np.divide(counts.sum(axis=0), rows_with, out=np.zeros(len(rows_with)), where=rows_with > 0)

    means = []
    for start in range(0, RESAMPLES, _BATCH):
        batch = slice(start, min(start + _BATCH, RESAMPLES))
        drawn = (len(unseen[batch]), size)
        weights = rng.standard_exponential(drawn) if size >= _MANY else rng.standard_gamma(shape, drawn)
        more = unseen[batch] * usual
        totals = weights @ counts + more
        above = weights @ sums + level[batch] * more
        means.append(np.divide(above, totals, out=np.full_like(totals, np.nan), where=totals > 0))
    return np.concatenate(means)


def resampled_means(sums: Floats, counts: Floats, seed: int = SEED) -> Floats:
    """Column means of `RESAMPLES` resamples of the rows, [RESAMPLES, columns]; NaN where a resample has nothing of a column.

    `sums` and `counts` as for `smoothed_means`, and the same of seeds: means over the same rows compare in pairs.
    """
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
    """The percentile interval of one column's draws, NaN left out (and NaN when all of them are)."""
    defined = draws[~np.isnan(draws)]
    if not len(defined):
        return float("nan"), float("nan")
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return float(low), float(high)


def intervals(draws: Floats, level: float = LEVEL) -> Floats:
    """The `interval` of every column of [draws, columns] as [2, columns]: numpy sorts all of them at once."""
    tail = 100 * (1 - level) / 2
    if not np.isnan(draws).any():
        ends: Floats = np.percentile(draws, [tail, 100 - tail], axis=0)
        return ends
    return np.array([interval(column, level) for column in draws.T]).reshape(-1, 2).T


def estimate(mean: float, draws: Floats, n: int, rows: int, level: float = LEVEL) -> Estimate:
    """A mean of n observations in this many rows with the interval of its draws; NaN becomes None.

    There is no interval for a single row, which says nothing of others, nor for two whose draws have at most three values, as
    resamples of two have. An interval holds its mean: where all scores are the scale's highest, draws end a rounding error
    below it.
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
