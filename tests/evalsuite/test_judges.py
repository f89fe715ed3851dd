"""Several judges: names, table 4, confusion, calibration, the tests between them and `esc-eval agree`, against scipy,
scikit-learn, statsmodels and worked examples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import bootstrap, t
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix
from statsmodels.regression.linear_model import OLS

from core.errors import UserError
from core.records import HumanScore, Judgement
from core.rubrics import Scale
from core.tables import Estimate, Table, fmt
from evalsuite.statistics.agreement import agreement
from evalsuite.statistics.contestants import Clusters
from evalsuite.statistics.judge_figures import JudgeDifference, beaten, compare, comparison_tables
from evalsuite.statistics.judges import POOLED, against_gold, by_judge, calibration, confusion, confusion_tables, table4
from evalsuite.statistics.summary import AVERAGE
from tests.evalsuite.oracles import agrees, corrected, smoothed, student

Values = Sequence[float | None]
LEVELS = [0, 1]  # of a share


def judged(judge: str, values: Values, dimension: str = "fluency", first: int = 0, **changes: Any) -> list[Judgement]:
    fields: dict[str, Any] = {"language": "en", "rubric": "esc_eval", "method": "joint", "judge": judge} | changes
    return [Judgement(dialogue_id=f"d{i}", dimension=dimension, value=v, **fields) for i, v in enumerate(values, start=first)]


def golden(values: Sequence[float], dimension: str = "fluency", first: int = 0, **changes: Any) -> list[HumanScore]:
    fields: dict[str, Any] = {"language": "en", "annotator": "a", "rubric": "esc_eval"} | changes
    return [HumanScore(dialogue_id=f"d{i}", dimension=dimension, value=v, **fields) for i, v in enumerate(values, start=first)]


def shown_tables(judgements: list[Judgement], gold: list[HumanScore], mode: str = "paper") -> list[Table]:
    judges = by_judge(judgements)
    worse = beaten(compare(judges, gold, mode)) if len(judges) > 1 else ()
    return [*table4(against_gold(judges, gold), gold, mode, {"fluency": "Fluency"}, beaten=worse)]


def figures_of(table: Table, row: int) -> dict[str, str]:
    return dict(zip(table.columns, map(fmt, table.rows[row]), strict=True))


# --- who is a judge -------------------------------------------------------------------------------------------------------


def test_judges_are_called_by_as_much_as_tells_them_apart() -> None:
    verdicts = [
        *judged("a", [1]),
        *judged("b", [1], method="joint", condition={"mode": "native"}),
        *judged("b", [1], method="paper", condition={"mode": "paper"}),
        *judged("c", [1], rubric="x", condition={"failure": "infrastructure"}),
        *judged("c", [1], rubric="y"),
    ]
    assert list(by_judge(verdicts)) == ["a", "b · joint · mode=native", "b · paper · mode=paper", "c · x", "c · y"]


def test_two_judges_never_share_a_name() -> None:
    twins = judged("a", [1], method="x") + judged("a", [1], method="y") + judged("a · x", [1])
    with pytest.raises(UserError, match="two judges would be called 'a · x'"):
        by_judge(twins)


def test_why_a_verdict_is_missing_makes_no_other_judge() -> None:
    lost = judged("a", [None], first=1, condition={"failure": "context_overflow"})
    assert [len(own) for own in by_judge(judged("a", [1]) + lost).values()] == [2]


# --- table 4 --------------------------------------------------------------------------------------------------------------


def test_table_4_by_hand() -> None:
    gold = golden([3, 3, 2, 4]) + golden([1, 1, 1, 0], "skill")
    one = judged("one", [3, 3, 2, 0]) + judged("one", [1, 1, 3, None], "skill")
    two = judged("two", [3, 0, 0, 4]) + judged("two", [1, 1, 3, 3], "skill")
    (table,) = shown_tables(one + two, gold)
    assert table.key == "table4_en"
    assert [row[0] for row in table.rows] == ["one", "two", "majority class"]
    first, last = figures_of(table, 0), figures_of(table, 2)
    assert first["Fluency ACC"].startswith("75.00 [") and first["Fluency ACC"].endswith("n=4")
    assert (first["skill ACC_soft"], first["average ACC_soft"], first["Read %"]) == ("50.00", "62.50", "87.50")
    assert first["average ACC"].startswith("62.50 [") and first["average ACC"].endswith("n=8")
    assert last["Fluency ACC"] == "50.00 n=4" and last["skill ACC"] == "75.00 n=4" and last["average ACC"] == "62.50 n=8"
    assert table.bold == (), "four dialogues tell nobody apart"


def test_whom_no_other_beats_by_a_difference_that_holds_is_bold() -> None:
    """Two of three judges are right, on one dimension; on the other they are all alike."""
    gold = golden([3] * 12) + golden([1] * 12, "skill")
    good = [3.0] * 10 + [0.0] * 2
    verdicts = [j for who in "ab" for j in judged(who, good) + judged(who, good[::-1], "skill")]
    verdicts += judged("bad", [0.0] * 12) + judged("bad", good, "skill")
    (table,) = shown_tables(verdicts, gold)
    assert {(table.rows[r][0], table.columns[c]) for r, c in table.bold} == {
        (who, f"{what} ACC") for who in "ab" for what in ("Fluency", "average")
    }


def test_native_mode_leaves_the_unreadable_out_and_may_find_another_best() -> None:
    gold = golden([3] * 40)
    verdicts = judged("careful", [3] * 18 + [None] * 22) + judged("bold", [3] * 9 + [0] * 9 + [3] * 22)
    for mode, best in (("paper", 1), ("native", 0)):
        (table,) = shown_tables(verdicts, gold, mode)
        assert (best, 1) in table.bold and (1 - best, 1) not in table.bold


def test_an_unread_judge_is_a_dash_and_never_the_best() -> None:
    (table,) = shown_tables(judged("mute", [None, None]) + judged("wrong", [0, 0]), golden([3, 4]), "native")
    assert figures_of(table, 0)["Fluency ACC"] == "– n=0"
    assert table.bold == ()


def test_a_difference_of_turns_is_the_difference_of_the_accuracies() -> None:
    """One dialogue has one rated turn (only a is right), another has nine (only b is right)."""
    turns = [("d0", 1)] + [("d1", turn) for turn in range(1, 18, 2)]
    verdicts = [
        Judgement(dialogue_id=d, language="en", judge=name, rubric="g", dimension="fluency", value=value, turn=turn)
        for name, right in (("a", "d0"), ("b", "d1"))
        for d, turn in turns
        for value in [3.0 if d == right else 1.0]
    ]
    gold = [
        HumanScore(dialogue_id=d, language="en", annotator="p", rubric="g", dimension="fluency", value=3, turn=turn)
        for d, turn in turns
    ]
    _, average = compare(by_judge(verdicts), gold, "native")
    assert average.difference == pytest.approx(0.1 - 0.9) and (average.n, average.clusters) == (10, 2)


def test_what_a_distribution_does_not_name_has_no_probability() -> None:
    verdicts = judged("a", [3, 4], distribution={"3": 0.9, "4": 0.1})
    gold = golden([1, 4])
    assert against_gold(by_judge(verdicts), gold)["a"]["en"]["fluency"]["ece"] == pytest.approx(0.9)


def test_a_judge_without_a_dimension_has_no_average() -> None:
    gold = golden([3, 2]) + golden([3, 2], "skill")
    verdicts = judged("whole", [3, 3]) + judged("whole", [0, 0], "skill") + judged("part", [3, 2])
    (table,) = table4(against_gold(by_judge(verdicts), gold), gold, "paper", {"fluency": "Fluency"}, same_items=False)
    part = figures_of(table, 1)
    assert part["average ACC"] == "– n=0" and part["skill ACC"] == "– n=0" and part["Fluency ACC"].startswith("100.00")
    assert "different items" in table.notes[1]


@pytest.mark.parametrize(
    ("verdicts", "gold", "problem"),
    [
        (judged("a", [1, 2]), golden([1]), "1 judgements without gold.*d1/fluency"),
        (judged("a", [1]) + judged("b", [2], first=1), golden([1, 2, 3]), "1 gold without a judgement.*d2/fluency"),
    ],
)
def test_items_that_one_side_lacks_are_errors(verdicts: list[Judgement], gold: list[HumanScore], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        against_gold(by_judge(verdicts), gold)


# --- confusion ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4) | st.none(), st.integers(0, 4)), min_size=1, max_size=30))
def test_confusion_against_scikit_learn(pairs: list[tuple[int | None, int]]) -> None:
    verdicts, gold = judged("a", [v for v, _ in pairs]), golden([g for _, g in pairs])
    found = confusion(verdicts, gold, {"fluency": Scale(min=0, max=4)})["en"]
    read = [(v, g) for v, g in pairs if v is not None]
    expected = confusion_matrix([g for _, g in read], [v for v, _ in read], labels=range(5)) if read else np.zeros((5, 5))
    assert found["fluency"].counts == expected.tolist() == found[POOLED].counts
    assert sum(map(sum, found["fluency"].counts)) + sum(found["fluency"].unread) == len(pairs)
    assert found["fluency"].unread == [sum(v is None and g == score for v, g in pairs) for score in range(5)]


def test_confusion_pools_dimensions_and_shows_every_score_between() -> None:
    found = confusion(judged("a", [1.0]) + judged("a", [4], "skill"), golden([1.5]) + golden([4], "skill"))["en"]
    assert found["fluency"].scores == [1, 2, 3, 4]  # without a scale: what occurs, gaps filled; 1.5 is rounded up
    assert found["fluency"].counts[1] == [1, 0, 0, 0]
    assert sum(map(sum, found[POOLED].counts)) == 2
    (table,) = confusion_tables({"en": found}, {})
    assert table.columns == ("Dimension", "Gold", "1", "2", "3", "4", "unreadable", "n")
    assert table.rows[1] == ("fluency", "2", 1, 0, 0, 0, 0, 1) and len(table.rows) == 12


def test_a_score_off_the_scale_is_an_error() -> None:
    with pytest.raises(UserError, match=r"dialogue d\d, dimension .*gold is 5.* runs from 0 to 4"):
        confusion(judged("a", [1]), golden([5]), {"fluency": Scale(min=0, max=4)})


# --- calibration ----------------------------------------------------------------------------------------------------------


def probable(values: Sequence[int], tops: Sequence[float]) -> list[Judgement]:
    """Verdicts on 0–1 whose score has the probability given (0.5 at least)."""
    return [
        j.model_copy(update={"distribution": {str(v): top, str(1 - v): 1 - top}})
        for j, v, top in zip(judged("a", values), values, tops, strict=True)
    ]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.floats(0.55, 1)), min_size=1, max_size=40))
def test_calibration_against_scikit_learn_and_the_ece(rows: list[tuple[int, int, float]]) -> None:
    verdicts, gold = probable([v for v, _, _ in rows], [p for _, _, p in rows]), golden([g for _, g, _ in rows])
    bins = [b for b in calibration(verdicts, gold) if b.dimension == "fluency"]
    shares, means = calibration_curve([v == g for v, g, _ in rows], [p for _, _, p in rows], n_bins=10)
    assert [b.hit_rate for b in bins] == pytest.approx(shares.tolist())
    assert [b.confidence for b in bins] == pytest.approx(means.tolist())
    error = sum(b.n * abs(b.hit_rate - b.confidence) for b in bins) / len(rows)
    assert agreement(verdicts, gold)["en"]["fluency"]["ece"] == pytest.approx(error)
    for b in bins:
        if b.hit_low is None or b.hit_high is None:
            assert b.n == b.clusters == 1
        else:
            assert b.hit_low - 1e-9 <= b.hit_rate <= b.hit_high + 1e-9
    assert all(b.low < b.confidence + 1e-9 and b.confidence <= b.high + 1e-9 for b in bins)


def test_bins_draw_clusters_whole() -> None:
    verdicts, gold = probable([1] * 12, [0.95] * 12), golden([1, 0, 0, 1] * 3)
    (each, _), (pairs, _) = (
        calibration(verdicts, gold, Clusters(of)) for of in ({}, {f"d{n}": f"{n // 2}" for n in range(12)})
    )
    assert (each.n, each.clusters, pairs.n, pairs.clusters) == (12, 12, 12, 6)
    assert (pairs.hit_low, pairs.hit_high) == pytest.approx(smoothed([1] * 6, LEVELS, [2] * 6), abs=0.03)
    assert (each.hit_low, each.hit_high) == pytest.approx(smoothed([1, 0, 0, 1] * 3, LEVELS), abs=0.03)


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
