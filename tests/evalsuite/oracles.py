"""What statistics are held against: sign-flip test and Holm's correction as they are defined, Wilson by statsmodels, the
smoothed Bayesian bootstrap drawn row by row."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from core.tables import Estimate


def sign_flip(shares: Sequence[int]) -> float:
    """Two-sided p of whole numbers' sum under random signs: every pattern, one by one (`test_paired` has scipy's)."""
    sums = [sum(map(operator.mul, signs, shares)) for signs in product((1, -1), repeat=len(shares))]
    return sum(abs(each) >= abs(sum(shares)) for each in sums) / len(sums)


def card_shares(gaps: Sequence[Sequence[int | None]]) -> list[int]:
    """What each card [cards, dimensions] adds to the mean over dimensions of the means over cards, times a whole number."""
    columns = [[gap for gap in column if gap is not None] for column in zip(*gaps, strict=True)]
    common = int(np.lcm.reduce([len(column) for column in columns]))
    return [
        sum(0 if gap is None else gap * common // len(column) for gap, column in zip(card, columns, strict=True))
        for card in gaps
        if any(gap is not None for gap in card)
    ]


def corrected(p: Sequence[float | None]) -> list[float | None]:
    """Holm's correction over what is not None: the largest of all p up to one's own, each times how many are no smaller."""
    there = [each for each in p if each is not None]
    times = {each: min(1.0, each * sum(other >= each for other in there)) for each in there}
    return [None if each is None else max(times[other] for other in there if other <= each) for each in p]


def wilson(hits: int, n: int) -> Estimate:
    """A share in per cent with statsmodels' Wilson interval, to compare with; of nothing: undefined."""
    if not n:
        return Estimate(None, None, None, 0)
    low, high = proportion_confint(hits, n, method="wilson")
    mean, low, high = (pytest.approx(100 * float(share), abs=1e-9) for share in (hits / n, low, high))
    return Estimate(mean, low, high, n)  # type: ignore[arg-type]


GAPS = [first - second for first in range(0, 101, 25) for second in range(0, 101, 25)]  # of two scores on five levels


def smoothed(sums: Sequence[float], levels: Sequence[float], counts: Sequence[float] | None = None) -> tuple[float, float]:
    """The 95 % interval of a mean by 10,000 Dirichlet draws: n rows of shape 1 − 1/n and half a row with any of the levels."""
    rng = np.random.default_rng(7)
    n = len(sums)
    sizes = np.ones(n) if counts is None else np.asarray(counts, dtype=float)
    usual = sizes[sizes > 0].mean()
    draws = []
    for weights in rng.dirichlet([*[1 - 1 / n] * n, 0.5], 10_000):
        above = weights[:-1] @ np.asarray(sums, dtype=float) + weights[-1] * usual * levels[int(rng.integers(len(levels)))]
        draws.append(above / (weights[:-1] @ sizes + weights[-1] * usual))
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)
