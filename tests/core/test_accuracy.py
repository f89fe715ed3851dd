"""Figures of one dimension, by hand and against their definitions written out here; the jackknife of kappa and alpha."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from statsmodels.stats.proportion import proportion_confint

from core.statistics.accuracy import (
    ALPHA_FROM,
    FIGURES,
    KAPPA_FROM,
    accuracy,
    calibration_errors,
    dimension_figures,
    jackknife,
    share,
    spearman,
    weighed_figures,
    wilson,
)
from data_prep.scores.annotator_agreement import ScoredItem, agreement_on
from tests.bench.claims import COVERAGE
from tests.bench.truth_people import rater_claims

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=40)


def test_accuracy_by_hand() -> None:
    row = accuracy([3, 2, None, 0, 4], [3, 2.5, 3, 1, 4])
    counts = {"n": 5, "read": 4, "gold_rounded": 1}
    shares = {"acc": 2 / 5, "acc_read": 2 / 4, "acc_soft": 4 / 5, "acc_soft_read": 1.0, "parse_rate": 4 / 5}
    assert {key: row[key] for key in counts | shares} == counts | shares
    # Rounded gold 3, 3, 3, 1, 4: always 3 is right on three; within one of 3, 3, 3 and 4.
    assert (row["majority_acc"], row["majority_acc_soft"]) == (3 / 5, 4 / 5)


@given(st.lists(st.tuples(st.none() | st.integers(0, 4), st.integers(0, 8).map(lambda n: n / 2)), min_size=1, max_size=12))
def test_accuracy_of_any_verdicts(pairs: list[tuple[int | None, float]]) -> None:
    """Unread verdicts, halves in gold, ties, constants, one item: numpy over all items and over the read ones."""
    values, gold = np.array([np.nan if v is None else v for v, _ in pairs]), np.array([g for _, g in pairs])
    row, read = accuracy(*zip(*pairs, strict=True)), ~np.isnan(values)
    whole = np.trunc(gold + 0.5)
    assert (row["n"], row["read"], row["gold_rounded"]) == (len(pairs), read.sum(), (whole != gold).sum())
    for name, hits in (("acc", values == whole), ("acc_soft", abs(values - whole) <= 1)):
        assert row[name] == pytest.approx(hits.mean())
        assert row[f"{name}_read"] == (pytest.approx(hits[read].mean()) if read.any() else None)
    labels, counts = np.unique(whole, return_counts=True)
    assert row["majority_acc"] == pytest.approx(counts.max() / len(pairs))
    best = max((abs(whole - label) <= 1).mean() for label in labels[counts == counts.max()])
    assert row["majority_acc_soft"] == pytest.approx(best)


@given(st.integers(1, 900).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@example((0, 1))
@example((1, 1))
def test_shares_against_statsmodels(given: tuple[int, int]) -> None:
    hits, n = given
    assert wilson(hits, n) == pytest.approx(proportion_confint(hits, n, method="wilson"), abs=1e-12)
    found, other = share(hits, n), share(n - hits, n)
    assert found.n == n and found.mean == pytest.approx(100 * hits / n)
    assert (found.low, found.high) == pytest.approx((100 - (other.high or 0), 100 - (other.low or 0)), abs=1e-9)


# --- kappa ----------------------------------------------------------------------------------------------------------------


def quadratic_kappa(values: Sequence[float | None], gold: Sequence[float]) -> float | None:
    return dimension_figures(values, gold, [None] * len(gold))["kappa"]


@given(PAIRS)
def test_quadratic_kappa_against_its_definition(pairs: list[tuple[int, int]]) -> None:
    values, gold = zip(*pairs, strict=True)
    expected = sum((a - b) ** 2 for a in values for b in gold) / len(pairs)
    found = quadratic_kappa(values, gold)
    if expected == 0:
        assert found is None
    else:
        assert found == pytest.approx(1 - sum((a - b) ** 2 for a, b in pairs) / expected)


def test_quadratic_kappa_by_hand_leaves_out_what_was_not_read_and_rounds_gold_halves_up() -> None:
    # Squared distances 0, 1, 0, 4 sum to 5. All pairs of [0, 1, 2, 4] with [0, 2, 2, 2]:
    # from 0: 0+1+4+16 = 21; from 2, three times: 4+1+0+4 = 9 each, 27. Expected over 4 pairs: 48/4 = 12.
    assert quadratic_kappa([0, None, 1, 2, 4], [0, 4, 1.5, 2.4, 1.9]) == pytest.approx(1 - 5 / 12)


# --- rank correlation -----------------------------------------------------------------------------------------------------


def ranks(values: Sequence[float]) -> list[float]:
    """Mean ranks: how many are below, and half of the equal ones."""
    return [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]


@given(PAIRS)
def test_spearman_is_pearson_on_mean_ranks(pairs: list[tuple[int, int]]) -> None:
    values, gold = zip(*pairs, strict=True)
    if len(set(values)) == 1 or len(set(gold)) == 1:
        assert spearman(values, gold) is None
    else:
        assert spearman(values, gold) == pytest.approx(np.corrcoef(ranks(values), ranks(gold))[0, 1])


def test_spearman_by_hand() -> None:
    assert spearman([1, 2, 3, 4], [0.5, 2.5, 2.0, 4.0]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert spearman([1, None, 2, 3], [3, 9, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 3], [1.9, 2.1, 2.4]) == pytest.approx(1), "gold is not rounded"


# --- calibration ----------------------------------------------------------------------------------------------------------


def ece(rows: ArrayLike, labels: Sequence[int], bins: int = 10) -> float:
    return float(calibration_errors(rows, labels, np.ones((1, len(labels))), bins)[0])


def test_ece_by_hand() -> None:
    # Bin (0.5, 0.6]: 0.55 right, 0.6 wrong: |1/2 - 0.575| = 0.075, two items. Bin (0.8, 0.9]: 0.9 right: 0.1, one item.
    # Bin (0.9, 1]: 1.0 wrong: 1, one item.
    rows = np.array([[0.55, 0.45, 0], [0.3, 0.6, 0.1], [0, 0.1, 0.9], [1, 0, 0]])
    assert ece(rows, [0, 0, 2, 1]) == pytest.approx((2 * 0.075 + 0.1 + 1) / 4)
    # One bin: |2/4 - (0.55 + 0.6 + 0.9 + 1) / 4|.
    assert ece(rows, [0, 0, 2, 1], bins=1) == pytest.approx(abs(0.5 - 3.05 / 4))


def test_ece_of_the_even_is_the_share_of_the_lowest_score_against_chance() -> None:
    assert ece(np.full((4, 5), 0.2), [0, 0, 0, 1]) == pytest.approx(0.75 - 0.2)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 12))
def test_ece_against_a_plain_loop(seed: int, n: int, bins: int) -> None:
    rng = np.random.default_rng(seed)
    rows, labels = rng.dirichlet(np.ones(4), n), rng.integers(0, 4, n)
    members: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        sure = max(row)
        place = next(b for b in range(bins) if sure <= (b + 1) / bins or b == bins - 1)
        members[place].append((sure, row.index(sure) == label))
    gaps = [abs(sum(hit for _, hit in m) / len(m) - sum(sure for sure, _ in m) / len(m)) * len(m) / n for m in members.values()]
    found = ece(rows, labels.tolist(), bins)
    assert found == pytest.approx(sum(gaps)) and 0 <= found <= 1


ITEMS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0.4, 0.55, 0.8])), min_size=2, max_size=12)


@given(ITEMS, st.data())
def test_figures_of_a_draw_are_those_of_the_items_repeated(items: list[tuple[int, int, float]], data: st.DataObject) -> None:
    """An item that counts twice is there twice: an item that counts not at all is not there."""
    times = data.draw(st.lists(st.integers(0, 3), min_size=len(items), max_size=len(items)).filter(any))
    every = [{str(value): sure, str((value + 1) % 5): 1 - sure} for value, _, sure in items]
    values, gold, _ = zip(*items, strict=True)
    found = weighed_figures(values, gold, every, np.array([times, [1] * len(items)], dtype=float))
    again = [place for place, count in enumerate(times) for _ in range(count)]
    for draw, places in enumerate((again, range(len(items)))):
        each = dimension_figures([values[p] for p in places], [gold[p] for p in places], [every[p] for p in places])
        for name, figures in found.items():
            assert figures[draw] == pytest.approx(np.nan if each[name] is None else each[name], nan_ok=True)


def test_what_is_not_defined_is_none_and_never_left_out() -> None:
    nothing = dimension_figures([], [], [])
    assert {nothing[name] for name in FIGURES} == {None} and nothing["n"] == nothing["read"] == 0
    unread = dimension_figures([None, None], [1.0, 2.0], [None, None])
    assert unread["acc"] == 0 and {unread[name] for name in ("acc_read", "kappa", "spearman", "ece")} == {None}
    alike = dimension_figures([2.0, 2.0], [2.0, 2.0], [{"2": 1.0}, {"2": 1.0}])
    assert (alike["acc"], alike["kappa"], alike["spearman"], alike["ece"]) == (1, None, None, 0)
    between = dimension_figures([1.5, 2.0], [1.0, 2.0], [{"1": 1.0}, None])
    assert between["kappa"] is None and between["ece"] is None and between["spearman"] == pytest.approx(1)
    assert set(unread) == set(alike) == set(between) == set(nothing)


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
    found = [claim for claim in rater_claims(400, seed=410) if "share" not in claim.claim]
    assert found and all(claim.kind == COVERAGE for claim in found)
    assert [claim for claim in found if not claim.kept and claim.studies > 20] == []
