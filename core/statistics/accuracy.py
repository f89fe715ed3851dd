"""How near scores come to gold: ACC and ACC_soft (ESC-Eval section 3.4, table 4), kappa, rank correlation and calibration.

Defined here and nowhere else. Everything is about one dimension; verdicts are in the same order as their gold.

- ACC: share of items whose score equals the gold. ACC_soft: share with |score − gold| ≤ 1. Gold that is not whole (a mean of
  annotators, a half) is rounded for both, halves up, and the number of items rounded is reported. The other reading (ACC_soft
  on the gold as it is) calls 4 wrong where gold is 2.5 and ACC calls 3 right; on whole gold, as the paper's, they are the same.
- An unreadable verdict (None) is wrong in `acc` and `acc_soft` (the paper's procedure) and left out of `acc_read` and
  `acc_soft_read` (the native one). `parse_rate` is the share that could be read.
- The baseline gives every item the most frequent (rounded) gold score; of equally frequent ones, the better in ACC_soft.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.statistics.bootstrap import Floats
from core.statistics.means import comparable
from core.statistics.reliability import ratio
from core.tables import Estimate

Verdicts = Sequence[float | None]
Weights = Floats  # [draws, n]: how often each of n items counts in a draw


def round_half_up(value: float) -> int:
    """The nearest whole number, halves upwards (2.5 → 3)."""
    return math.floor(value + 0.5)


def majority(targets: Sequence[float]) -> dict[str, Any]:
    """Label counts of n ≥ 1 mean scores and the majority baseline: what one gets for always giving the most frequent label.

    ACC and ACC_soft (within 1) are on the rounded scores, as agreement is measured (shares, 0–1); of equally frequent labels
    the better in ACC_soft, then the lower.
    """
    counts = Counter(map(round_half_up, targets))
    soft = {label: sum(n for other, n in counts.items() if abs(label - other) <= 1) / len(targets) for label in counts}
    label = min(counts, key=lambda score: (-counts[score], -soft[score], score))
    return {
        "n": len(targets),
        "counts": {str(key): counts[key] for key in sorted(counts)},
        "majority": label,
        "majority_acc": counts[label] / len(targets),
        "majority_acc_soft": soft[label],
    }


def accuracy(values: Verdicts, gold: Sequence[float]) -> dict[str, Any]:
    """All accuracy figures of one dimension; `values` and `gold` have the same length n ≥ 1.

    Shares, 0–1: `acc`, `acc_read`, `acc_soft`, `acc_soft_read`, `parse_rate`, `majority_acc`, `majority_acc_soft`. Counts: `n`,
    `read`, `gold_rounded`. Figures over the readable verdicts are None when nothing could be read.
    """
    n = len(gold)
    rounded = [round_half_up(g) for g in gold]
    hits = [value is not None and value == r for value, r in zip(values, rounded, strict=True)]
    near = [value is not None and comparable(abs(value - r)) <= 1 for value, r in zip(values, rounded, strict=True)]
    read = sum(value is not None for value in values)
    baseline = majority(gold)
    return {
        "acc": sum(hits) / n,
        "acc_read": sum(hits) / read if read else None,
        "acc_soft": sum(near) / n,
        "acc_soft_read": sum(near) / read if read else None,
        "n": n,
        "parse_rate": read / n,
        "read": read,
        "majority_acc": baseline["majority_acc"],
        "majority_acc_soft": baseline["majority_acc_soft"],
        "gold_rounded": sum(r != g for r, g in zip(rounded, gold, strict=True)),
    }


FIGURES = (
    *("acc", "acc_read", "acc_soft", "acc_soft_read", "parse_rate"),
    *("majority_acc", "majority_acc_soft", "kappa", "spearman", "ece"),
)
Distribution = Mapping[str, float]  # score → probability


def dimension_figures(
    values: Verdicts, gold: Sequence[float], distributions: Sequence[Distribution | None]
) -> dict[str, float | None]:
    """Every figure of one dimension: `FIGURES`, and the counts of `accuracy`.

    What is not defined is None, never left out: everything without verdicts, kappa where a verdict lies between two scores, ECE
    where a readable verdict came without probabilities, and what each figure says itself.
    """
    if not gold:
        return dict.fromkeys(FIGURES) | {"n": 0, "read": 0, "gold_rounded": 0}
    read = sum(value is not None for value in values)
    further = weighed_figures(values, gold, distributions, np.ones((1, read)))
    known = {name: None if np.isnan(figure[0]) else float(figure[0]) for name, figure in further.items()}
    return accuracy(values, gold) | known


def weighed_figures(
    values: Verdicts, gold: Sequence[float], distributions: Sequence[Distribution | None], weights: Weights
) -> dict[str, Floats]:
    """kappa, Spearman and ECE of one dimension in every draw [draws], NaN where undefined. `weights` [draws, n] are of the n
    readable verdicts."""
    pairs = [(value, g) for value, g in zip(values, gold, strict=True) if value is not None]
    scores, wanted = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    rows, labels = probability_rows(values, gold, distributions)
    undefined = np.full(len(weights), np.nan)
    whole = bool((scores == np.floor(scores)).all())
    return {
        "kappa": quadratic_kappa(scores, np.floor(wanted + 0.5), weights) if whole else undefined,
        "spearman": rank_correlation(scores, wanted, weights),
        "ece": calibration_errors(rows, labels, weights) if len(rows) == len(pairs) > 0 else undefined,
    }


def probability_rows(
    values: Verdicts, gold: Sequence[float], distributions: Sequence[Distribution | None]
) -> tuple[list[list[float]], list[int]]:
    """Distributions [n, K] of the readable verdicts that have one, and the column of each item's rounded gold [n].

    Columns are all scores that the distributions name or gold has, ascending: what a distribution does not name has probability
    0 in it.
    """
    triples = zip(values, gold, distributions, strict=True)
    spread = [(shares, round_half_up(g)) for value, g, shares in triples if value is not None and shares]
    columns = sorted({float(score) for shares, _ in spread for score in shares} | {g for _, g in spread})
    rows = [[shares.get(f"{score:g}", 0.0) for score in columns] for shares, _ in spread]
    return rows, [columns.index(g) for _, g in spread]


def wilson(hits: int, n: int) -> tuple[float | None, float | None]:
    """Wilson's 95 % interval (0–1) of a share of n (None, None when n is 0)."""
    if not n:
        return None, None
    from scipy.stats import binomtest  # with statsmodels 130 MB and a second of import, for a run that may need neither

    interval = binomtest(hits, n).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def share(hits: int, n: int) -> Estimate:
    """A share in per cent with Wilson's 95 % interval; its mean is None for n = 0."""
    low, high = wilson(hits, n)
    if low is None or high is None:
        return Estimate(None, None, None, 0)
    return Estimate(100 * hits / n, 100 * low, 100 * high, n)


def quadratic_kappa(values: Floats, gold: Floats, weights: Weights) -> Floats:
    """Cohen's kappa with quadratic weights of whole scores [n] in every draw [draws]: 1 is equality, 0 chance, down to −1.

    It is 1 less the mean squared difference over the mean squared difference of all values with all gold: scores that never
    occur weigh nothing. NaN when it is undefined: verdicts and gold are one and the same score throughout.
    """
    n = weights.sum(axis=1)
    chance = n * (weights @ (values**2 + gold**2)) - 2 * (weights @ values) * (weights @ gold)
    kappa: Floats = 1 - ratio(n * (weights @ (values - gold) ** 2), chance)
    return kappa


def spearman(values: Verdicts, gold: Sequence[float]) -> float | None:
    """Spearman's rank correlation, −1 to 1, equal scores at their mean rank, on the gold as it is (not rounded).

    Unreadable verdicts are left out. None with fewer than two pairs, or when either side is constant.
    """
    pairs = [(value, g) for value, g in zip(values, gold, strict=True) if value is not None]
    scores, wanted = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    found = rank_correlation(scores, wanted, np.ones((1, len(pairs))))[0]
    return None if np.isnan(found) else float(found)


def rank_correlation(values: Floats, gold: Floats, weights: Weights) -> Floats:
    """Spearman's correlation in every draw [draws], NaN where a side is constant."""
    n = weights.sum(axis=1, keepdims=True)
    one, other = (
        _ranks(side, weights) * 2 - n for side in (values, gold)
    )  # twice the distance from the middle rank: whole numbers
    squares = (weights * one**2).sum(axis=1) * (weights * other**2).sum(axis=1)
    return np.clip(ratio((weights * one * other).sum(axis=1), np.sqrt(squares)), -1, 1)


def _ranks(values: Floats, weights: Weights) -> Floats:
    """Of every value in every draw [draws, n], how many are lower, and half of the equal ones."""
    levels, place = np.unique(values, return_inverse=True)
    counts = weights @ (place[:, None] == np.arange(len(levels)))
    ranks: Floats = (counts.cumsum(axis=1) - counts / 2)[:, place]
    return ranks


def calibration_errors(distributions: ArrayLike, labels: ArrayLike, weights: Weights, bins: int = 10) -> Floats:
    """Expected calibration error of the most probable score, 0–1, in every draw [draws].

    `distributions` is [n, K], rows of probabilities; `labels` is [n], the right column of each row (0 to K − 1: a score minus
    the scale's lowest). By the probability of its most probable score (the lowest of equals) an item falls into one of `bins`
    bins of equal width, (0, 0.1] to (0.9, 1] for ten; the figure is the mean over items of |hit rate − mean probability| in
    their bin.
    Raises `ValueError` for shapes or labels that do not fit.
    """
    gaps = weights @ calibration_gaps(distributions, labels, bins)
    return ratio(np.abs(gaps).sum(axis=1), weights.sum(axis=1))


def calibration_gaps(distributions: ArrayLike, labels: ArrayLike, bins: int = 10) -> Floats:
    """What every item adds to its bin [n, bins]: 1 if its most probable score is right, less the probability; else 0."""
    confidence, right, place = sureness(distributions, labels, bins)
    gaps: Floats = (right - confidence)[:, None] * (place[:, None] == np.arange(bins))
    return gaps


def sureness(distributions: ArrayLike, labels: ArrayLike, bins: int = 10) -> tuple[Floats, NDArray[np.bool_], NDArray[np.intp]]:
    """Of every row [n]: the probability of its most probable score, whether that is the label, and its bin
    (`calibration_errors`)."""
    probabilities, right = np.asarray(distributions, dtype=np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or right.shape != probabilities.shape[:1]:
        raise ValueError(f"distributions {probabilities.shape} and labels {right.shape} are not [n, K] and [n]")
    if right.min() < 0 or right.max() >= probabilities.shape[1]:
        raise ValueError(f"labels run from {right.min()} to {right.max()}, the columns from 0 to {probabilities.shape[1] - 1}")
    confidence = probabilities.max(axis=1)
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence, side="left")
    return confidence, probabilities.argmax(axis=1) == right, place
