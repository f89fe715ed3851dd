"""Tests between judges, against scipy, statsmodels and worked examples."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import bootstrap, t
from statsmodels.regression.linear_model import OLS

from core.errors import UserError
from core.tables import Estimate, fmt
from evalsuite.statistics.contestants import Clusters
from evalsuite.statistics.judge_figures import JudgeDifference, beaten, compare, comparison_tables
from evalsuite.statistics.judges import by_judge
from evalsuite.statistics.summary import AVERAGE
from tests.evalsuite.oracles import agrees, corrected, student
from tests.evalsuite.test_judges import golden, judged

# --- tests between judges -------------------------------------------------------------------------------------------------

SCORE = st.integers(0, 2) | st.none()


@given(st.lists(st.tuples(SCORE, SCORE, st.integers(0, 2)), min_size=1, max_size=30), st.sampled_from(["paper", "native"]))
def test_the_difference_of_one_verdict_a_dialogue_is_the_paired_t_test_of_hits(
    rows: list[tuple[Any, Any, int]], mode: str
) -> None:
    judges = by_judge(judged("a", [a for a, _, _ in rows]) + judged("b", [b for _, b, _ in rows]))
    one, average = compare(judges, golden([g for _, _, g in rows]), mode)
    kept = [row for row in rows if mode == "paper" or None not in row]
    hits = np.array([[float(a == g), float(b == g)] for a, b, g in kept]).reshape(-1, 2)
    assert replace(one, dimension=AVERAGE) == average, "of one dimension"
    assert (one.n, one.clusters) == (len(kept), len(kept))
    if not kept:
        assert one.p is one.p_holm is one.acc_a is one.difference is one.low is None
        return
    assert (one.acc_a, one.acc_b) == pytest.approx((hits[:, 0].mean(), hits[:, 1].mean()))
    raw = student((hits[:, :1] - hits[:, 1:]).tolist(), most=1)
    assert agrees(one.p, raw, Estimate(one.difference, one.low, one.high, one.n)) and one.p_holm == one.p
    back, _ = compare(dict(reversed(judges.items())), golden([g for _, _, g in rows]), mode)
    assert one.difference is not None and back.difference == pytest.approx(-one.difference)


HITS = st.tuples(*[st.none() | st.integers(0, 1)] * 4)  # a and b on two dimensions of one dialogue


@given(st.lists(HITS, min_size=1, max_size=7))
@example([(1, 1, 0, 0), (0, 1, 1, 0), (None, 1, 0, 0), (None, 0, 0, 1)])  # a dimension on fewer dialogues weighs as much
def test_the_difference_of_averages_against_scipy(rows: list[tuple[int | None, ...]]) -> None:
    """Ties, equal judges, one dialogue, unreadable verdicts on either side; the intervals have tests of their own."""
    names = ("fluency", "skill")
    verdicts = [
        j for c, who in enumerate("aabb") for j in judged(who, [r[c] for r in rows], names[c % 2])
    ]  # fmt: skip
    gold = [g for name in names for g in golden([1] * len(rows), name)]
    average = compare(by_judge(verdicts), gold, "native")[-1]
    gaps = [[None if None in (x, y) else x - y for x, y in zip(row[:2], row[2:], strict=True)] for row in rows]  # type: ignore[operator]
    columns = [[gap for gap in column if gap is not None] for column in zip(*gaps, strict=True)]
    assert average.clusters == sum(row != [None, None] for row in gaps) and average.n == sum(map(len, columns))
    if not all(columns):
        assert average.difference is average.low is average.high is average.p is average.p_holm is None
        return
    assert average.difference == pytest.approx(sum(sum(column) / len(column) for column in columns) / 2)
    estimate = Estimate(average.difference, average.low, average.high, average.n)
    assert agrees(average.p, student(gaps, most=1), estimate) and average.p_holm == average.p
    if min(map(len, columns)) < 2:
        assert average.low is average.high is None, "a dimension on one dialogue is the same in every resample"
    else:
        assert average.low is not None and average.high is not None and -1 <= average.low <= average.high <= 1


def test_a_difference_over_cards_is_the_clustered_regression_of_statsmodels() -> None:
    """Cards of unlike size, each rating weighing the same: an intercept with cluster-robust errors."""
    rng = np.random.default_rng(5)
    cards = np.repeat(np.arange(12), rng.integers(1, 9, 12))
    lean = rng.normal(0, 1, 12)[cards]
    a, b = ((rng.normal(0, 1, len(cards)) + lean * side > 0).astype(float) for side in (1, -1))
    clusters = Clusters({f"d{place}": f"card {card}" for place, card in enumerate(cards)}, "cards")
    one, _ = compare(
        by_judge(judged("a", a.tolist()) + judged("b", b.tolist())), golden([1] * len(cards)), "paper", clusters=clusters
    )
    fitted = OLS(a - b, np.ones(len(cards))).fit(cov_type="cluster", cov_kwds={"groups": cards, "use_correction": False})
    error = fitted.bse[0] * np.sqrt(12 / 11)
    assert one.difference == pytest.approx((a - b).mean()) and (one.n, one.clusters) == (len(cards), 12)
    raw = float(2 * t.sf(abs(fitted.params[0]) / error, 11))
    assert agrees(one.p, raw, Estimate(one.difference, one.low, one.high, one.n))
    assert one.low is not None and one.high is not None and one.high - one.low > 2 * 1.5 * fitted.bse[0]


def test_the_interval_of_the_difference_is_scipys() -> None:
    rng = np.random.default_rng(4)
    hits = (rng.random((60, 4)) < (0.8, 0.6, 0.5, 0.5)).astype(float)
    verdicts = [j for c, who in enumerate("aabb") for j in judged(who, hits[:, c].tolist(), ("fluency", "skill")[c % 2])]
    gold = [g for name in ("fluency", "skill") for g in golden([1] * 60, name)]
    average = compare(by_judge(verdicts), gold, "paper")[-1]
    gaps = (hits[:, :2] - hits[:, 2:]).mean(axis=1)
    low, high = bootstrap((gaps,), np.mean, method="percentile", rng=1).confidence_interval
    assert (average.low, average.high) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))


def test_only_shared_items_are_compared_and_their_number_said() -> None:
    a, b = judged("a", [3, 3, 3, 3]), judged("b", [0, 3, 3], first=2)
    gold = golden([3, 3, 3, 0, 3])
    one, average = compare(by_judge(a + b), gold, "paper")
    assert (one.n, one.acc_a, one.acc_b) == (2, 0.5, 0.0)
    assert (average.n, average.difference) == (2, 0.5)


def test_judges_that_share_nothing_are_an_error() -> None:
    with pytest.raises(UserError, match="judges a and b have no item in common.*--rubric"):
        compare(by_judge(judged("a", [1]) + judged("b", [1], first=1)), golden([1, 1]), "paper")


def test_holm_runs_over_the_averages_of_a_language_and_then_over_its_dimensions() -> None:
    rng = np.random.default_rng(0)
    zh: dict[str, Any] = {"language": "zh", "first": 40}
    hits = {
        (who, name): np.where(rng.random(40) < share, 3.0, 0.0).tolist()
        for who, share in zip("abc", (0.9, 0.6, 0.5), strict=True)
        for name in ("fluency", "skill")
    }
    verdicts = [j for (who, name), values in hits.items() for j in judged(who, values, name)]
    verdicts += [j for who in "abc" for j in judged(who, hits[who, "skill"], **zh)]
    gold = golden([3] * 40) + golden([3] * 40, "skill") + golden([3] * 40, **zh)
    found = compare(by_judge(verdicts), gold, "paper")
    assert [(d.a, d.b, d.language, d.dimension) for d in found[:5]] == [
        *(("a", "b", "en", name) for name in ("fluency", "skill", AVERAGE)),
        *(("a", "b", "zh", name) for name in ("fluency", AVERAGE)),
    ]
    families = {(d.language, d.dimension == AVERAGE) for d in found}
    assert len(families) == 4
    for family in families:
        own = [d for d in found if (d.language, d.dimension == AVERAGE) == family]
        assert [d.p_holm for d in own] == pytest.approx(corrected([d.p for d in own]))
    assert any(d.p_holm != d.p for d in found) and {AVERAGE, "fluency", "skill"} >= {d for _, d, _ in beaten(found)} >= {
        AVERAGE
    }


def test_small_p_values_are_not_printed_as_nought() -> None:
    found = [
        JudgeDifference("en", "fluency", "a", "b", 50, 25, 1.0, 0.5, 0.5, 0.4, 0.6, 6e-8, 6e-8),
        JudgeDifference("en", "x", "a", "b", 0, 0, None, None, None, None, None, None),
    ]
    average, table = comparison_tables(found, "paper", {})
    assert average.rows == () and [fmt(cell) for cell in table.rows[0][-5:]] == [
        "50.00 [40.00, 60.00] n=50",
        "25",
        "< 0.001",
        "< 0.001",
        "yes",
    ]
    assert [fmt(cell) for cell in table.rows[1][-7:]] == ["–", "–", "– n=0", "0", "–", "–", "–"]
    assert comparison_tables([], "paper", {}) == []
