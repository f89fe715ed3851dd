"""Paired differences against scipy and statsmodels, and their own invariants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import bootstrap, permutation_test
from statsmodels.stats.multitest import multipletests

from core.tables import Estimate
from evalsuite.statistics import paired
from evalsuite.statistics.paired import ALPHA, Difference, differences, fewest_cards, holm, sign_flip_p
from tests.evalsuite.oracles import GAPS, smoothed


def difference(first: Any, second: Any, average_only: bool = False) -> list[Difference]:
    """The difference of two contestants given as [cards] or [cards, dimensions], NaN where nothing was readable."""
    sides = [np.atleast_2d(np.asarray(side, dtype=float).T).T for side in (first, second)]
    values = np.stack(sides, axis=1)
    present = ~np.isnan(values)
    return differences(np.where(present, values, 0), present.astype(float), [(0, 1)], average_only)


def sample(cards: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    base = rng.normal(50, 15, cards)
    return base + rng.normal(2, 8, cards), base + rng.normal(0, 8, cards)


def test_interval_agrees_with_scipys_paired_bootstrap() -> None:
    first, second = sample(120)
    own = difference(first, second)[0]

    def gap(x: Any, y: Any, axis: int) -> Any:
        return x.mean(axis=axis) - y.mean(axis=axis)

    other = bootstrap((first, second), gap, paired=True, n_resamples=20_000, method="percentile", rng=1)
    low, high = other.confidence_interval
    assert own.estimate.mean == pytest.approx((first - second).mean())
    assert own.estimate.low == pytest.approx(low, abs=0.08 * (high - low))
    assert own.estimate.high == pytest.approx(high, abs=0.08 * (high - low))
    assert high - low < 0.6 * (2 * 1.96 * np.sqrt(first.var() / 120 + second.var() / 120)), "pairing pays"


@pytest.mark.parametrize("cards", [2, 5, 9])
def test_few_cards_give_scipys_exact_p(cards: int) -> None:
    gaps = np.random.default_rng(cards).integers(-2, 4, cards).astype(float)
    expected = permutation_test((gaps, np.zeros(cards)), lambda x, y: np.mean(x - y), permutation_type="samples").pvalue
    assert sign_flip_p(gaps[:, None])[0] == pytest.approx(min(expected, 1))


def test_one_card_says_nothing() -> None:
    assert sign_flip_p(np.array([[100.0]])) == 1


def test_many_cards_give_scipys_p_within_chance() -> None:
    noise, second = sample(60)
    gaps = noise - second
    first = second + gaps - gaps.mean() + 2 * gaps.std() / np.sqrt(60)  # two standard errors: p is near 0.05
    found = permutation_test(
        (first, second), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True, rng=1
    )
    # Both are estimates from 9,999 patterns, and scipy doubles the smaller tail: three standard errors of their difference.
    allowed = 3 * np.sqrt(3 * found.pvalue / 9_999)
    assert 0.02 < found.pvalue < 0.1
    assert difference(first, second)[0].p == pytest.approx(found.pvalue, abs=allowed)


def test_p_is_fine_enough_for_the_correction() -> None:
    """Every column as clear as can be: each must hold, however many are corrected together."""
    shares = np.ones((30, 400))
    p = sign_flip_p(shares)
    assert (holm(p) <= paired.ALPHA).all()


@pytest.mark.parametrize("tests", [1, 3, 8, 91])
def test_the_fewest_cards_are_those_on_which_a_difference_can_hold(tests: int) -> None:
    """The first always wins."""
    enough = fewest_cards(tests)
    few, many = (tests * sign_flip_p(np.ones((cards, 1)))[0] for cards in (enough - 1, enough))
    assert many <= ALPHA < few


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.04: × 3 = 0.03; × 2 = 0.04; × 1 = 0.04 (never below the one before). NaN is no comparison.
    assert holm(np.array([0.04, np.nan, 0.01, 0.02])) == pytest.approx([0.04, np.nan, 0.03, 0.04], nan_ok=True)
    assert np.isnan(holm(np.array([np.nan]))).all() and holm(np.array([])).size == 0


def test_holm_agrees_with_statsmodels() -> None:
    p = np.random.default_rng(0).integers(1, 60, 40) / 400  # with ties
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_a_constant_shift_is_found() -> None:
    first, _ = sample(40)
    own = difference(first + 1, first)[0]
    assert (own.estimate.mean, own.estimate.n) == (pytest.approx(1), 40)
    low, high = smoothed([1.0] * 40, GAPS)
    assert (own.estimate.low, own.estimate.high) == (pytest.approx(low, abs=0.6), pytest.approx(high, abs=0.6)), "no certainty"
    assert own.p == pytest.approx(1e-4) and own.holds


def test_the_average_is_the_mean_over_dimensions() -> None:
    first = np.array([[4.0, 1.0], [2.0, 3.0], [3.0, np.nan]])
    second = np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 0.0]])
    fluency, empathy, average = difference(first, second)
    assert (fluency.estimate.mean, fluency.estimate.n) == (pytest.approx(5 / 3), 3)
    assert (empathy.estimate.mean, empathy.estimate.n) == (0.5, 2)
    assert (empathy.first_mean, empathy.second_mean) == (2, 1.5), "over the shared cards only"
    assert (average.estimate.mean, average.estimate.n) == (pytest.approx((5 / 3 + 0.5) / 2), 3)
    assert average.dimension is None and (average.first_mean or 0) - (average.second_mean or 0) == pytest.approx(13 / 12)
    (alone,) = difference(first, second, average_only=True)
    assert (alone.estimate, alone.p) == (average.estimate, average.p) and alone.holm == alone.p


def test_trials_of_a_card_are_averaged_first() -> None:
    sums, counts = np.array([[[300.0], [50.0]]]), np.array([[[4.0], [1.0]]])
    (own, _) = differences(sums, counts, [(0, 1)])
    assert own.estimate == Estimate(25, None, None, 1) and own.p == 1


def test_nothing_shared_is_undefined() -> None:
    nan = np.nan
    own = difference([1, nan, 2], [nan, 3, nan])
    for each in own:
        assert each.estimate == Estimate(None, None, None, 0)
        assert (each.first_mean, each.second_mean, each.p, each.holm, each.holds) == (None,) * 5
    fluency, empathy, average = difference([[1, nan], [2, nan]], [[1, 1], [1, 1]])
    assert fluency.estimate.n == 2 and fluency.p == 1
    assert empathy.p is None and average.estimate.mean is None and average.p is None
    assert fluency.holm == fluency.p, "what is undefined is not counted by Holm"


VALUES = st.one_of(st.just(np.nan), st.integers(0, 4).map(lambda score: 25.0 * score))
SIDES = st.integers(1, 6).flatmap(lambda n: st.tuples(*[arrays(float, (n, 2), elements=VALUES)] * 2))


@given(SIDES)
def test_swapping_sides_only_turns_the_sign(sides: tuple[Any, Any]) -> None:
    for here, there in zip(difference(*sides), difference(*sides[::-1]), strict=True):
        assert (here.p, here.holm, here.holds) == (there.p, there.holm, there.holds)
        assert (here.first_mean, here.second_mean) == (there.second_mean, there.first_mean)
        if here.estimate.mean is None:
            assert there.estimate.mean is None
        else:
            assert here.estimate.mean == pytest.approx(-(there.estimate.mean or 0))


@given(SIDES)
def test_with_itself_nothing_differs(sides: tuple[Any, Any]) -> None:
    found = difference(sides[0], sides[0])
    fewest = min(own.estimate.n for own in found)  # the dimension that the average is least sure of
    for own in found:
        if own.estimate.mean is not None:
            assert (own.estimate.mean, own.p, own.holm, own.holds) == (0, 1, 1, False)
            assert own.estimate.low is None or own.estimate.low < 0 < (own.estimate.high or 0), (
                "of other cards nothing is certain"
            )
            assert (own.estimate.low is None) == ((fewest if own.dimension is None else own.estimate.n) == 1)


@given(SIDES)
def test_figures_are_numpys_on_shared_cards(sides: tuple[Any, Any]) -> None:
    first, second = sides
    own = difference(first, second)
    for column in (0, 1):
        gaps = (first - second)[:, column]
        gaps = gaps[~np.isnan(gaps)]
        estimate = own[column].estimate
        assert estimate.n == len(gaps)
        assert estimate.mean == (pytest.approx(gaps.mean()) if len(gaps) else None)
        if len(gaps):
            assert 2 ** (1 - len(gaps)) - 1e-12 <= (own[column].p or 0) <= 1
            assert (own[column].holm or 0) >= (own[column].p or 0)
        if estimate.low is not None and estimate.high is not None:
            assert -100 <= estimate.low <= gaps.mean() + 1e-9 and gaps.mean() - 1e-9 <= estimate.high <= 100
