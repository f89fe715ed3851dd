"""Significance of differences: one test, one correction and one rule for every table.

A unit that is drawn whole (a card with all its dialogues and scores, an item with all its votes) is a cluster; only clusters
count as independent. A mean or difference over clusters is tested by Student's t with the cluster-robust error of a ratio
(Cochran 1977, section 6.3), with one degree of freedom less than there are clusters. Two rules keep the test honest if scores
are skewed and few, as in comparisons with a supporter that always gets the same score:

- p is at most `ALPHA` only if the 95 % interval excludes 0, so no table says "significant" next to an interval that includes 0.
  The interval (`smoothed_means`) allows for an unseen cluster, which t does not.
- Clusters that are all equal have no error. Then p is the probability that all would be equal although the mean is 0, if unseen
  clusters lie half the scale away on the other side.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from core.grouping import group_by
from core.statistics.bootstrap import LEVEL, Floats, intervals


def alpha_of(level: float) -> float:
    """The error probability of a level: 0.05 for 0.95."""
    return round(1 - level, 12)


ALPHA = alpha_of(LEVEL)
TEST = "Student's t over clusters"  # the name of `student_p` in notes


def contributions(sums: Floats, counts: Floats) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """From sums and counts [clusters, …]: the means […] (NaN without observations), each cluster's contribution to their error
    [clusters, …], and the number of clusters with observations […]."""
    totals = counts.sum(axis=0)
    means = np.divide(sums.sum(axis=0), totals, out=np.full(totals.shape, np.nan), where=totals > 0)
    parts = np.divide(sums - np.nan_to_num(means) * counts, totals, out=np.zeros(sums.shape), where=totals > 0)
    return means, parts, (counts > 0).sum(axis=0)


def cluster_error(parts: Floats, clusters: ArrayLike) -> Floats:
    """The standard error […] of means from their clusters' contributions [clusters, …]; NaN for fewer than two clusters."""
    n = np.asarray(clusters, dtype=np.float64)
    factor = np.divide(n, n - 1, out=np.full(n.shape, np.nan), where=n > 1)
    error: Floats = np.sqrt(factor * np.square(parts).sum(axis=0))
    return error


def student_p(
    means: ArrayLike, errors: ArrayLike, clusters: ArrayLike, most: float, degrees: ArrayLike | None = None
) -> Floats:
    """Two-sided p […] for means of 0, from their errors and numbers of clusters; NaN for fewer than two clusters.

    `most` is a cluster's largest possible distance from 0. `degrees` of freedom default to clusters minus one (pass Welch's if
    two sides share no cluster).
    """
    mean, error, n = (np.asarray(part, dtype=np.float64) for part in (means, errors, clusters))
    free = n - 1 if degrees is None else np.asarray(degrees, dtype=np.float64)
    alike = ~(error > 1e-9 * most)
    t = np.abs(mean) / np.where(alike, 1, error)
    p = np.where(alike, (1 + np.abs(mean) / (most / 2)) ** -n, 2 * stdtr(np.maximum(free, 1e-9), -t))
    return np.where((n > 1) & ~np.isnan(mean), np.minimum(p, 1), np.nan)


def beside_interval(p: Floats, draws: Floats, level: float = LEVEL) -> Floats:
    """p values [columns] that agree with the intervals of their draws [draws, columns] at this level: if an interval contains
    0, p is at least twice the share of draws on the smaller side of 0, and above `alpha_of(level)`."""
    agreed, alpha = p.copy(), alpha_of(level)
    small = np.flatnonzero(p <= alpha)
    for column, low, high in zip(small, *intervals(draws[:, small], level), strict=True):
        if low <= 0 <= high:
            side = min((draws[:, column] <= 0).mean(), (draws[:, column] >= 0).mean())
            agreed[column] = max(p[column], np.nextafter(alpha, 1), min(2 * float(side), 1))
    return agreed


def welch(first: Floats, second: Floats, clusters: tuple[ArrayLike, ArrayLike]) -> tuple[Floats, Floats]:
    """The error of a difference of means without common clusters, and its degrees of freedom (Welch 1947), from theirs."""
    squares = [np.square(side) for side in (first, second)]
    below = sum(square**2 / np.maximum(np.asarray(n) - 1, 1) for square, n in zip(squares, clusters, strict=True))
    total = squares[0] + squares[1]
    degrees = np.divide(total**2, below, out=np.full(np.shape(total), 1.0), where=np.asarray(below) > 0)
    return np.sqrt(total), degrees


def holm(p: Floats) -> Floats:
    """p values after Holm's correction over those that are not NaN. statsmodels' `multipletests` would run the garbage
    collector on every call, which takes seconds with a run's records in memory."""
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]  # NaN comes last
    corrected = np.full_like(p, np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return corrected


def holm_of(p: Sequence[float | None], families: Sequence[Hashable] | None = None) -> list[float | None]:
    """`holm` of p values, some of which may be None; with `families` (one per value), within each family."""
    values, corrected = np.array(p, dtype=np.float64), np.full(len(p), np.nan)  # None becomes NaN
    for places in group_by(range(len(p)), lambda place: families[place] if families else None).values():
        corrected[places] = holm(values[places])
    return [None if np.isnan(value) else value for value in corrected.tolist()]


def holds(corrected: float | None, level: float = LEVEL) -> bool | None:
    """Whether a difference is significant by its p after correction; None if it was not tested."""
    return None if corrected is None else corrected <= alpha_of(level)


def p_text(p: float | None) -> str | None:
    """A p value as tables show it."""
    return None if p is None else f"{p:.4f}"
