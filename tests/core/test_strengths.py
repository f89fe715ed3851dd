"""Strengths of Bradley and Terry: shares against evalica, what always wins, what never met, and no false claims."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.statistics.inference import FEWEST, strengths
from tests.bench.truth_votes import claims
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
    assert [claim for claim in claims(300, seed=411) if not claim.kept and claim.studies > 20] == []
