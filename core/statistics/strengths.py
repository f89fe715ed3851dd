"""How strong systems are that were compared two at a time, whoever met whom: the model of Bradley and Terry (1952).

The chance that i wins against j is the logistic function of the difference of their strengths; a tie is half a win for each. A
strength is told as a share: what a system would be expected to win if it met every other system equally often. Where all did
meet equally often, that is the win rate itself.

The model is a logistic regression without intercept, fitted by statsmodels, whose scores and Hessian also say what each item
adds to a share. So a share is a mean over items like any other. Intervals and test were chosen by simulation
(tests/bench/truth_votes.py); evalica is the oracle of the tests.
"""

from __future__ import annotations

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

# Of a vote: a tie of every two that met keeps the strength of one that always wins finite, and hardly moves a share.
_TIE = 1e-4
FEWEST = 8  # items of a system (of a pair: of the one with fewer), from which on intervals hold to three points


@dataclass(frozen=True)
class Strengths:
    """The expected share of every system, in per cent, and of every pair (first, second): what the first would win against the
    second, and p that it is half. n counts the votes on a system, of a pair on the one with fewer items; on fewer than `FEWEST`
    items there is neither interval nor p."""

    shares: list[Estimate]
    pairs: dict[tuple[int, int], tuple[Estimate, float | None]]


def strengths(items: Sequence[str], systems: NDArray[np.intp], points: Floats, count: int) -> Strengths | None:
    """The strengths of `count` systems from votes: their items [votes], the two systems of each [votes, 2] (places from 0), and
    the points of the first of them [votes]: 1, ½ or 0. Items are drawn whole.

    None where some systems did not meet others, not even through third ones: nothing then says how they compare.
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
    model = GLM(won, design[:, 1:], Binomial(), var_weights=weights)  # the first has strength 0
    with warnings.catch_warnings(action="ignore"):  # of perfect separation, which the ties do away with
        fitted = model.fit().params
    names, item = np.unique(items, return_inverse=True)
    scores, votes = np.zeros((len(names), count - 1)), np.zeros((len(names), count))
    np.add.at(scores, item, model.score_obs(fitted)[: len(item)])
    np.add.at(votes, item, np.abs(design[: len(item)]))
    strength = np.append(0.0, fitted)
    chance = expit(strength[:, None] - strength)
    # What strengths lose without an item: a step of Newton's from all items to the others. The plain sandwich, in which an
    # item also explains itself, is too narrow where items are few for so many systems.
    weight = weights * (chance * (1 - chance))[tuple(both.T)]
    known = np.zeros((len(names), count - 1, count - 1))
    np.add.at(known, item, (weight[:, None, None] * design[:, 1:, None] * design[:, None, 1:])[: len(item)])
    moves = np.linalg.solve(-model.hessian(fitted) - known, scores[..., None])[..., 0] * (len(names) - 1) / len(names)
    moves = np.pad(moves - moves.mean(axis=0), ((0, 0), (1, 0)))
    adds = chance * (1 - chance) * (moves[:, :, None] - moves[:, None])  # what items add to the chance of every two

    others = ~np.eye(count, dtype=bool)
    shares = _estimates(np.mean(chance, axis=1, where=others), np.mean(adds, axis=2, where=others), votes)
    games = np.bincount(systems.ravel(), minlength=count)
    gained = np.bincount(systems.ravel(), np.stack([points, 1 - points], axis=1).ravel(), count)
    if count > 2 and ((gained == 0) | (gained == games)).any():
        # Who always wins has no finite strength, and what the others are beside it rests on the half vote that makes it one.
        shares = [replace(share, low=None, high=None) for share in shares]
    pairs = [*combinations(range(count), 2)]
    first, second = np.array(pairs).T
    fewer = np.where((votes[:, first] > 0).sum(axis=0) <= (votes[:, second] > 0).sum(axis=0), first, second)
    won, adds, votes = chance[first, second], adds[:, first, second], votes[:, fewer]
    n = (votes > 0).sum(axis=0)
    # Tested as an angle: far from half a share has so little error that it was called different three times as often as it may.
    angle, slope = np.arcsin(np.sqrt(won)) - np.pi / 4, 2 * np.sqrt(won * (1 - won))
    p = np.maximum(student_p(angle, cluster_error(adds, n) / slope, n, np.pi / 4), 2 * 0.5**n)  # no less than of equal items
    told = []
    for share, one in zip(_estimates(won, adds, votes), p.tolist(), strict=True):
        if share.low is None or share.high is None:
            told.append((share, None))
        else:
            told.append((share, max(one, np.nextafter(ALPHA, 1)) if share.low <= 50 <= share.high else one))
    return Strengths(shares, dict(zip(pairs, told, strict=True)))


def _estimates(means: Floats, adds: Floats, votes: Floats) -> list[Estimate]:
    """Shares [columns] in per cent, to which each item adds a part [items, columns] by its `votes`: the wider ends of
    `smoothed_means`, which alone has a width where a system always wins, and of Student's t on the scale of strengths, which
    alone allows for few items of many systems."""
    n = (votes > 0).sum(axis=0)
    draws = np.clip(smoothed_means(means * votes + votes.sum(axis=0) * adds, votes, SHARES), 0, 1)
    spread = stdtrit(np.maximum(n - 1.0, 1), 0.975) * cluster_error(adds, n) / (means * (1 - means))
    ends = expit(logit(means) + np.array([[-1], [1]]) * spread)
    found = []
    for place, (mean, items) in enumerate(zip(means, n.tolist(), strict=True)):
        share = estimate(mean, draws[:, place], int(votes[:, place].sum()), items)
        if items < FEWEST or share.low is None or share.high is None:
            share = replace(share, low=None, high=None)
        else:
            share = replace(share, low=min(share.low, float(ends[0, place])), high=max(share.high, float(ends[1, place])))
        found.append(share.times(100))
    return found
