"""Agreement beyond chance, for many tables of counts at once: what a bootstrap of kappa or alpha needs.

Point figures and bootstrap draws go through the same functions; the libraries' own (scikit-learn, krippendorff) take one table
a call, and are the oracle of the tests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.tables import Estimate

Counts = NDArray[np.float64]


def cohen_kappa(counts: Counts, weights: Counts) -> Counts:
    """Weighted kappa of tables `counts` (tables × values × values); NaN without variation.

    `weights` is the disagreement of two values (values × values).
    """
    n = counts.sum((1, 2))
    expected = counts.sum(2)[:, :, None] * counts.sum(1)[:, None, :]
    return 1 - ratio((weights * counts).sum((1, 2)) * n, (weights * expected).sum((1, 2)))


def krippendorff_alpha(coincidences: Counts, ordinal: bool) -> Counts:
    """Alpha of coincidence matrices (matrices × values × values, values in their order). Without variation it is NaN.

    An item with m ≥ 2 answers adds 1/(m − 1) for every ordered pair of them; for two people without gaps that is the table of
    their answers plus its transpose. Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability": nominal and ordinal
    metric.
    """
    totals = coincidences.sum(2)
    n = totals.sum(1)
    if ordinal:
        # Distance of two values: how many answers lie from one to the other, half of each end left out; squared.
        middle = np.cumsum(totals, axis=1) - totals / 2
        squared = (middle[:, :, None] - middle[:, None, :]) ** 2
    else:
        squared = np.broadcast_to(1 - np.eye(coincidences.shape[1]), coincidences.shape)
    expected = totals[:, :, None] * totals[:, None, :]
    return 1 - ratio((squared * coincidences).sum((1, 2)) * (n - 1), (squared * expected).sum((1, 2)))


def ratio(above: Counts, below: Counts) -> Counts:
    """above / below, NaN where below is 0."""
    return np.divide(above, below, out=np.full_like(below, np.nan), where=below != 0)


def estimate(value: Counts, drawn: Counts, n: int) -> Estimate:
    """`value[0]` with the 95 % percentile interval of its bootstrap draws; undefined draws are left out.

    The mean is None where the figure is not defined.
    """
    defined = drawn[~np.isnan(drawn)]
    if np.isnan(value[0]) or not len(defined):
        return Estimate(None, None, None, n)
    low, high = np.percentile(defined, [2.5, 97.5])
    return Estimate(round(float(value[0]), 6), round(float(low), 6), round(float(high), 6), n)
