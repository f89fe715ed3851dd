"""The bootstrap of every interval: rows are drawn whole, so that what belongs to one row stays together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.tables import Estimate

RESAMPLES = 2000
LEVEL = 0.95
SEED = 20240619
_BATCH = 200  # resamples drawn at a time: bounds memory at 8,500 rows

Floats = NDArray[np.float64]


def resampled_means(sums: Floats, counts: Floats, seed: int = SEED) -> Floats:
    """Column means of `RESAMPLES` resamples of the rows, [RESAMPLES, columns]; NaN where a resample has nothing of a column.

    `sums` and `counts` are [rows, columns]: the sum of a row's observations and their number (zero where it has none). The same
    number of rows and the same seed give the same draws, so that means over the same rows compare in pairs.
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


def interval(draws: Floats) -> tuple[float, float]:
    """The percentile interval of `LEVEL` of one column's draws, NaN left out (and NaN when all of them are)."""
    if np.isnan(draws).all():
        return float("nan"), float("nan")
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.nanpercentile(draws, [tail, 100 - tail])
    return float(low), float(high)


def estimate(mean: float, draws: Floats, n: int, rows: int) -> Estimate:
    """A mean of n observations in this many rows with the interval of its draws; NaN becomes None.

    There is no interval for a single row, which would be drawn the same every time, nor where every draw is undefined.
    """
    if np.isnan(mean):
        return Estimate(None, None, None, n)
    if rows < 2 or np.isnan(draws).all():
        return Estimate(float(mean), None, None, n)
    return Estimate(float(mean), *interval(draws), n)
