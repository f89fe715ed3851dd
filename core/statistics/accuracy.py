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
from numpy.typing import ArrayLike

from core.errors import UserError
from core.statistics.means import comparable
from core.tables import Estimate

Verdicts = Sequence[float | None]


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

    Shares, 0–1: `acc`, `acc_read`, `acc_soft`, `acc_soft_read`, `parse_rate`, `majority_acc`, `majority_acc_soft`, and Wilson's
    95 % intervals `acc_low`, `acc_high`, `acc_read_low`, `acc_read_high`. Counts: `n`, `read`, `gold_rounded`. Figures over the
    readable verdicts are None when nothing could be read.
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
        **_bounds("acc", sum(hits), n),
        **_bounds("acc_read", sum(hits), read),
    }


FIGURES = (
    *("acc", "acc_read", "acc_soft", "acc_soft_read", "parse_rate"),
    *("majority_acc", "majority_acc_soft", "kappa", "spearman", "ece"),
)
Distribution = Mapping[str, float]  # score → probability


def dimension_figures(
    values: Verdicts, gold: Sequence[float], distributions: Sequence[Distribution | None]
) -> dict[str, float | None]:
    """Every figure of one dimension: `FIGURES`, and the counts and intervals of `accuracy`.

    What is not defined is None, never left out: everything without verdicts, kappa where a verdict lies between two scores, ECE
    where a readable verdict came without probabilities, and what each figure says itself.
    """
    if not gold:
        bounds = ("acc_low", "acc_high", "acc_read_low", "acc_read_high")
        return dict.fromkeys((*FIGURES, *bounds)) | {"n": 0, "read": 0, "gold_rounded": 0}
    read = [value for value in values if value is not None]
    kappa = None
    if read and all(float(value).is_integer() for value in read):
        scores = [*map(int, read), *map(round_half_up, gold)]
        # Scores that never occur weigh nothing, but steps between scores must be steps of one.
        kappa = quadratic_kappa(values, gold, range(min(scores), max(scores) + 1))
    rows, labels = probability_rows(values, gold, distributions)
    return accuracy(values, gold) | {
        "kappa": kappa,
        "spearman": spearman(values, gold),
        "ece": ece(rows, labels) if len(rows) == len(read) else None,
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
    columns = sorted({int(score) for shares, _ in spread for score in shares} | {g for _, g in spread})
    rows = [[shares.get(str(score), 0.0) for score in columns] for shares, _ in spread]
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


def _bounds(name: str, hits: int, n: int) -> dict[str, float | None]:
    low, high = wilson(hits, n)
    return {f"{name}_low": low, f"{name}_high": high}


def quadratic_kappa(values: Verdicts, gold: Sequence[float], scores: Sequence[int]) -> float | None:
    """Cohen's kappa with quadratic weights over the scale `scores`: 1 is equality, 0 chance, down to −1.

    Gold is rounded, halves up; unreadable verdicts are left out. None when it is undefined: nothing was read, or verdicts and
    gold are one and the same score throughout. Raises `UserError` for a score off the scale.
    """
    pairs = [(value, round_half_up(g)) for value, g in zip(values, gold, strict=True) if value is not None]
    distinct = {score for pair in pairs for score in pair}
    if off := sorted(distinct - set(scores)):
        raise UserError(f"kappa: {off[0]:g} is not among the scores {min(scores)} to {max(scores)}")
    if len(distinct) < 2:
        return None
    table = np.zeros((len(scores), len(scores)))
    for value, g in pairs:
        table[list(scores).index(int(value)), list(scores).index(g)] += 1
    from statsmodels.stats.inter_rater import cohens_kappa

    return float(cohens_kappa(table, wt="quadratic", return_results=False))


def spearman(values: Verdicts, gold: Sequence[float]) -> float | None:
    """Spearman's rank correlation, −1 to 1, equal scores at their mean rank, on the gold as it is (not rounded).

    Unreadable verdicts are left out. None with fewer than two pairs, or when either side is constant.
    """
    pairs = [(value, g) for value, g in zip(values, gold, strict=True) if value is not None]
    if len({value for value, _ in pairs}) < 2 or len({g for _, g in pairs}) < 2:
        return None
    verdicts, wanted = zip(*pairs, strict=True)
    from scipy.stats import spearmanr

    return float(spearmanr(verdicts, wanted).statistic)


def ece(distributions: ArrayLike, labels: ArrayLike, bins: int = 10) -> float | None:
    """Expected calibration error of the most probable score, 0–1; None for n = 0.

    `distributions` is [n, K], rows of probabilities; `labels` is [n], the right column of each row (0 to K − 1: a score minus
    the scale's lowest). By the probability of its most probable score (the lowest of equals) an item falls into one of `bins`
    bins of equal width, (0, 0.1] to (0.9, 1] for ten; the figure is the mean over items of |hit rate − mean probability| in
    their bin.
    Raises `ValueError` for shapes or labels that do not fit.
    """
    probabilities, right = np.asarray(distributions, dtype=np.float64), np.asarray(labels)
    if not right.size:
        return None
    if probabilities.ndim != 2 or right.shape != probabilities.shape[:1]:
        raise ValueError(f"distributions {probabilities.shape} and labels {right.shape} are not [n, K] and [n]")
    if right.min() < 0 or right.max() >= probabilities.shape[1]:
        raise ValueError(f"labels run from {right.min()} to {right.max()}, the columns from 0 to {probabilities.shape[1] - 1}")
    confidence = probabilities.max(axis=1)
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence, side="left")
    gaps = np.bincount(place, weights=(probabilities.argmax(axis=1) == right) - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(right))
