"""Significance of differences: one test, one correction and one rule for every table.

A unit that is drawn whole (a card with all its dialogues and scores, an item with all its votes) is a cluster; only clusters
count as independent. A mean or difference over clusters is tested by Student's t with the cluster-robust error of a ratio
(Cochran 1977, section 6.3), with one degree of freedom less than there are clusters. Two rules keep the test honest if scores
are skewed and few, as in comparisons with a supporter that always gets the same score:

- p is at most `ALPHA` only if the 95 % interval excludes 0, so no table says "significant" next to an interval that includes 0.
  The interval (`smoothed_means`) allows for an unseen cluster, which t does not.
- Clusters that are all equal have no error. Then p is the probability that all would be equal although the mean is 0, if unseen
  clusters lie half the scale away on the other side.

`strengths` of systems are from pairwise comparisons, however the pairs were chosen: the model of Bradley and Terry (1952). The
chance that i wins against j is the logistic function of the difference of their strengths; a tie is half a win for each. A
strength is reported as the share of wins expected if the system met every other equally often. If all met equally often,
this is the win rate itself. The model is a logistic regression without intercept, fitted by statsmodels, whose scores and
Hessian also give each item's contribution to a share. So a share is a mean over items like any other. Intervals and test were
chosen by simulation (tests/bench/truth_people.py); the tests compare with evalica.
"""

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, stdtr, stdtrit

from core.grouping import group_by
from core.statistics.bootstrap import LEVEL, SHARES, Floats, estimate, intervals, smoothed_means
from core.tables import Estimate


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


# The weight of a tie added to every pair that met: strengths stay finite if a system always wins, and shares hardly change.
_TIE = 1e-4
FEWEST = 8  # items of a system (in a pair: of the one with fewer) with which intervals cover 95 % to within three points


@dataclass(frozen=True)
class Strengths:
    """The expected share of wins of every system, in per cent, and for every pair (first, second) that of the first against the
    second, with p for a share of half. n counts a system's votes, or in a pair those of the system with fewer items; with fewer
    than `FEWEST` items there is neither interval nor p."""

    shares: list[Estimate]
    pairs: dict[tuple[int, int], tuple[Estimate, float | None]]


def strengths(items: Sequence[str], systems: NDArray[np.intp], points: Floats, count: int) -> Strengths | None:
    """The strengths of `count` systems from votes: the item [votes] and the two systems [votes, 2] (indices from 0) of each
    vote, and the points of its first system [votes]: 1, ½ or 0. Items are the clusters.

    None if some systems never met others, not even through third ones, so that nothing compares them.
    """
    from scipy.sparse.csgraph import connected_components
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_linear_model import GLM

    met = np.unique(np.sort(systems, axis=1), axis=0)
    graph = np.zeros((count, count))
    graph[tuple(met.T)] = 1
    if count < 2 or connected_components(graph, directed=False)[0] > 1:
        return None
    both = np.concatenate([systems, met])
    design = np.eye(count)[both[:, 0]] - np.eye(count)[both[:, 1]]
    won, weights = np.append(points, np.full(len(met), 0.5)), np.append(np.ones(len(points)), np.full(len(met), _TIE))
    model = GLM(won, design[:, 1:], Binomial(), var_weights=weights)  # the first system has strength 0
    with warnings.catch_warnings(action="ignore"):  # about perfect separation, which the ties prevent
        fitted = model.fit().params
    names, item = np.unique(items, return_inverse=True)
    scores, votes = np.zeros((len(names), count - 1)), np.zeros((len(names), count))
    np.add.at(scores, item, model.score_obs(fitted)[: len(item)])
    np.add.at(votes, item, np.abs(design[: len(item)]))
    strength = np.append(0.0, fitted)
    chance = expit(strength[:, None] - strength)
    # The change of strengths without an item: a Newton step from all items to the others. The plain sandwich estimate, in which
    # an item also explains itself, is too narrow if there are few items for many systems.
    weight = weights * (chance * (1 - chance))[tuple(both.T)]
    information = np.zeros((len(names), count - 1, count - 1))  # of each item
    np.add.at(information, item, (weight[:, None, None] * design[:, 1:, None] * design[:, None, 1:])[: len(item)])
    moves = np.linalg.solve(-model.hessian(fitted) - information, scores[..., None])[..., 0] * (len(names) - 1) / len(names)
    moves = np.pad(moves - moves.mean(axis=0), ((0, 0), (1, 0)))
    adds = chance * (1 - chance) * (moves[:, :, None] - moves[:, None])  # each item's contribution to the chance of each pair

    others = ~np.eye(count, dtype=bool)
    shares = _estimates(np.mean(chance, axis=1, where=others), np.mean(adds, axis=2, where=others), votes)
    games = np.bincount(systems.ravel(), minlength=count)
    gained = np.bincount(systems.ravel(), np.stack([points, 1 - points], axis=1).ravel(), count)
    if count > 2 and ((gained == 0) | (gained == games)).any():
        # A system that always wins or loses has no finite strength but for the added ties, on which all shares then depend.
        shares = [replace(share, low=None, high=None) for share in shares]
    pairs = [*combinations(range(count), 2)]
    first, second = np.array(pairs).T
    fewer = np.where((votes[:, first] > 0).sum(axis=0) <= (votes[:, second] > 0).sum(axis=0), first, second)
    won, adds, votes = chance[first, second], adds[:, first, second], votes[:, fewer]
    n = (votes > 0).sum(axis=0)
    # Tested as an angle: shares far from half have so small an error that three times too many were called different.
    angle, slope = np.arcsin(np.sqrt(won)) - np.pi / 4, 2 * np.sqrt(won * (1 - won))
    p = np.maximum(student_p(angle, cluster_error(adds, n) / slope, n, np.pi / 4), 2 * 0.5**n)  # at least that of equal items
    tested: list[tuple[Estimate, float | None]] = []
    for share, value in zip(_estimates(won, adds, votes), p.tolist(), strict=True):
        if share.low is None or share.high is None:
            tested.append((share, None))
        else:
            tested.append((share, max(value, np.nextafter(ALPHA, 1)) if share.low <= 50 <= share.high else value))
    return Strengths(shares, dict(zip(pairs, tested, strict=True)))


def _estimates(means: Floats, adds: Floats, votes: Floats) -> list[Estimate]:
    """Shares [columns] in per cent, from their means, each item's contribution [items, columns] and its `votes`. The interval
    has the wider ends of `smoothed_means`, which has a width even if a system always wins, and of Student's t on the scale of
    strengths, which allows for few items and many systems."""
    n = (votes > 0).sum(axis=0)
    draws = np.clip(smoothed_means(means * votes + votes.sum(axis=0) * adds, votes, SHARES), 0, 1)
    spread = stdtrit(np.maximum(n - 1.0, 1), 0.975) * cluster_error(adds, n) / (means * (1 - means))
    ends = expit(logit(means) + np.array([[-1], [1]]) * spread)
    shares = []
    for place, (mean, items) in enumerate(zip(means, n.tolist(), strict=True)):
        share = estimate(mean, draws[:, place], int(votes[:, place].sum()), items)
        if items < FEWEST or share.low is None or share.high is None:
            share = replace(share, low=None, high=None)
        else:
            share = replace(share, low=min(share.low, float(ends[0, place])), high=max(share.high, float(ends[1, place])))
        shares.append(share.times(100))
    return shares
