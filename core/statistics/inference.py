"""When a difference is called significant: one test, one correction and one rule for every table.

What is drawn whole (a card with all its dialogues and scores, an item with all its votes) is a cluster, and only clusters count
as independent. A mean or a difference over clusters is tested by Student's t with the cluster-robust error of a ratio (Cochran
1977, section 6.3), on as many degrees of freedom as there are clusters less one. Two things keep the test honest where scores
are skewed and few, as they are against a supporter that always gets the same score:

- A p is at most `ALPHA` only where the 95 % interval leaves out 0, so no table says "significant" next to an interval over 0.
  The interval (`smoothed_means`) allows for a cluster that nobody has seen, which t does not.
- Clusters that are all alike have no error. Then p is how often they would all be alike although the mean is 0, if what nobody
  has seen lies half the scale away on the other side.

A sign-flip test was here before. It asks whether two sides can be exchanged, not whether their means are equal: of 12 skewed
scores against a constant it called 12 to 20 % different that were not (docs/measurements.md).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from core.grouping import group_by
from core.statistics.bootstrap import LEVEL, Floats, intervals


def alpha_of(level: float) -> float:
    """The error that a level leaves: 0.05 of 0.95."""
    return round(1 - level, 12)


ALPHA = alpha_of(LEVEL)
TEST = "Student's t over clusters"  # what notes call `student_p`


def contributions(sums: Floats, counts: Floats) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Of sums and counts [clusters, …]: the means […] (NaN where there is nothing), what each cluster adds to their error
    [clusters, …], and how many clusters have anything […]."""
    totals = counts.sum(axis=0)
    means = np.divide(sums.sum(axis=0), totals, out=np.full(totals.shape, np.nan), where=totals > 0)
    parts = np.divide(sums - np.nan_to_num(means) * counts, totals, out=np.zeros(sums.shape), where=totals > 0)
    return means, parts, (counts > 0).sum(axis=0)


def cluster_error(parts: Floats, clusters: ArrayLike) -> Floats:
    """The standard error […] of means whose clusters add `parts` [clusters, …] to the error; NaN for fewer than two."""
    n = np.asarray(clusters, dtype=np.float64)
    factor = np.divide(n, n - 1, out=np.full(n.shape, np.nan), where=n > 1)
    error: Floats = np.sqrt(factor * np.square(parts).sum(axis=0))
    return error


def student_p(
    means: ArrayLike, errors: ArrayLike, clusters: ArrayLike, most: float, degrees: ArrayLike | None = None
) -> Floats:
    """Two-sided p […] that means are 0, from their errors and numbers of clusters; NaN where there are fewer than two.

    `most` is the largest distance from 0 that a cluster can have. `degrees` of freedom are clusters less one unless given
    (Welch's, where two sides share no cluster).
    """
    mean, error, n = (np.asarray(part, dtype=np.float64) for part in (means, errors, clusters))
    free = n - 1 if degrees is None else np.asarray(degrees, dtype=np.float64)
    alike = ~(error > 1e-9 * most)
    t = np.abs(mean) / np.where(alike, 1, error)
    p = np.where(alike, (1 + np.abs(mean) / (most / 2)) ** -n, 2 * stdtr(np.maximum(free, 1e-9), -t))
    return np.where((n > 1) & ~np.isnan(mean), np.minimum(p, 1), np.nan)


def beside_interval(p: Floats, draws: Floats, level: float = LEVEL) -> Floats:
    """p values [columns] that agree with the intervals of their draws [draws, columns] at this level: where an interval holds
    0, at least twice the share of draws on the smaller side of it, which is above `alpha_of(level)`."""
    agreed, alpha = p.copy(), alpha_of(level)
    small = np.flatnonzero(p <= alpha)
    for column, low, high in zip(small, *intervals(draws[:, small], level), strict=True):
        if low <= 0 <= high:
            side = min((draws[:, column] <= 0).mean(), (draws[:, column] >= 0).mean())
            agreed[column] = max(p[column], np.nextafter(alpha, 1), min(2 * float(side), 1))
    return agreed


def welch(first: Floats, second: Floats, clusters: tuple[ArrayLike, ArrayLike]) -> tuple[Floats, Floats]:
    """The error of a difference of two means that share no cluster, and its degrees of freedom (Welch 1947), from the error of
    each side."""
    squares = [np.square(side) for side in (first, second)]
    below = sum(square**2 / np.maximum(np.asarray(n) - 1, 1) for square, n in zip(squares, clusters, strict=True))
    whole = squares[0] + squares[1]
    degrees = np.divide(whole**2, below, out=np.full(np.shape(whole), 1.0), where=np.asarray(below) > 0)
    return np.sqrt(whole), degrees


def holm(p: Floats) -> Floats:
    """p values after Holm's correction over those that are not NaN.

    Three lines of our own: statsmodels' `multipletests` collects garbage on every call, seconds beside a run's records.
    """
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]  # NaN comes last
    corrected = np.full_like(p, np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return corrected


def holm_of(p: Sequence[float | None], families: Sequence[Hashable] | None = None) -> list[float | None]:
    """`holm` of p values of which some are None, within each family where `families` names one for each."""
    corrected: list[float | None] = [None] * len(p)
    for places in group_by(range(len(p)), lambda place: families[place] if families else None).values():
        within = holm(np.array([np.nan if (one := p[place]) is None else one for place in places]))
        for place, value in zip(places, within, strict=True):
            corrected[place] = None if np.isnan(value) else float(value)
    return corrected


def holds(corrected: float | None, level: float = LEVEL) -> bool | None:
    """Whether a difference holds by its p after correction; None where it was not tested."""
    return None if corrected is None else corrected <= alpha_of(level)


def p_text(p: float | None) -> str | None:
    """A p value as tables show it."""
    return None if p is None else f"{p:.4f}"
