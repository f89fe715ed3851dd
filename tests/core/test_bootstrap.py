"""The bootstrap of every interval, against all resamples of few rows written out, and its coverage on scores of known mean.

200 samples of each population here, 500 in `make test-full`; `python -m tests.bench coverage` does the same on the scores that
people and judges gave.
"""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.statistics.bootstrap import (
    POINTS,
    RESAMPLES,
    SHARES,
    Floats,
    estimate,
    gap_levels,
    interval,
    resampled_means,
    smoothed_means,
)
from core.tables import Estimate
from tests.bench.coverage import Population, coverage, percentile, smoothed

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


def test_smoothed_means_have_the_moments_of_their_dirichlet_posterior() -> None:
    """A mean of Dirichlet weights has mean Σ a·x / A and variance (Σ a·x² / A − mean²) / (A + 1), A being the sum of shapes."""
    values = np.array([0.0, 25.0, 25.0, 75.0, 100.0, 100.0])
    shapes, places = np.array([*[1 - 1 / 6] * 6, 0.5]), np.append(values, POINTS.mean())
    squares = np.append(values**2, (POINTS**2).mean())
    total = shapes.sum()
    mean = shapes @ places / total
    variance = (shapes @ squares / total - mean**2) / (total + 1)
    # The half row has one level in a draw, no mixture of them, which adds its levels' variance × a² / (A (A + 1)).
    variance += POINTS.var() * 0.5**2 / (total * (total + 1))
    draws = np.concatenate([smoothed_means(values[:, None], np.ones((6, 1)), POINTS, seed)[:, 0] for seed in range(20)])
    assert draws.mean() == pytest.approx(mean, abs=0.4)
    assert draws.var() == pytest.approx(variance, rel=0.03)


def test_equal_scores_have_an_interval_and_one_row_says_nothing() -> None:
    draws = smoothed_means(np.full((12, 1), 25.0), np.ones((12, 1)), POINTS)[:, 0]
    low, high = interval(draws)
    assert 15 < low < 25 < high < 45
    alone = smoothed_means(np.array([[25.0]]), np.ones((1, 1)), POINTS)[:, 0]
    assert set(alone.round(9).tolist()) == set(POINTS.tolist())
    assert np.isnan(smoothed_means(np.zeros((3, 1)), np.zeros((3, 1)), POINTS)).all()
    assert sorted(set(gap_levels(POINTS).tolist())) == [-100, -75, -50, -25, 0, 25, 50, 75, 100]
    assert estimate(100.0, np.linspace(90, 100 - 1e-12, 10), 3, 3).high == 100


def test_there_is_no_interval_without_width_and_none_of_resamples_of_two_rows() -> None:
    assert estimate(100.0, np.full(10, 100 - 1e-12), 3, 3) == Estimate(100.0, None, None, 3)
    one, two = np.array([[0.0], [1.0]]), np.array([[0.0], [1.0], [5.0]])
    assert estimate(0.5, resampled_means(one, np.ones((2, 1)))[:, 0], 2, 2) == Estimate(0.5, None, None, 2)
    assert estimate(2.0, resampled_means(two, np.ones((3, 1)))[:, 0], 3, 3) == Estimate(2.0, 0.0, 5.0, 3)
    assert estimate(0.5, smoothed_means(one, np.ones((2, 1)), POINTS)[:, 0], 2, 2).low is not None


def test_many_rows_weigh_about_as_in_the_exact_draws() -> None:
    """From 100 rows on weights are exponential, not Gamma(1 − 1/n): the interval's width hardly changes there."""
    values = np.tile([0.0, 50.0, 100.0], 40)
    widths = []
    for size in (99, 102):
        low, high = interval(smoothed_means(values[:size, None], np.ones((size, 1)), POINTS)[:, 0])
        widths.append((high - low) * size**0.5)
    assert widths[1] == pytest.approx(widths[0], rel=0.06)


def population(name: str, values: Floats, levels: Floats, counts: Floats | None = None) -> Population:
    return Population("test", name, values, np.ones(len(values)) if counts is None else counts, levels)


def of_counts(name: str, *counts: int, levels: Floats = POINTS) -> Population:
    """Scores on the levels, so many times each."""
    return population(name, np.repeat(np.linspace(levels.min(), levels.max(), len(counts)), counts).astype(float), levels)


def clustered() -> Population:
    """Cards of one to nine dialogues whose scores hang together."""
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 10, 400)
    sums = [25.0 * rng.binomial(4, rng.beta(6, 2), size).sum() for size in sizes]
    return population("clustered", np.array(sums), POINTS, sizes.astype(float))


def gaps() -> Population:
    rng = np.random.default_rng(5)
    first, second = (25.0 * rng.binomial(4, share, 400) for share in (0.7, 0.6))
    return population("differences", first - second, gap_levels(POINTS))


POPULATIONS = [
    of_counts("a judge that likes 1", 8, 68, 16, 8, 0),
    of_counts("a judge that likes the top", 0, 2, 10, 28, 60),
    of_counts("in the middle", 2, 16, 46, 30, 6),
    of_counts("right or wrong", 40, 60, levels=100 * SHARES),
    clustered(),
    gaps(),
]


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "least"), [(200, 0.88), pytest.param(500, 0.9, marks=pytest.mark.full)])
@pytest.mark.parametrize("size", [5, 12, 50])
def test_intervals_hold_the_mean_as_often_as_they_say(size: int, samples: int, least: float) -> None:
    found = {one.name: coverage(smoothed, one, size, samples) for one in POPULATIONS}
    assert all(one.points == 0 for one in found.values()), "none without width"
    held = [one.held for one in found.values()]
    assert min(held) > least, found
    assert 0.93 <= np.mean(held) <= (0.995 if size == 5 else 0.98), found


def test_the_percentile_bootstrap_of_five_does_not() -> None:
    """So this test can fail."""
    found = [coverage(percentile, one, 5, 500) for one in POPULATIONS]
    assert np.mean([one.held for one in found]) < 0.85 and max(one.points for one in found) > 0.1
