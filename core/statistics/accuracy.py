"""Accuracy of scores against gold: ACC and ACC_soft (ESC-Eval section 3.4, table 4), kappa, rank correlation and calibration.

The figures are those of a single dimension; verdicts are in the same order as their gold.

- ACC: share of items whose score equals the gold. ACC_soft: share with |score − gold| ≤ 1. Gold that is not whole (a mean of
  annotators, a half) is rounded for both, halves up, and the number of rounded items is reported.
- An unreadable verdict (None) is wrong in `acc` and `acc_soft` (the paper's procedure) and left out of `acc_read` and
  `acc_soft_read` (the native one). `parse_rate` is the share of readable verdicts.

Then agreement beyond chance, for many tables of counts at once (scikit-learn and krippendorff take one table per call; tests
compare with them), and jackknife intervals over clusters for it. Kappa and alpha are ratios of averages, biased downwards in
small samples and near the floor or ceiling. So the interval allows for unequal and skewed contributions of clusters and for the
bias, and there is none before enough clusters differ from the most frequent kind. It was chosen by its coverage
(tests/bench/truth_people.py; docs/measurements.md).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from core.grouping import comparable
from core.statistics.bootstrap import Floats
from core.tables import Estimate

Verdicts = Sequence[float | None]
Weights = Floats  # [draws, n]: the weight of each of n items in a draw


def round_half_up(value: float) -> int:
    """The nearest whole number, halves upwards (2.5 → 3)."""
    return math.floor(value + 0.5)


def majority(targets: Sequence[float]) -> dict[str, Any]:
    """Label counts of n ≥ 1 mean scores, and the accuracy of always giving the most frequent label. ACC and ACC_soft (within 1;
    shares, 0–1) are on rounded scores. Of equally frequent labels, the best in ACC_soft is taken, then the lowest."""
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
    """Accuracy figures of one dimension: shares (0–1) and counts; those over readable verdicts are None if nothing was read."""
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
    """All figures of one dimension: `FIGURES`, and the counts of `accuracy`. Undefined figures are None, never left out: kappa
    if a verdict lies between two scores, ECE if a readable verdict has no probabilities."""
    if not gold:
        return dict.fromkeys(FIGURES) | {"n": 0, "read": 0, "gold_rounded": 0}
    read = sum(value is not None for value in values)
    weighed = weighed_figures(values, gold, distributions, np.ones((1, read)))
    return accuracy(values, gold) | {name: None if np.isnan(draw[0]) else float(draw[0]) for name, draw in weighed.items()}


def weighed_figures(
    values: Verdicts, gold: Sequence[float], distributions: Sequence[Distribution | None], weights: Weights
) -> dict[str, Floats]:
    """Kappa, Spearman and ECE in every draw [draws], NaN where undefined. `weights` [draws, n] are the n readable verdicts'."""
    pairs = [(value, g) for value, g in zip(values, gold, strict=True) if value is not None]
    scores, targets = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    rows, labels = probability_rows(values, gold, distributions)
    undefined = np.full(len(weights), np.nan)
    whole = bool((scores == np.floor(scores)).all())
    return {
        "kappa": quadratic_kappa(scores, np.floor(targets + 0.5), weights) if whole else undefined,
        "spearman": rank_correlation(scores, targets, weights),
        "ece": calibration_errors(rows, labels, weights) if len(rows) == len(pairs) > 0 else undefined,
    }


def probability_rows(
    values: Verdicts, gold: Sequence[float], distributions: Sequence[Distribution | None]
) -> tuple[list[list[float]], list[int]]:
    """Distributions [n, K] of the readable verdicts that have one, and the column of each item's rounded gold [n]. The columns
    are all scores in distributions or gold, ascending; scores that a distribution lacks have probability 0."""
    triples = zip(values, gold, distributions, strict=True)
    items = [(shares, round_half_up(g)) for value, g, shares in triples if value is not None and shares]
    columns = sorted({float(score) for shares, _ in items for score in shares} | {g for _, g in items})
    rows = [[shares.get(f"{score:g}", 0.0) for score in columns] for shares, _ in items]
    return rows, [columns.index(g) for _, g in items]


def wilson(hits: int, n: int) -> tuple[float | None, float | None]:
    """Wilson's 95 % interval (0–1) of a share of n (None, None when n is 0)."""
    if not n:
        return None, None
    from scipy.stats import binomtest  # a second and, with statsmodels, 130 MB to import, which not every run needs

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

    It is 1 minus the mean squared difference over the mean squared difference of all values with all gold, so scores that never
    occur have no effect. NaN if all verdicts and gold are the same score.
    """
    n = weights.sum(axis=1)
    chance = n * (weights @ (values**2 + gold**2)) - 2 * (weights @ values) * (weights @ gold)
    kappa: Floats = 1 - ratio(n * (weights @ (values - gold) ** 2), chance)
    return kappa


def spearman(values: Verdicts, gold: Sequence[float]) -> float | None:
    """Spearman's correlation with the unrounded gold, −1 to 1, over readable verdicts; None if a side is constant."""
    pairs = [(value, g) for value, g in zip(values, gold, strict=True) if value is not None]
    scores, targets = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    correlation = rank_correlation(scores, targets, np.ones((1, len(pairs))))[0]
    return None if np.isnan(correlation) else float(correlation)


def rank_correlation(values: Floats, gold: Floats, weights: Weights) -> Floats:
    """Spearman's correlation in every draw [draws], NaN where a side is constant."""
    n = weights.sum(axis=1, keepdims=True)
    x, y = (_ranks(side, weights) - n for side in (values, gold))  # whole numbers, whose sums are exact in any order
    weighted = weights * x
    xx, xy, yy = (np.einsum("dn,dn->d", *sides) for sides in ((weighted, x), (weighted, y), (weights * y, y)))
    return np.clip(ratio(xy, np.sqrt(xx * yy)), -1, 1)


def _ranks(values: Floats, weights: Weights) -> Floats:
    """For every value in every draw [draws, n], the number of lower values and of those that are not higher, added up."""
    order = np.argsort(values)
    below = np.zeros((len(weights), len(values) + 1))
    weights.take(order, axis=1).cumsum(axis=1, out=below[:, 1:])
    lower, equal = (np.searchsorted(values, values, side, order) for side in ("left", "right"))
    ranks: Floats = below.take(lower, axis=1) + below.take(equal, axis=1)
    return ranks


def calibration_errors(distributions: ArrayLike, labels: ArrayLike, weights: Weights, bins: int = 10) -> Floats:
    """Expected calibration error of the most probable score, 0–1, in every draw [draws].

    `distributions` is [n, K], rows of probabilities; `labels` is [n], the correct column of each row (0 to K − 1). An item's
    bin is that of the probability of its most probable score (the lowest of equals), of `bins` of equal width: (0, 0.1] to
    (0.9, 1] for ten. The error is the mean over items of |hit rate − mean probability| in their bin.
    """
    gaps = weights @ calibration_gaps(distributions, labels, bins)
    return ratio(np.abs(gaps).sum(axis=1), weights.sum(axis=1))


def calibration_gaps(distributions: ArrayLike, labels: ArrayLike, bins: int = 10) -> Floats:
    """Each item's contribution to its bin [n, bins]: (1 if its most probable score is right, else 0) − probability."""
    confidence, right, place = sureness(distributions, labels, bins)
    gaps: Floats = (right - confidence)[:, None] * (place[:, None] == np.arange(bins))
    return gaps


def sureness(distributions: ArrayLike, labels: ArrayLike, bins: int = 10) -> tuple[Floats, NDArray[np.bool_], NDArray[np.intp]]:
    """For every row [n]: the probability of its most probable score, whether that is the label, and its bin."""
    probabilities, right = np.asarray(distributions, dtype=np.float64), np.asarray(labels)
    confidence = probabilities.max(axis=1)
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence, side="left")
    return confidence, probabilities.argmax(axis=1) == right, place


Counts = NDArray[np.float64]
# The fewest clusters other than of the most frequent kind with which the intervals cover 95 % to within three points.
KAPPA_FROM, ALPHA_FROM, CORRELATION_FROM = 25, 15, 6
JACKKNIFE = "jackknife on Fisher's scale"  # the name of these intervals in tables; for agreement:
AGREEMENT = f"{JACKKNIFE}, given where {KAPPA_FROM} (alpha: {ALPHA_FROM}) or more are not scored in the most frequent way"
_GROUPS = 200  # most groups of a jackknife: more take time and change nothing


def cohen_kappa(counts: Counts, weights: Counts) -> Counts:
    """Weighted kappa of `counts` (tables × values × values), NaN without variation; `weights` are [values × values]."""
    n = counts.sum((1, 2))
    expected = counts.sum(2)[:, :, None] * counts.sum(1)[:, None, :]
    return 1 - ratio((weights * counts).sum((1, 2)) * n, (weights * expected).sum((1, 2)))


def krippendorff_alpha(coincidences: Counts, ordinal: bool) -> Counts:
    """Alpha of coincidence matrices (matrices × values × values, in ascending order); NaN without variation.

    An item with m ≥ 2 answers adds 1/(m − 1) for every ordered pair of them. Nominal and ordinal metric: Krippendorff (2011),
    "Computing Krippendorff's Alpha-Reliability".
    """
    totals = coincidences.sum(2)
    n = totals.sum(1)
    if ordinal:
        # the squared number of answers from one value to the other, with half of those at each end
        middle = np.cumsum(totals, axis=1) - totals / 2
        squared = (middle[:, :, None] - middle[:, None, :]) ** 2
    else:
        squared = np.broadcast_to(1 - np.eye(coincidences.shape[1]), coincidences.shape)
    expected = totals[:, :, None] * totals[:, None, :]
    return 1 - ratio((squared * coincidences).sum((1, 2)) * (n - 1), (squared * expected).sum((1, 2)))


def ratio(above: Counts, below: Counts) -> Counts:
    """above / below, NaN where below is 0."""
    return np.divide(above, below, out=np.full_like(below, np.nan), where=below != 0)


def left_out(clusters: int, seed: int = 0) -> Counts:
    """Weights for `jackknife` (1 + groups × clusters): all clusters in the first row, all but one group in each other. Up to
    `_GROUPS` clusters, each is a group; more are divided into `_GROUPS` groups at random."""
    groups = min(clusters, _GROUPS)
    group = np.random.default_rng(seed).permutation(clusters) % groups
    return np.concatenate([np.ones((1, clusters)), (group != np.arange(groups)[:, None]).astype(float)])


def jackknife(values: Counts, n: int, fewest: int = KAPPA_FROM, fisher: bool = True) -> Estimate:
    """The estimate `values[0]`, a kappa, alpha or correlation, with its 95 % interval; each of `values[1:]` is the same figure
    without one group of clusters. The mean is None if the figure is undefined.

    Student's t on Fisher's scale, with Satterthwaite's degrees of freedom from the kurtosis of the groups' contributions to the
    variance. The longer side is stretched by the skewness as in an ABC interval (DiCiccio & Efron 1992), and the interval spans
    both the figure and its jackknife correction for bias.

    There is no interval if the figure is 1 or −1, if it is undefined without some group, or if fewer than `fewest` groups
    change it differently from the most frequent kind. Without `fisher`, the figure may exceed ±1, as disattenuated correlations
    do: the interval is on its own scale, both are cut at ±1, and there are two degrees of freedom fewer (three estimates).
    """
    value, without = float(values[0]), values[1:]
    groups = len(without)
    if np.isnan(value):
        return Estimate(None, None, None, n)
    mean = round(float(np.clip(value, -1, 1)), 6)
    kinds = np.sort(np.unique(without.round(9), return_counts=True)[1])
    alike = kinds[-2 if groups == _GROUPS else -1 :].sum()  # `_GROUPS` groups have two sizes, each with a most frequent kind
    if np.isnan(without).any() or groups - alike < fewest or (fisher and abs(value) >= 1):
        return Estimate(mean, None, None, n)
    away = without.mean() - without
    error = float(jackknife_error(without))
    peaked, skew = ((away / error) ** 4).sum() - 1 / groups, ((away / error) ** 3).sum() / 6
    degrees = float(np.clip(2 / max(peaked, 1e-9), 1, groups - 1 if fisher else groups - 3))
    t = float(stdtrit(degrees, 0.975))
    below, above = (max(t, t / max(1 + side * skew * t, 0.3) ** 2) for side in (1, -1))
    unbiased = value + (groups - 1) * float(value - without.mean())
    if not fisher:
        ends = min(value, unbiased) - below * error, max(value, unbiased) + above * error
        return Estimate(mean, max(ends[0], -1.0), min(ends[1], 1.0), n)
    first, last = np.arctanh(sorted((value, float(np.clip(unbiased, -0.999, 0.999)))))
    slope = 1 / (1 - value**2)  # the derivative of artanh
    ends = np.tanh(first - below * error * slope), np.tanh(last + above * error * slope)
    return Estimate(mean, round(float(ends[0]), 6), round(float(ends[1]), 6), n)


def jackknife_error(without: Counts) -> Counts:
    """The standard error of figures [...] from their values without each group [groups, ...]. The jackknife's factor
    (groups − 1) / groups is omitted: with it, intervals from a dozen cards are too narrow."""
    error: Counts = np.sqrt(np.square(without - without.mean(axis=0)).sum(axis=0))
    return error
