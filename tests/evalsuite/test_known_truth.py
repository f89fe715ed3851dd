"""Simulated studies whose truth is known: what `study`, `power`, `fork` and `people suggest` say of them is right as often as
stated.

A few studies of some kinds here, 500 of every kind in `make test-full`; `python -m tests.bench known-truth` prints the figures.
"""

from itertools import islice

import numpy as np
import pytest

from tests.bench.claims import every_claim
from tests.bench.known_truth import (
    DESIGNS,
    INSIGHTS,
    MEASURES,
    RANKINGS,
    component_coverage,
    correlation_coverage,
    insight_coverage,
    redrawn,
    shown,
    tau_coverage,
    without_effect,
)

pytestmark = pytest.mark.slow

FULL = pytest.mark.full
# Studies and kinds of studies; the least share of one kind whose interval may hold the truth, and the least and most of all.
SIZES = pytest.mark.parametrize(
    ("samples", "kinds", "single", "least", "most"),
    [(40, 2, 0.8, 0.87, 1.0), pytest.param(500, 9, 0.9, 0.93, 0.97, marks=FULL)],
)


@SIZES
def test_correlations_lie_in_their_intervals(samples: int, kinds: int, single: float, least: float, most: float) -> None:
    found = [share for shape in islice(MEASURES.values(), kinds) for share in correlation_coverage(shape, samples)]
    assert min(found) >= single and least <= np.mean(found) <= most, found


@SIZES
def test_components_lie_in_their_intervals(samples: int, kinds: int, single: float, least: float, most: float) -> None:
    found = [share for one in islice(DESIGNS.values(), kinds) for share in component_coverage(one, samples).values()]
    assert min(found) >= single and least <= np.mean(found) <= most, found


@SIZES
def test_what_is_said_of_a_judges_spread_holds(samples: int, kinds: int, single: float, least: float, most: float) -> None:
    found = [insight_coverage(true, samples) for true in INSIGHTS[:kinds]]
    assert min(found) >= single and least <= np.mean(found) <= most, found


@pytest.mark.parametrize(("samples", "kinds", "least"), [(40, 2, 0.9), pytest.param(500, 9, 0.93, marks=FULL)])
def test_tau_lies_between_its_bounds(samples: int, kinds: int, least: float) -> None:
    """No share is too large here: the true tau is one of a few numbers, and bounds that hold it are wide."""
    found = {name: tau_coverage(shape, samples) for name, shape in islice(RANKINGS.items(), kinds)}
    assert min(found.values()) >= least, found
    # Why it has no percentiles of its draws; and that this test can tell.
    assert tau_coverage(RANKINGS["few cards"], samples, redrawn) < 0.9


@pytest.mark.parametrize(("samples", "room"), [(30, 0.2), pytest.param(500, 0.09, marks=FULL)])
def test_planned_cards_show_the_difference_as_often_as_wanted(samples: int, room: float) -> None:
    """Power 0.8: with the true spread, and on average with that of a pilot, which plans for tails that it may not have seen."""
    alone, planned = shown(DESIGNS["one judge, 30 cards"], 8.0, samples)
    assert abs(alone - 0.8) < room and -room / 2 < planned - 0.8 < room, (alone, planned)


@pytest.mark.parametrize(("samples", "most"), [(40, 0.15), pytest.param(500, 0.08, marks=FULL)])
@pytest.mark.parametrize("draws", [6, 12])
def test_a_fork_without_an_effect_seldom_shows_one(draws: int, samples: int, most: float) -> None:
    found = without_effect(draws, samples)
    assert max(found.scores, found.average, found.seeker) <= most, found


@FULL
def test_what_tables_claim_is_true() -> None:
    """Every claim of the bench, on seeds that chose nothing; none may fail by more than it is allowed to."""
    found = [*every_claim(studies=120, seed=31)]
    assert len({claim.claim for claim in found}) > 15
    assert not [claim for claim in found if not claim.kept]
