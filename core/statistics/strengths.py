"""Strengths of systems from pairwise comparisons, however the pairs were chosen: the model of Bradley and Terry (1952).

The chance that i wins against j is the logistic function of the difference of their strengths; a tie is half a win for each. A
strength is reported as the share of wins expected if the system met every other system equally often. If all met equally often,
this is the win rate itself.

The model is a logistic regression without intercept, fitted by statsmodels, whose scores and Hessian also give each item's
contribution to a share. So a share is a mean over items like any other. Intervals and test were chosen by simulation
(tests/bench/truth_votes.py); the tests compare with evalica.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, stdtrit

from core.statistics.bootstrap import SHARES, Floats, estimate, smoothed_means
from core.statistics.inference import ALPHA, cluster_error, student_p
from core.tables import Estimate

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
