"""Agreement beyond chance, for many tables of counts at once, and intervals for figures other than means.

scikit-learn and krippendorff take one table per call; the tests compare with them.

The intervals are jackknife intervals over clusters. Kappa and alpha are ratios of averages, biased downwards in small samples
and near the floor or ceiling. So the interval allows for unequal and skewed contributions of clusters and for the bias, and
there is none before enough clusters differ from the most frequent kind. It was chosen by its coverage
(tests/bench/truth_raters.py; docs/measurements.md).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from core.tables import Estimate

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
