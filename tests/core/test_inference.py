"""Means against fractions; strengths of Bradley and Terry against evalica, what always wins, what never met."""

import json
import math
import subprocess
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.grouping import comparable, exact_mean, mean_of_all
from core.statistics.inference import FEWEST, strengths, welch
from tests.bench.truth_people import vote_claims
from tests.evalsuite import evalica_oracle
from tests.peers import python_with

LIBRARY = Path(evalica_oracle.__file__).with_name("evalica.json")
Vote = tuple[str, int, int, float]


def of(votes: list[Vote], count: int) -> Any:
    return strengths([v[0] for v in votes], np.array([v[1:3] for v in votes]), np.array([v[3] for v in votes]), count)


def test_a_single_system_has_no_strength() -> None:
    assert strengths([], np.zeros((0, 2), dtype=np.intp), np.zeros(0), 1) is None


def test_expected_shares_are_evalicas() -> None:
    expected = json.loads(LIBRARY.read_text(encoding="utf-8"))
    assert expected.keys() == evalica_oracle.CASES.keys()
    for name, shares in expected.items():
        found = strengths(*evalica_oracle.data(name), evalica_oracle.CASES[name][0])
        assert found is not None and [one.mean for one in found.shares] == pytest.approx(shares, abs=0.01)


@pytest.mark.full
def test_the_librarys_figures_are_what_the_library_says() -> None:
    command = [str(python_with("evalica")), evalica_oracle.__file__]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=240).stdout)
    assert {name: pytest.approx(one, abs=1e-6) for name, one in json.loads(LIBRARY.read_text()).items()} == found


def test_a_raw_rate_misleads_where_the_strong_meet_the_strong() -> None:
    """a beats b in 6 of 10, and b beats weak c in 19 of 20: b wins 23 of 30, but a is the stronger."""
    votes = [(f"{n:02}", 0, 1, float(n < 6)) for n in range(10)] + [(f"{n:02}", 1, 2, float(n < 19)) for n in range(20)]
    found = of(votes, 3)
    best, second, last = (one.mean for one in found.shares)
    odds = 1.5 * 19  # of a against c, whom it never met
    assert best == pytest.approx(100 * (0.6 + odds / (1 + odds)) / 2, abs=0.01) and second == pytest.approx(
        100 * (0.4 + 0.95) / 2
    )
    assert best > second > last and found.pairs[0, 2][0].mean == pytest.approx(100 * odds / (1 + odds), abs=0.01)


def test_votes_of_one_item_are_no_more_than_one() -> None:
    alone = [(f"{n:02}", 0, 1, [1.0, 1.0, 0.5, 0.0, 1.0][n % 5]) for n in range(20)]
    crowd = [vote for vote in alone for _ in range(7)]
    (one, p), (many, again) = (of(votes, 2).pairs[0, 1] for votes in (alone, crowd))
    assert (many.mean, many.low, many.high, again) == pytest.approx((one.mean, one.low, one.high, p), abs=0.01)
    assert one.mean == pytest.approx(70, abs=0.01) and one.low < 70 < one.high and (one.n, many.n) == (20, 140)


def test_who_always_wins_has_a_finite_strength_and_the_p_of_a_sign_test() -> None:
    found = of([(f"{n:02}", 0, 1, 1.0) for n in range(12)], 2)
    (share, p) = found.pairs[0, 1]
    assert share.mean == pytest.approx(100, abs=0.01) and 70 < share.low < 95 and p == pytest.approx(2 * 0.5**12)


def test_what_never_met_and_few_items_are_not_claimed() -> None:
    apart = [(f"{n}", 0, 1, 1.0) for n in range(9)] + [(f"{n}", 2, 3, 1.0) for n in range(9)]
    assert of(apart, 4) is None
    few = of([(f"{n}", 0, 1, float(n > 0)) for n in range(FEWEST - 1)] * 3, 2)
    (share, p) = few.pairs[0, 1]
    assert share.mean is not None and (share.low, share.high, p) == (None, None, None)


@pytest.mark.full
@pytest.mark.slow
def test_intervals_hold_and_equals_are_not_told_apart() -> None:
    assert [claim for claim in vote_claims(300, seed=411) if not claim.kept and claim.studies > 20] == []


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


def test_an_average_over_something_undefined_is_undefined() -> None:
    assert mean_of_all([0.5, 0.25]) == 0.375
    assert mean_of_all([0.5, None]) is None and mean_of_all([None]) is None


def test_sides_that_never_vary_leave_one_degree_of_freedom() -> None:
    """Welch's ratio is 0 / 0 there."""
    error, degrees = welch(np.array([0.0, 3.0]), np.array([0.0, 4.0]), (np.array([5, 5]), np.array([5, 5])))
    assert error.tolist() == [0, 5] and degrees[0] == 1
    assert degrees[1] == pytest.approx(25**2 / (9**2 / 4 + 16**2 / 4))
