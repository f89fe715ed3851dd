"""Several judges: names, table 4, confusion, calibration, the tests between them and `esc-eval agree`, against scipy,
scikit-learn, statsmodels and worked examples."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import bootstrap, t
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.contingency_tables import mcnemar
from typer.testing import CliRunner, Result

from core.errors import UserError
from core.files import CONFIGS, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.rubrics import Scale
from core.tables import Estimate, Table, file_keys, fmt
from data_prep.__main__ import app as data_prep_app
from data_prep.scores import synthetic
from data_prep.scores.rank_sft import synthetic_test
from evalsuite.commands.agree import agree
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import resolve_config
from evalsuite.statistics.agreement import agreement
from evalsuite.statistics.clusters import Clusters
from evalsuite.statistics.judge_figures import SYNTHETIC
from evalsuite.statistics.judge_tests import JudgeDifference, beaten, compare, comparison_tables
from evalsuite.statistics.judges import (
    POOLED,
    against_gold,
    by_judge,
    calibration,
    confusion,
    confusion_tables,
    table4,
)
from evalsuite.statistics.summary import AVERAGE
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
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


def test_file_names_of_judges_differ() -> None:
    keys = file_keys(["a · b", "a/b", "裁判", "../x"])
    assert keys == {"a · b": "a-b", "a/b": "a-b-2", "裁判": "judge", "../x": "x"}


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


def test_judges_of_equally_many_but_other_items_are_told_apart(tmp_path: Path) -> None:
    verdicts = judged("a", [3, 3]) + judged("b", [3, 3], first=1)
    result = ran(*files(tmp_path, verdicts, golden([3, 3, 3])))
    assert "over different items" in " ".join(result.stdout.split())


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


def test_a_score_given_in_two_files_is_an_error(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "g2.jsonl", golden([4]))
    result = ran(*files(tmp_path, judged("a", [3]), golden([3])), "--gold", tmp_path / "g2.jsonl")
    assert isinstance(result.exception, UserError) and "g2.jsonl" in str(result.exception) and "twice" in str(result.exception)


def test_one_judge_alone_is_not_the_best() -> None:
    (table,) = shown_tables(judged("a", [3]), golden([3]))
    assert table.bold == () and figures_of(table, 0)["average ACC"] == "100.00 n=1"  # one dialogue: no interval


def test_a_judge_without_a_dimension_has_no_average() -> None:
    gold = golden([3, 2]) + golden([3, 2], "skill")
    verdicts = judged("whole", [3, 3]) + judged("whole", [0, 0], "skill") + judged("part", [3, 2])
    (table,) = table4(against_gold(by_judge(verdicts), gold), gold, "paper", {"fluency": "Fluency"}, same_items=False)
    part = figures_of(table, 1)
    assert part["average ACC"] == "– n=0" and part["skill ACC"] == "– n=0" and part["Fluency ACC"].startswith("100.00")
    assert "different items" in table.notes[1]


def test_languages_have_tables_of_their_own() -> None:
    zh: dict[str, Any] = {"language": "zh", "first": 5}
    tables = shown_tables(judged("a", [3]) + judged("b", [2]) + judged("a", [1], **zh), golden([3]) + golden([1], **zh))
    assert [(t.key, len(t.rows)) for t in tables] == [("table4_en", 3), ("table4_zh", 2)]


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


def test_verdicts_without_probabilities_are_in_no_bin() -> None:
    assert calibration(judged("a", [1, None]), golden([1, 2])) == []
    pooled = [b for b in calibration(probable([1], [0.9]) + judged("a", [1], "skill"), [*golden([1]), *golden([1], "skill")])]
    assert [(b.dimension, b.n) for b in pooled] == [("fluency", 1), (POOLED, 1)]


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


def test_on_one_verdict_a_dialogue_the_test_is_close_to_mcnemars() -> None:
    """The chi-squared form, which Student's t comes near to on 400 dialogues."""
    rng = np.random.default_rng(2)
    for share in (0.52, 0.56, 0.6):
        a, b = (rng.random(400) < chance for chance in (share, 0.5))
        one, _ = compare(by_judge(judged("a", (3 * a).tolist()) + judged("b", (3 * b).tolist())), golden([3] * 400), "paper")
        table = np.array([[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]])
        assert one.p == pytest.approx(mcnemar(table, exact=False, correction=False).pvalue, abs=0.01)


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


def test_the_average_is_tested_over_dialogues_and_not_over_ratings() -> None:
    """Seven ratings of one dialogue that move together are one observation: all is that of one dimension alone."""
    rng = np.random.default_rng(0)
    a, b = (np.where(rng.random(40) < share, 3.0, 0.0).tolist() for share in (0.7, 0.5))
    names = ["fluency", "expression", "empathy", "information", "humanoid", "skill", "overall"]
    one = compare(by_judge(judged("a", a) + judged("b", b)), golden([3] * 40), "paper")[-1]
    verdicts = [j for name in names for judge, values in (("a", a), ("b", b)) for j in judged(judge, values, name)]
    seven = compare(by_judge(verdicts), [g for name in names for g in golden([3] * 40, name)], "paper")[-1]
    assert (seven.clusters, seven.low, seven.high, seven.p) == pytest.approx((one.clusters, one.low, one.high, one.p))
    assert one.low is not None and one.difference is not None and one.low < one.difference


def test_equal_judges_never_differ_and_one_dialogue_shows_nothing() -> None:
    one, average = compare(by_judge(judged("a", [3, 1]) + judged("b", [3, 1])), golden([3, 3]), "paper")
    assert one.p == 1 and average.difference == 0
    assert average.low is not None and average.high is not None and average.low < 0 < average.high, (
        "two dialogues prove nothing"
    )
    one, alone = compare(by_judge(judged("a", [3]) + judged("b", [1])), golden([3]), "paper")
    assert alone.difference == 1 and one.p is alone.p is alone.low is None


def test_every_two_judges_are_tested() -> None:
    verdicts = [j for name in "abc" for j in judged(name, [3, 1]) + judged(name, [3, 1], "skill")]
    found = compare(by_judge(verdicts), golden([3, 3]) + golden([3, 3], "skill"), "paper")
    assert len(found) == 9 and [(d.a, d.b) for d in found[2::3]] == [("a", "b"), ("a", "c"), ("b", "c")]


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


# --- esc-eval agree -------------------------------------------------------------------------------------------------------


def ran(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(agree)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def files(folder: Path, verdicts: list[Judgement], gold: list[HumanScore]) -> tuple[object, ...]:
    write_jsonl(folder / "j.jsonl", verdicts)
    write_jsonl(folder / "g.jsonl", gold)
    return ("--judgements", folder / "j.jsonl", "--gold", folder / "g.jsonl")


def test_one_judge_as_json_is_what_it_was_and_more(tmp_path: Path) -> None:
    verdicts, gold = judged("a", [3, None]), golden([3, 2])
    result = ran(*files(tmp_path, verdicts, gold), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["agreement"] == agreement(verdicts, gold) == found["judges"]["a"]["agreement"]
    assert found["dimension_differences"] == found["differences"] == []
    assert found["judges"]["a"]["confusion"]["en"]["fluency"]["unread"] == [0, 0, 1, 0, 0]  # esc_eval's scale
    assert found["judges"]["a"] | {"agreement": 0, "confusion": 0, "calibration": 0} == {
        **{"judge": "a", "rubric": "esc_eval", "method": "joint", "condition": {}},
        **{"agreement": 0, "confusion": 0, "calibration": 0},
    }


def test_several_files_and_judges(tmp_path: Path) -> None:
    given = files(tmp_path, judged("a", [3, 1]) + judged("b/c", [3, 3]), golden([3, 3]))
    write_jsonl(tmp_path / "third.jsonl", judged("d", [0, 3]))
    out = tmp_path / "out"
    result = ran(*given, "--judgements", tmp_path / "third.jsonl", "--out", out, "--mode", "paper")
    assert result.exit_code == 0, result.output
    assert "Judges against gold, en" in result.stdout and "Agreement with gold, en (b/c)" in result.stdout
    found = json.loads((out / "agreement.json").read_bytes())
    assert "agreement" not in found and list(found["judges"]) == ["a", "b/c", "d"] and len(found["dimension_differences"]) == 3
    keys = [f"{kind}_{judge}_en" for kind in ("agreement", "confusion") for judge in ("a", "b-c", "d")]
    keys += ["table4_en", "judge_differences", "judge_dimensions"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [".agreement.tables", "agreement.json", "table4.md", *(f"{k}.csv" for k in keys)]
    )
    with (out / "table4_en.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["Judge"], row["Fluency ACC"], row["Fluency ACC n"]) for row in rows][1] == ("b/c", "100.00", "2")
    assert "| 100.00 [" in (out / "table4.md").read_text()
    (out / "own.csv").write_text("mine")
    assert ran(*files(tmp_path, judged("a", [3, 1]), golden([3, 3])), "--out", out).exit_code == 0
    assert {path.name for path in out.glob("*.csv")} == {"agreement_en.csv", "confusion_en.csv", "table4_en.csv", "own.csv"}, (
        "figures of the three judges do not stay behind"
    )


def test_one_rubric_of_several_is_chosen(tmp_path: Path) -> None:
    verdicts = judged("a", [3, 1]) + judged("a", [1], rubric="epitome", dimension="explorations", first=9)
    gold = golden([3, 3]) + golden([1], rubric="epitome", dimension="explorations", first=9)
    given = files(tmp_path, verdicts, gold)
    failed = ran(*given)
    assert isinstance(failed.exception, UserError) and "choose one with --rubric" in str(failed.exception)
    result = ran(*given, "--rubric", "epitome", "--json")
    assert list(json.loads(result.stdout)["agreement"]["en"]) == ["explorations", "average"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--mode", "strict"], "--mode: unknown mode 'strict'"),
        (["--rubric", "epitome"], "--rubric: no verdict is on rubric epitome: .*esc_eval"),
        (["--gold-rubric", "esc_eval_human"], "--gold-rubric: no gold score is on rubric esc_eval_human: .*esc_eval"),
        (["--annotator", "b"], "--annotator b: gave none of the scores: .*a"),
    ],
)
def test_options_that_leave_nothing_are_errors(tmp_path: Path, options: list[str], problem: str) -> None:
    failed = ran(*files(tmp_path, judged("a", [3]), golden([3])), *options)
    assert isinstance(failed.exception, UserError)
    with pytest.raises(UserError, match=problem):
        raise failed.exception


def test_verdicts_off_the_rubrics_scale_are_errors(tmp_path: Path) -> None:
    failed = ran(*files(tmp_path, judged("a", [7]), golden([3])))
    assert isinstance(failed.exception, UserError) and "7 is off the scale 0 to 4 of rubric esc_eval" in str(failed.exception)


def test_gold_of_other_rubric_and_some_annotators(tmp_path: Path) -> None:
    gold = golden([3], rubric="esc_eval_human") + golden([0], rubric="esc_eval_human", annotator="b") + golden([0])
    options = ["--gold-rubric", "esc_eval_human", "--annotator", "a", "--json"]
    result = ran(*files(tmp_path, judged("a", [3]), gold), *options)
    assert json.loads(result.stdout)["agreement"]["en"]["fluency"]["acc"] == 1


def test_only_shared_leaves_out_and_says_so(tmp_path: Path) -> None:
    given = files(tmp_path, judged("a", [3, 3]), golden([3, 2, 1], first=1))
    assert isinstance(ran(*given).exception, UserError)
    result = ran(*given, "--only-shared", "--out", tmp_path / "out")
    said = "Left out: 1 verdicts without gold, 2 gold scores without a verdict."
    assert said in " ".join(result.stdout.split()) and said in (tmp_path / "out" / "table4.md").read_text()
    nothing = ran(*files(tmp_path, judged("a", [3]), golden([3], first=5)), "--only-shared")
    assert isinstance(nothing.exception, UserError) and "no verdict and no gold score" in str(nothing.exception)


def test_what_is_drawn_whole(tmp_path: Path) -> None:
    """Cards from --dialogues or a run folder; each dialogue without them, or where --cluster says so."""
    talks = [
        Dialogue(
            id=f"d{n}", language="en", source="s", card_id=f"c{n // 4}", turns=(Turn(role="seeker", text="a"),), trial=n % 2
        )
        for n in range(12)
    ]
    given = files(tmp_path, judged("a", [3, 1] * 6) + judged("b", [3] * 12), golden([3] * 12))
    write_jsonl(tmp_path / "talks.jsonl", talks)
    write_jsonl(tmp_path / "run" / "gold_dialogues.jsonl", talks)
    write_jsonl(tmp_path / "run" / "gold_scores.jsonl", golden([3] * 12))
    from_run = ("--judgements", tmp_path / "j.jsonl", "--gold", tmp_path / "run" / "gold_scores.jsonl")
    records = ("--dialogues", tmp_path / "talks.jsonl")
    for arguments, clusters, name in (
        (given, 12, "dialogues"),
        ((*given, *records), 3, "cards"),
        (from_run, 3, "cards"),
        ((*from_run, "--cluster", "dialogue"), 12, "dialogues"),
        ((*from_run, "--cluster", "trial"), 2, "dialogues of one trial"),
    ):
        found = json.loads(ran(*arguments, "--json").stdout)
        row = found["judges"]["a"]["agreement"]["en"]["average"]
        assert (row["clusters"], row["clustered_by"], row["n"]) == (clusters, name, 12)
        assert [d["clusters"] for d in found["differences"]] == [clusters]
    for options, problem in (
        (("--cluster", "card"), "--cluster card: no record of these dialogues is known: give --dialogues, or a run folder"),
        ((*records, "--cluster", "colour"), "--cluster colour: no field of a dialogue"),
    ):
        failed = ran(*given, *options)
        assert isinstance(failed.exception, UserError) and problem in str(failed.exception)


def test_synthetic_gold_is_labelled(tmp_path: Path) -> None:
    _, scores = synthetic.build(languages=("en",))
    assert {score.annotator for score in scores} == {SYNTHETIC}
    result = ran(*files(tmp_path, judged("a", [3]), golden([3], annotator=SYNTHETIC)))
    assert "synthetic gold, scores hold by construction" in " ".join(result.stdout.split())


def test_the_papers_table_4_stands_beside_ours(tmp_path: Path) -> None:
    given = files(tmp_path, judged("esc-rank", [3, 3]) + judged("gpt-4", [3, 1]), golden([3, 3]))
    result = ran(*given, "--against", "paper", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    with (tmp_path / "out" / "table4_en.csv").open(newline="") as handle:
        rows = {row["Judge"]: row for row in csv.DictReader(handle)}
    assert rows["paper: ESC-RANK"]["Fluency ACC"] == "81.66" and rows["paper: GPT-4"]["average ACC_soft"] == "75.03"
    alone = ran(*files(tmp_path, judged("mine", [3, 3]), golden([3, 3])), "--against", "paper", "--out", tmp_path / "alone")
    assert alone.exit_code == 0 and "81.66" in (tmp_path / "alone" / "agreement_en.csv").read_text()
    wrong = ran(*given, "--against", "papers")
    assert isinstance(wrong.exception, UserError) and "--against: unknown 'papers'" in str(wrong.exception)


def test_from_human_scores_and_a_ranker_to_table_4(esc_eval: EscEval, tmp_path: Path) -> None:
    """The reviewer's path with a scripted ranker: import, score with configs/eval/table4.yaml, agree."""
    dialogues, scores = synthetic_test()
    chosen = [d for d in dialogues if d.language == "en"][:3] + [d for d in dialogues if d.language == "zh"][:2]
    write_jsonl(tmp_path / "talks.jsonl", chosen)
    kept = [s for s in scores if s.dialogue_id in {d.id for d in chosen}]
    columns = ("dialogue_id", "language", "annotator", "rubric", "dimension", "value")
    lines = [",".join(str(getattr(s, name)) for name in columns) for s in kept]
    (tmp_path / "human.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    prepare = ["import", "--gold", "human.csv", "--dialogues", "talks.jsonl", "--out", "gold"]
    assert CliRunner().invoke(data_prep_app, prepare).exit_code == 0
    with Endpoint(lambda body, count: Answer("3"), models=("embedded",)) as endpoint:
        asked = ("--config", CONFIGS / "eval" / "table4.yaml", "--judge", "embedded")
        where = ("--dialogues", "gold/dialogues.jsonl", "--set", f"endpoints.embedded={endpoint.url}", "--out", "table4/ranker")
        assert esc_eval("run", "--only", "score", *asked, *where) == (0, "")
    done = ran(
        "--judgements", "table4/ranker/judgements.jsonl", "--gold", "gold/scores.jsonl", "--against", "paper", "--out", "table4"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(Path("table4/agreement.json").read_bytes())["agreement"]
    wanted = [s.value == 3 for s in kept if s.language == "en" and s.dimension == "fluency"]
    assert found["en"]["fluency"]["acc"] == pytest.approx(sum(wanted) / 3) and found["zh"]["average"]["n"] == 14
    assert "81.66" in Path("table4/table4.md").read_text()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("d0,en,anna,esc_eval,empathie,3", "dimension: 'empathie' is not in rubric esc_eval"),
        ("d0,en,anna,esc_eval,empathy,7", "value: 7 is off the scale"),
        ("d0,zh,anna,esc_eval,empathy,3", "language: zh, but dialogue 'd0' is in en"),
        ("d1,en,anna,esc_eval,empathy,3", "dialogue_id: no dialogue 'd1'"),
        ("d0,en,anna,esc_eval,empathy,high", "value: "),
    ],
)
def test_a_reviewers_wrong_score_is_named_with_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    talk = Dialogue(
        id="d0", language="en", source="own", turns=(Turn(role="seeker", text="a"), Turn(role="supporter", text="b"))
    )
    write_jsonl(tmp_path / "talks.jsonl", [talk])
    header, right = "dialogue_id,language,annotator,rubric,dimension,value", "d0,en,anna,esc_eval,skill,3"
    (tmp_path / "human.csv").write_text("\n".join([header, right, line]) + "\n")
    arguments = ["--gold", tmp_path / "human.csv", "--dialogues", tmp_path / "talks.jsonl", "--out", tmp_path / "gold"]
    failed = CliRunner().invoke(data_prep_app, ["import", *map(str, arguments)])
    assert isinstance(failed.exception, UserError)
    assert f"human.csv:3: {problem}" in str(failed.exception), failed.exception


@pytest.mark.parametrize(("mode", "method"), [("native", "per_dimension"), ("paper", "paper")])
def test_the_config_of_table_4_loads_with_every_judge_of_the_table(mode: str, method: str) -> None:
    for judge in ("esc-rank", "esc-rank-published", "internlm2-chat-7b", "gpt-4"):
        resolved = resolve_config(load_config(CONFIGS / "eval" / "table4.yaml", {"judge": judge, "mode": mode}))
        assert resolved.models.judge.name == judge and resolved.method == method
        if judge == "esc-rank-published":  # which has learnt the prompts of a clone that is not here
            told = "has learnt the prompts in runs/esc_eval_clone/prompts, which is no folder"
            told = told if mode == "paper" else "was not trained to be asked by method per_dimension, but paper: --mode paper"
            with pytest.raises(UserError, match=told):
                resolved.judge_prompts  # noqa: B018
        else:
            assert resolved.judge_pack == ("esc_rank" if judge == "esc-rank" else "esc_eval") and resolved.judge_prompts


def test_estimates_in_table_4_hold_per_cents() -> None:
    (table,) = shown_tables(judged("a", [3, 3]) + judged("b", [3, 0]), golden([3, 3]))
    cell = table.rows[1][1]
    assert isinstance(cell, Estimate) and cell.low is not None and 0 < cell.low < 50 < (cell.high or 0) < 100
