"""The intervals of one judge's agreement with gold: clusters are drawn whole, for single dimensions and for their average.

With one dimension, its interval is also the average's. Shares use `smoothed_means`, kappa and Spearman a `jackknife`. In small
samples a calibration error comes out too large, most of all for a judge whose probabilities are true: what chance adds is taken
off the lower end, so these intervals cover the truth more often than they promise (`tests/bench/truth_gold.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from core.records import Judgement
from core.statistics.accuracy import calibration_gaps, majority, probability_rows, round_half_up, weighed_figures
from core.statistics.bootstrap import SEED, SHARES, SMOOTHED, Floats, estimate, gap_levels, smoothed_means
from core.statistics.inference import cluster_error, contributions
from core.statistics.means import comparable
from core.statistics.reliability import JACKKNIFE, KAPPA_FROM, jackknife, jackknife_error, left_out
from core.tables import Estimate
from evalsuite.statistics.clusters import Clusters

Pair = tuple[Judgement, float]  # a verdict and its mean gold score
Dimensions = dict[str, list[Pair]]  # dimension → verdicts
Bounds = dict[str, float | None]
OVER = "over_majority"  # ACC less that of the majority class
SHARE_FIGURES = ("acc", "acc_read", "acc_soft", "acc_soft_read", OVER)
RANK_FROM = 10  # clusters that an interval of Spearman's correlation needs; `KAPPA_FROM` is the same for kappa
FEWEST_CALIBRATED = 3  # clusters, for an interval of a calibration error
INTERVALS = (
    f"[{SMOOTHED}]; of kappa and Spearman [95 % {JACKKNIFE}], given where {KAPPA_FROM} (Spearman: {RANK_FROM}) or more "
    f"clusters are not scored in the most frequent way; of ECE [at least 95 %, jackknife and what chance adds], from "
    f"{FEWEST_CALIBRATED} clusters up"
)


class Counts(NamedTuple):
    """Counts [clusters, dimensions] of the verdicts that are right, within one point, all, readable, and of items whose gold is
    the most frequent score."""

    right: Floats
    near: Floats
    rated: Floats
    read: Floats
    usual: Floats

    def shares(self, figure: str) -> tuple[Floats, Floats]:
        """Numerator and denominator of one of `SHARE_FIGURES`."""
        if figure == OVER:
            return self.right - self.usual, self.rated
        return self.near if "soft" in figure else self.right, self.read if figure.endswith("_read") else self.rated


def columns_of(pairs: Sequence[Pair]) -> tuple[list[float | None], list[float], list[Mapping[str, float] | None]]:
    """Verdicts, gold and probabilities, as `core.statistics.accuracy` takes them."""
    return [j.value for j, _ in pairs], [gold for _, gold in pairs], [j.distribution for j, _ in pairs]


def drawn_units(runs: Iterable[Dimensions], clusters: Clusters) -> list[str]:
    """The clusters with a verdict, which are drawn whole."""
    return sorted({clusters[j.dialogue_id] for dimensions in runs for pairs in dimensions.values() for j, _ in pairs})


def hit_counts(dimensions: Dimensions, units: Sequence[str], clusters: Clusters) -> Counts:
    """One judge's verdicts counted by cluster."""
    row = {unit: index for index, unit in enumerate(units)}
    counts = Counts(*np.zeros((5, len(units), len(dimensions))))
    for column, pairs in enumerate(dimensions.values()):
        usual = majority([gold for _, gold in pairs])["majority"] if pairs else None
        for j, gold in pairs:
            place, right = (row[clusters[j.dialogue_id]], column), round_half_up(gold)
            counts.rated[place] += 1
            counts.usual[place] += right == usual
            if j.value is not None:
                counts.read[place] += 1
                counts.right[place] += j.value == right
                counts.near[place] += comparable(abs(j.value - right)) <= 1
    return counts


def ratio_draws(shares: Sequence[tuple[Floats, Floats]], seed: int = SEED, sides: int = 1) -> list[Floats]:
    """Draws [RESAMPLES, dimensions + 1] of the ratios of sums and counts, both [clusters, dimensions], with their average as
    the last column. Every draw takes the same whole clusters in all of them. `sides` is 1 for shares, 2 for differences of
    shares."""
    sums, counts = (np.concatenate([part[place] for part in shares], axis=1) for place in (0, 1))
    levels = SHARES if sides == 1 else gap_levels(SHARES)
    draws = np.split(smoothed_means(sums, counts, levels, seed, sides=sides), len(shares), axis=1)
    return [np.column_stack([drawn, drawn.mean(axis=1)]) for drawn in draws]


def average_draws(dimensions: Dimensions, figure: str, clusters: Clusters, seed: int = SEED) -> Floats | None:
    """Draws [RESAMPLES] of one of `SHARE_FIGURES`, averaged over dimensions; None where a dimension has a single cluster."""
    shares = hit_counts(dimensions, drawn_units([dimensions], clusters), clusters).shares(figure)
    if not len(shares[1]) or (shares[1] > 0).sum(axis=0).min() < 2:
        return None
    return ratio_draws([shares], seed)[0][:, -1]


def interval_figures(dimensions: Dimensions, clusters: Clusters) -> list[dict[str, Any]]:
    """For every dimension and the average: `over_majority`, the bounds of all figures (`acc_low`, `acc_high`, …), the number of
    `clusters`, and what they are called (`clustered_by`)."""
    units = {unit: place for place, unit in enumerate(drawn_units([dimensions], clusters))}
    if not units:
        names = [f"{figure}_{end}" for figure in (*SHARE_FIGURES, "kappa", "spearman", "ece") for end in ("low", "high")]
        undefined = dict.fromkeys([OVER, *names]) | {"clusters": 0, "clustered_by": clusters.name}
        return [undefined] * (len(dimensions) + 1)
    counts = hit_counts(dimensions, list(units), clusters)
    sizes = [*(counts.rated > 0).sum(axis=0), len(units)]
    columns = zip(_share_bounds(counts), _jackknife_bounds(dimensions, units, clusters), sizes, strict=True)
    return [shares | others | {"clusters": int(size), "clustered_by": clusters.name} for shares, others, size in columns]


def _share_bounds(counts: Counts) -> list[Bounds]:
    bounds: list[Bounds] = [{} for _ in range(counts.rated.shape[1] + 1)]
    for sides, figures in ((1, SHARE_FIGURES[:-1]), (2, SHARE_FIGURES[-1:])):
        parts = [counts.shares(figure) for figure in figures]
        for figure, (sums, over), drawn in zip(figures, parts, ratio_draws(parts, sides=sides), strict=True):
            means, _, on = contributions(sums, over)
            columns = np.append(means, means.mean()), drawn.T, np.append(on, on.min())
            for row, mean, draws, clusters in zip(bounds, *columns, strict=True):
                interval = estimate(float(mean), draws, 0, int(clusters))
                row |= {f"{figure}_low": interval.low, f"{figure}_high": interval.high}
                if figure == OVER:
                    row[figure] = interval.mean
    return bounds


def _jackknife_bounds(dimensions: Dimensions, units: Mapping[str, int], clusters: Clusters) -> list[Bounds]:
    weights = left_out(len(units))
    figures = np.full((3, len(weights), len(dimensions) + 1), np.nan)
    chance = np.full(len(dimensions) + 1, np.nan)  # the calibration error expected of true probabilities
    for column, pairs in enumerate(dimensions.values()):
        items = columns_of(pairs)
        rows = [units[clusters[j.dialogue_id]] for j, _ in pairs if j.value is not None]
        figures[:, :, column] = [*weighed_figures(*items, weights[:, rows]).values()]
        if not np.isnan(figures[2, 0, column]):
            member = np.eye(len(units))[rows].T  # [clusters, items]
            gaps = member @ calibration_gaps(*probability_rows(*items))
            _, parts, n = contributions(gaps, np.broadcast_to(member.sum(axis=1, keepdims=True), gaps.shape))
            chance[column] = np.sqrt(2 / np.pi) * cluster_error(parts, n).sum()
    figures[:, :, -1], chance[-1] = figures[:, :, :-1].mean(axis=2), chance[:-1].mean()
    bounds: list[Bounds] = []
    for (kappa, rank, error), by_chance in zip(figures.transpose(2, 0, 1), chance, strict=True):
        intervals = jackknife(kappa, 0), jackknife(rank, 0, RANK_FROM), _calibration(error, by_chance)
        names = zip(("kappa", "spearman", "ece"), intervals, strict=True)
        bounds.append({f"{name}_{end}": getattr(interval, end) for name, interval in names for end in ("low", "high")})
    return bounds


def _calibration(errors: Floats, chance: float) -> Estimate:
    """A calibration error with its interval, from `errors` [1 + groups]: with all clusters, then without each group of them."""
    groups = len(errors) - 1
    if groups < FEWEST_CALIBRATED or np.isnan(errors).any() or np.isnan(chance):
        return Estimate(None, None, None, 0)
    error, half = float(errors[0]), float(stdtrit(groups - 1, 0.975) * jackknife_error(errors[1:]))
    return Estimate(error, max(0.0, error - float(chance) - half), min(1.0, error + half), 0)
