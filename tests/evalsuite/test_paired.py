"""Paired differences against scipy and statsmodels, and their own invariants."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import ttest_ind, ttest_rel
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.multitest import multipletests

from core.statistics.inference import ALPHA, holm
from core.tables import Estimate
from evalsuite.statistics.paired import Design, Difference, card_estimates, differences
from tests.evalsuite.oracles import agrees, corrected


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


@pytest.mark.parametrize("cards", [3, 12, 60])
def test_p_is_scipys_t(cards: int) -> None:
    first, second = sample(cards, seed=cards)
    own = difference(first, second)[0]
    assert agrees(own.p, float(ttest_rel(first, second).pvalue), own.estimate)
    far = difference(first + 20, second)[0]
    assert agrees(far.p, float(ttest_rel(first + 20, second).pvalue), far.estimate) and far.holds == (cards > 3)


def test_strata_are_statsmodels_fixed_effects() -> None:
    """Two languages that lie far apart: p is that of their common mean in a regression on the language, and the interval is
    narrower than one over all cards alike."""
    first, second = sample(18, seed=4)
    language = np.array([0] * 12 + [1] * 6)
    gaps = first - second + 60 * language
    values = np.stack([50 + gaps, np.full(18, 50.0)], axis=1)[:, :, None]
    every = np.ones(values.shape)
    (plain,), (own,) = (differences(values, every, [(0, 1)], True, design=Design(None, one)) for one in (None, language))
    assert [own.estimate.mean, plain.estimate.mean] == pytest.approx([gaps.mean()] * 2)
    fit = OLS(gaps, np.column_stack([np.ones(18), language - language.mean()])).fit()
    assert agrees(own.p, float(fit.pvalues[0]), own.estimate)
    width, wider = (float(one.estimate.high or 0) - float(one.estimate.low or 0) for one in (own, plain))
    assert width < 0.7 * wider
    ((average, *_),) = card_estimates(values[:, :1], every[:, :1], [18], design=Design(None, language))
    assert average.mean == pytest.approx(50 + gaps.mean())


def test_a_stratum_of_one_card_is_not_taken_out() -> None:
    first, second = sample(9, seed=5)
    values = np.stack([first, second], axis=1)[:, :, None]
    strata = np.array([0] * 8 + [1])
    both = [differences(values, np.ones(values.shape), [(0, 1)], design=Design(None, one)) for one in (None, strata)]
    assert both[0] == both[1]


def test_sides_without_shared_cards_give_scipys_welch() -> None:
    rng = np.random.default_rng(5)
    first, second = np.full((2, 22), np.nan)
    first[:9], second[9:] = rng.normal(60, 4, 9), rng.normal(40, 9, 13)
    own = difference(first, second)[0]
    assert own.unpaired and own.estimate.n == 22
    assert own.p == pytest.approx(ttest_ind(first[:9], second[9:], equal_var=False).pvalue)
    assert own.estimate.mean == pytest.approx(np.nanmean(first) - np.nanmean(second))


def test_clusters_that_are_all_alike() -> None:
    """The rule by hand: (1 + 25/50) to the minus 12; without it, one p would be 0."""
    own = difference([50.0] * 12, [25.0] * 12)[0]
    assert own.p == pytest.approx(1.5**-12)


def test_nothing_holds_beside_an_interval_over_0() -> None:
    """Eleven cards at the floor and one at the top, against a constant just above: t alone is sure, the interval is not."""
    first = np.zeros((40, 12))
    first[:, 0] = np.linspace(0, 8, 40)
    for row in first:
        own = difference(row, np.full(12, 4.0))[0]
        assert own.estimate.low is not None and own.estimate.high is not None
        if own.estimate.low <= 0 <= own.estimate.high:
            assert own.holds is False and (own.p or 0) > ALPHA


def test_a_family_is_corrected_by_itself() -> None:
    rng = np.random.default_rng(8)
    values = rng.normal(50, 5, (20, 4, 2)) + np.array([9, 6, 3, 0])[:, None]
    pairs, families = [(0, 1), (0, 2), (0, 3), (2, 3)], ["models", "models", "floors", None]
    found = differences(values, np.ones_like(values), pairs, families=families)
    p = {(one.first, one.second, one.dimension): one for one in found}
    for family in ("models", "floors"):
        for chosen in ([None], [0, 1]):
            own = [(*pair, at) for pair, name in zip(pairs, families, strict=True) if name == family for at in chosen]
            assert [p[key].holm for key in own] == pytest.approx(corrected([p[key].p for key in own]))
    assert {p[2, 3, at].p for at in (None, 0, 1)} == {None} and p[2, 3, None].estimate.low is not None


def test_holm_agrees_with_statsmodels() -> None:
    p = np.random.default_rng(0).integers(1, 60, 40) / 400  # with ties
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


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
    assert own.estimate == Estimate(25, None, None, 1) and own.p is None


VALUES = st.one_of(st.just(np.nan), st.integers(0, 4).map(lambda score: 25.0 * score))
SIDES = st.integers(1, 6).flatmap(lambda n: st.tuples(*[arrays(float, (n, 2), elements=VALUES)] * 2))


@given(SIDES)
def test_swapping_sides_only_turns_the_sign(sides: tuple[Any, Any]) -> None:
    for here, there in zip(difference(*sides), difference(*sides[::-1]), strict=True):
        assert (here.p is None, here.holds) == (there.p is None, there.holds)
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
            alone = (fewest if own.dimension is None else own.estimate.n) == 1
            tested = (None, None, None) if alone else (1, 1, False)
            assert (own.estimate.mean, own.p, own.holm, own.holds) == (0, *tested)
            assert own.estimate.low is None or own.estimate.low < 0 < (own.estimate.high or 0), (
                "of other cards nothing is certain"
            )
            assert (own.estimate.low is None) == ((fewest if own.dimension is None else own.estimate.n) == 1)
