"""What statistics are held against: Student's t by scipy and Holm's correction as it is defined, Wilson by statsmodels, the
smoothed Bayesian bootstrap drawn row by row."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean

import numpy as np
import pytest
from scipy.stats import t
from statsmodels.stats.proportion import proportion_confint

from core.tables import Estimate


def student(gaps: Sequence[Sequence[float | None]], most: float = 100) -> float | None:
    """Two-sided p that the mean over dimensions of the means over cards [cards, dimensions] is 0, by scipy: a dimension's
    error is of the cards that have it, the degrees of freedom are of the dimension with the fewest; None for fewer than two."""
    columns = [[gap for gap in column if gap is not None] for column in zip(*gaps, strict=True)]
    n = min(map(len, columns))
    if n < 2:
        return None
    means = [fmean(column) for column in columns]
    parts = [
        fmean(0 if gap is None else (gap - mean) / len(column) for gap, mean, column in zip(card, means, columns, strict=True))
        for card in gaps
    ]
    error = sqrt(n / (n - 1) * sum(part**2 for part in parts))
    if error < 1e-9 * most:
        return float((1 + abs(fmean(means)) / (most / 2)) ** -n)
    return float(2 * t.sf(abs(fmean(means)) / error, n - 1))


def agrees(p: float | None, raw: float | None, estimate: Estimate) -> bool:
    """Whether a p is the test's own, or above 0.05 beside an interval that holds 0."""
    if p is None or raw is None:
        return p is raw
    if estimate.low is not None and estimate.high is not None and estimate.low <= 0 <= estimate.high:
        return p >= raw - 1e-9 and p > 0.05
    return p == pytest.approx(raw, rel=1e-6, abs=1e-12)


def corrected(p: Sequence[float | None]) -> list[float | None]:
    """Holm's correction over what is not None: the largest of all p up to one's own, each times how many are no smaller."""
    there = [each for each in p if each is not None]
    times = {each: min(1.0, each * sum(other >= each for other in there)) for each in there}
    return [None if each is None else max(times[other] for other in there if other <= each) for each in p]


def check_share(cell: object, hits: Sequence[float], cards: Sequence[object]) -> None:
    """A mean of shares in per cent and its n; an interval within the scale where there are two cards, and else none."""
    assert isinstance(cell, Estimate) and cell.n == len(hits)
    assert cell.mean == (pytest.approx(100 * fmean(hits)) if hits else None)
    if len(set(cards)) < 2:
        assert cell.low is cell.high is None
    else:
        assert cell.low is not None and cell.high is not None
        assert -1e-9 <= cell.low <= (cell.mean or 0) <= cell.high <= 100 + 1e-9 and cell.low < cell.high


def wilson(hits: int, n: int) -> Estimate:
    """A share in per cent with statsmodels' Wilson interval, to compare with; of nothing: undefined."""
    if not n:
        return Estimate(None, None, None, 0)
    low, high = proportion_confint(hits, n, method="wilson")
    mean, low, high = (pytest.approx(100 * float(share), abs=1e-9) for share in (hits / n, low, high))
    return Estimate(mean, low, high, n)  # type: ignore[arg-type]


GAPS = [first - second for first in range(0, 101, 25) for second in range(0, 101, 25)]  # of two scores on five levels


def smoothed(
    sums: Sequence[float], levels: Sequence[float], counts: Sequence[float] | None = None, unseen: float | None = None
) -> tuple[float, float]:
    """The 95 % interval of a mean by 10,000 Dirichlet draws: n rows of shape 1 − 1/n and half a row with any of the levels (a
    whole one of a difference, `unseen`, and where there are but two levels)."""
    weight = unseen or (1 if len(levels) == 2 else 0.5)
    rng = np.random.default_rng(7)
    n = len(sums)
    sizes = np.ones(n) if counts is None else np.asarray(counts, dtype=float)
    usual = sizes[sizes > 0].mean()
    draws = []
    for weights in rng.dirichlet([*[1 - 1 / n] * n, weight], 10_000):
        above = weights[:-1] @ np.asarray(sums, dtype=float) + weights[-1] * usual * levels[int(rng.integers(len(levels)))]
        draws.append(above / (weights[:-1] @ sizes + weights[-1] * usual))
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)
