"""Coverage of the tables' intervals on scores of known mean: discrete, skewed, at the scale's end, by card, and right or wrong.

200 samples of each here, 500 in `make test-full`; `python -m tests.bench coverage` does the same on the scores that people and
judges gave.
"""

import numpy as np
import pytest

from core.statistics.bootstrap import POINTS, SHARES, Floats, gap_levels
from tests.bench.coverage import Population, coverage, percentile, smoothed


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
