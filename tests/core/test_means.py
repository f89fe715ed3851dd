"""Means against fractions and by hand."""

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.grouping import comparable, exact_mean, mean_of_all
from core.statistics.inference import welch


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.randoms())
def test_tenths_have_the_mean_that_they_have_on_paper_in_any_order(tenths: list[int], rng: object) -> None:
    on_paper = float(Fraction(sum(tenths), 10 * len(tenths)))
    rng.shuffle(tenths)  # type: ignore[attr-defined]
    assert exact_mean(tenth / 10 for tenth in tenths) == on_paper


def test_where_sums_of_floats_miss_a_half() -> None:
    assert {exact_mean(order) for order in permutations([1.4, 2.8, 3.3])} == {2.5}
    assert math.fsum([0.6, 2.3, 4.6]) / 3 < 2.5 == exact_mean([0.6, 2.3, 4.6])


def test_a_mean_of_means_ties_with_the_same_mean_of_scores() -> None:
    crowd = exact_mean([2, 2, 3])
    assert exact_mean([crowd, 3]) != exact_mean([2, 3, 3]), "floats hold no thirds"
    assert comparable(exact_mean([crowd, 3])) == comparable(exact_mean([2, 3, 3]))


@pytest.mark.parametrize("number", [0.0, 2.5, -1.25, 1e-30, 123456.789012])
def test_what_has_twelve_digits_stays_as_it_is(number: float) -> None:
    assert comparable(number) == number


def test_an_average_over_something_undefined_is_undefined() -> None:
    assert mean_of_all([0.5, 0.25]) == 0.375
    assert mean_of_all([0.5, None]) is None and mean_of_all([None]) is None


def test_sides_that_never_vary_leave_one_degree_of_freedom() -> None:
    """Welch's ratio is 0 / 0 there."""
    error, degrees = welch(np.array([0.0, 3.0]), np.array([0.0, 4.0]), (np.array([5, 5]), np.array([5, 5])))
    assert error.tolist() == [0, 5] and degrees[0] == 1
    assert degrees[1] == pytest.approx(25**2 / (9**2 / 4 + 16**2 / 4))
