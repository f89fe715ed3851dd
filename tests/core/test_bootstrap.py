"""The bootstrap of every interval, against all resamples of few rows written out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.statistics.bootstrap import RESAMPLES, interval, resampled_means

ROWS = st.lists(  # of each row, on two columns: the sum of its observations and their number, nothing where that is 0
    st.tuples(*[st.tuples(st.integers(-4, 4), st.integers(0, 2)).map(lambda cell: cell if cell[1] else (0, 0))] * 2),
    min_size=1,
    max_size=3,
)


@given(ROWS)
def test_draws_are_those_of_all_resamples(rows: list[tuple[tuple[int, int], ...]]) -> None:
    """Ties, constants, one row, gaps. What has a chance of 1 in 27 or more comes up in 2,000 draws, about as often."""
    table = np.array(rows, dtype=np.float64)
    sums, counts = table[:, :, 0], table[:, :, 1]
    draws = resampled_means(sums, counts)
    assert draws.shape == (RESAMPLES, 2)
    expected = []
    for picks in product(range(len(rows)), repeat=len(rows)):
        own, n = sums[list(picks)].sum(axis=0), counts[list(picks)].sum(axis=0)
        expected.append([own[c] / n[c] if n[c] else np.nan for c in (0, 1)])
    exact = np.array(expected)
    for column in (0, 1):
        values, times = np.unique(np.round(exact[:, column], 9), return_counts=True)
        found, often = np.unique(np.round(draws[:, column], 9), return_counts=True)
        assert found == pytest.approx(values, nan_ok=True)
        assert often / RESAMPLES == pytest.approx(times / len(exact), abs=0.05)  # over four standard errors
        low, high = interval(draws[:, column])
        there = draws[:, column][~np.isnan(draws[:, column])]
        if not len(there):
            assert np.isnan([low, high]).all()
        else:
            assert (low, high) == pytest.approx(tuple(np.percentile(there, [2.5, 97.5])))
    # both columns are of one draw: their pairs are those of some resample
    pairs = {tuple(row) for row in np.round(np.nan_to_num(exact, nan=99), 9).tolist()}
    assert {tuple(row) for row in np.round(np.nan_to_num(draws, nan=99), 9).tolist()} == pairs


def test_draws_are_the_same_each_time_and_other_under_another_seed() -> None:
    sums, counts = np.arange(20, dtype=np.float64)[:, None], np.ones((20, 1))
    assert (resampled_means(sums, counts) == resampled_means(sums, counts)).all()
    assert (resampled_means(sums, counts, seed=1) != resampled_means(sums, counts)).any()
