"""The jackknife interval of kappa and alpha: refused where ratings say too little, and true as often as it says."""

import numpy as np
import pytest

from core.statistics.accuracy import ALPHA_FROM, KAPPA_FROM, jackknife
from data_prep.scores.annotator_agreement import ScoredItem, agreement_on
from tests.bench.claims import COVERAGE
from tests.bench.truth_raters import claims


def rated(*pairs: tuple[int, int]) -> dict[ScoredItem, dict[str, float]]:
    return {ScoredItem(f"{n:03}"): {"a": float(a), "b": float(b)} for n, (a, b) in enumerate(pairs)}


@pytest.mark.parametrize("many", [0, 200])
def test_nearly_equal_ratings_have_no_interval_however_many_there_are(many: int) -> None:
    """What is scored in the most frequent way adds nothing: the count is of the others."""
    said = [(1 + n % 3, 1 + (n * 7) % 4) for n in range(KAPPA_FROM)]
    given = agreement_on(rated(*said, *[(0, 0)] * (many + 9)))
    fewer = agreement_on(rated(*said[1:], *[(0, 0)] * (many + 10)))
    assert given is not None and given.kappa.low is not None and given.alpha.low is not None
    assert fewer is not None and fewer.kappa.mean is not None and fewer.kappa.low is None and fewer.alpha.low is not None
    few = agreement_on(rated(*said[1:ALPHA_FROM], *[(0, 0)] * (many + 10)))
    assert few is not None and few.alpha.mean is not None and few.alpha.low is None and few.alpha.high is None


def test_a_figure_that_one_cluster_alone_defines_has_no_interval() -> None:
    values = np.linspace(0.4, 0.6, 40)
    assert jackknife(np.array([0.5, *values]), 40).low is not None
    values[3] = np.nan
    assert jackknife(np.array([0.5, *values]), 40).low is None
    assert jackknife(np.array([np.nan, *values]), 40).mean is None and jackknife(np.array([1.0, *values[:3]]), 40).low is None


@pytest.mark.full
@pytest.mark.slow
def test_agreement_lies_in_its_intervals() -> None:
    found = [claim for claim in claims(400, seed=410) if "share" not in claim.claim]
    assert found and all(claim.kind == COVERAGE for claim in found)
    assert [claim for claim in found if not claim.kept and claim.studies > 20] == []
