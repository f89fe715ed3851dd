"""ECDBench: its registry against the paper's counts, its leaderboard out of its parts, and the command line."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import yaml

from core.errors import UserError
from evalsuite.papers.commands.ecdbench import app
from evalsuite.papers.ecdbench.aggregate import ModelResult, aggregate
from evalsuite.papers.ecdbench.figures import charts
from evalsuite.papers.ecdbench.registry import Benchmark, DatasetMethod, load_benchmark, load_models
from evalsuite.papers.ecdbench.tables import (
    counts_table,
    leaderboard,
    metrics_table,
    published_scores,
    ranks_table,
    registry_table,
)
from evalsuite.papers.ecdbench.tasks import _fields
from evalsuite.papers.reported import load_reported
from evalsuite.papers.reported.recomputation import check
from tests.small_benchmark import SMALL, item, whole, write, write_all
from tests.verbs import printed

GATED = {"qwen3-0.6b", "abab6.5t-chat"}


@pytest.fixture(scope="module")
def ecdbench() -> Benchmark:
    return load_benchmark()


@pytest.fixture(scope="module")
def published(ecdbench: Benchmark) -> list[ModelResult]:
    return [aggregate(ecdbench, one) for one in published_scores(ecdbench)]


def call(*arguments: object) -> Any:
    return orjson.loads(printed(app, *arguments, "--json"))


# --- the paper --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_overall_score_of_table_5_follows_from_its_parts(published: list[ModelResult]) -> None:
    paper = load_reported("ecdbench")
    printed = {cell.at["Model"]: cell for cell in paper.cells["5"] if cell.at["column"] == "Overall"}
    assert len(printed) == 30
    for result in published:  # the parts are rounded, so a total may be 0.01 off
        assert result.root.score == pytest.approx(printed[result.model].value, abs=0.0101)
        gated = result.model in GATED
        assert result.passed is not gated and result.gated == (0 if gated else result.root.score)
    ranked = sorted((r for r in published if r.passed), key=lambda r: -(r.root.score or 0))
    assert [printed[r.model].at["Rank"] for r in ranked] == [str(rank) for rank in range(1, 29)]
    found = check(paper)
    differ = [(each.table, each.row, each.column, each.recomputed) for each in found.disagreements]
    assert differ == [
        ("text", "Capabilities a task", "Printed", 0.293),  # 12 of 41: less than the target of 1:3, and called too high
        ("findings", "Closed-source models over open-source ones (finding 1)", "Companionship Capability", -2.37),
    ]
    assert found.figures == 4 + 30 + 12 + 13


def test_the_registry_has_the_counts_of_table_1_and_marks_the_two_datasets_that_are_our_reading(ecdbench: Benchmark) -> None:
    table = counts_table(ecdbench)
    assert table is not None
    differ = [row for row in table.rows if [row[i] for i in (2, 4, 6, 8)] != [row[i] for i in (3, 5, 7, 9)]]
    assert differ == [] and table.rows[-1][2:6] == (41, 41, 60, 60) and len(ecdbench.datasets) == 60
    rows = {row[4]: row for row in registry_table(ecdbench).rows}
    assert [rows["qqp"][i] for i in (1, 2, 3)] == ["Natural Language Understanding", "low", "Text Matching"]
    assert [rows["record"][i] for i in (1, 2, 3)] == ["Natural Language Understanding", "medium", "Reading Comprehension"]
    assert [name for name, row in rows.items() if "our reading" in str(row[5])] == ["qqp", "record"]
    assert all(None not in row for row in table.rows), "every row has its counterpart"


def test_levels_weigh_what_section_7_2_3_says(ecdbench: Benchmark) -> None:
    cases = {"LMH": (0.3, 0.55, 0.15), "LM": (0.4, 0.6), "LH": (0.6, 0.4), "MH": (0.7, 0.3), "L": (1,), "M": (1,), "H": (1,)}
    names = {"L": "low", "M": "medium", "H": "high"}
    for levels, weights in cases.items():
        found = ecdbench.weights_of_levels(frozenset(names[level] for level in levels))
        assert found == {names[level]: weight for level, weight in zip(levels, weights, strict=True)}
    assert ecdbench.gate is not None and ecdbench.gate.threshold == 60
    assert [c.weight for c in ecdbench.capabilities.values()] == [None, 0.3, 0.4, 0.3]


NORMALISED = {  # raw → 0 to 100, for every metric that the registry names
    **dict.fromkeys(["accuracy", "exact_match", "f1_positive", "f1_macro", "f1_answers", "rouge_l", "recall_at_k"], (0.25, 25)),
    **dict.fromkeys(["mrr", "bleurt_acc", "rouge_acc", "bleu_acc", "stereoset_lms", "preferred", "scale_points"], (0.25, 25)),
    "stereoset_ss": (0.75, 50),
    "bbq_bias_ambiguous": (-0.25, 75),
    "bbq_bias_disambiguated": (0.25, 75),
    "completeness": (2, 25),
    "conciseness": (5, 100),
    "eq_points": (20, 25),
    "f1_words": (0.25, 25),
}


def test_every_metric_becomes_0_to_100(ecdbench: Benchmark) -> None:
    used = {method.metric for known in ecdbench.datasets.values() for method in known.methods}
    assert set(NORMALISED) == set(ecdbench.metrics) == used
    for name, (raw, expected) in NORMALISED.items():
        rule = ecdbench.metrics[name]
        assert float(rule.normalise(np.array([rule.raw(raw)]))[0]) == pytest.approx(expected), name
    rules = {row[0]: row[5] for row in metrics_table(ecdbench).rows}
    assert rules["stereoset_ss"] == "distance from 0.5: 0.5 is 0, 0 is 100" and rules["mrr"] == "raw score × 100"


@pytest.mark.slow
def test_published_ranks_hold_only_as_far_as_the_weights(ecdbench: Benchmark, published: list[ModelResult]) -> None:
    board, ranks = leaderboard(ecdbench, published), ranks_table(ecdbench, published, published_scores(ecdbench))
    below = {row[0]: row for row in board.rows}["qwen3-0.6b"]
    assert below[1:5] == (None, pytest.approx(47.4, abs=0.01), 0, "below") and board.columns[4] == "gate"
    assert [(row[0], row[1]) for row in ranks.rows] == [(row[0], row[1]) for row in board.rows if row[1]]
    assert len(ranks.rows) == 28 and ranks.rows[0][2:4] == (None, "1 (100%)"), "nothing is known of the items"


@pytest.mark.slow
def test_figures_4_to_7(ecdbench: Benchmark, published: list[ModelResult]) -> None:
    found = {chart.key: chart.figure["traces"] for chart in charts(ecdbench, published, load_models("models"))}
    assert [len(trace["y"]) for trace in found["figure4"]] == [30] * 4
    assert [trace["name"] for trace in found["figure5"]] == ["closed-source, n = 22", "open-source, n = 8"]
    closed, opened = (dict(zip(trace["x"], trace["y"], strict=True)) for trace in found["figure5"])
    # Finding 1 says that closed-source models are better on average in every dimension; in table 5 they are not in this one.
    assert [name for name in closed if closed[name] <= opened[name]] == ["Companionship Capability"]
    assert {"Doubao", "GPT", "Qwen"} <= {trace["name"] for trace in found["figure6"]}
    points = found["figure7"][0]
    place = points["text"].index("gpt-4o")
    assert points["x"][place] == 78.07 and points["y"][place] == pytest.approx((0.4 * 71.19 + 0.3 * 57.31) / 0.7)
    caption = next(chart.caption for chart in charts(ecdbench, published, {}) if chart.key == "figure7")
    assert "n=30" in caption and "n=28" in caption, "two models below the gate make most of the correlation"
    assert charts(ecdbench, [], {}) == []


# --- the command line -------------------------------------------------------------------------------------------------------


def two_models(tmp_path: Path) -> Path:
    """Scores of a few datasets: neither the companionship tasks nor all of the gate."""
    records = []
    for name, shift in (("<b>a</b>", 0), ("b", 20)):
        own = [
            *item("wic", "accuracy", *[1] * (40 + shift), *[0] * (60 - shift)),
            *item("safetybench_1", "accuracy", *[1] * 70, *[0] * 29, None),
            *whole("emobench_1", "accuracy", 0.3, 400),
        ]
        records += [record | {"model": name} for record in own]
    return write_all(tmp_path / "two.jsonl", records)


def board_of(out: Any) -> list[dict[str, Any]]:
    board = out["tables"][0]
    return [dict(zip(board["columns"], row, strict=True)) for row in board["rows"]]


def test_aggregate_gives_null_with_the_reason_beside_a_partial_total(tmp_path: Path) -> None:
    out = call("table", "--scores", two_models(tmp_path))
    first = next(row for row in board_of(out) if row["model"] == "<b>a</b>")
    assert first["total as listed"] is None and first["total by algorithm 5"] is None and first["gate"] == "unknown"
    (reasons,) = [note for note in out["notes"] if note.startswith("<b>a</b> has no total: ")]
    assert "total: Values, low: no score; Safety: no score; " in reasons and reasons.endswith("and 10 more.")
    # wic is alone in its sub-capability, as EmoBench's task is: 40 and 30, weighed 0.3 and 0.4.
    assert first["partial"]["mean"] == pytest.approx((0.3 * 40 + 0.4 * 30) / 0.7)
    # Shares: NLU is 1 of 4, medium 0.6 of it, wic 1 of 3; recognition 1 of 5, high 0.15 of it, EmoBench's task 1 of 2.
    assert first["share %"] == pytest.approx(100 * (0.3 * 0.6 / 3 / 4 + 0.4 * 0.15 / 2 / 5))
    assert first[list(first)[-4]]["mean"] == pytest.approx(70), "of the gate: an unread answer is wrong"
    assert first["partial"]["low"] < first["partial"]["mean"] < first["partial"]["high"]
    (zero,) = board_of(call("table", "--scores", two_models(tmp_path), "--missing", "zero", "--model", "b"))
    as_zero, total = 0.3 * 0.6 * 20 / 4 + 0.4 * 0.15 * 15 / 5, zero["total, missing as 0"]
    assert zero["total as listed"] is None and total["mean"] == pytest.approx(as_zero)
    assert total["low"] < as_zero < total["high"]


@pytest.mark.slow
def test_leaderboard_of_two_on_partial_scores_and_its_page(tmp_path: Path) -> None:
    page = tmp_path / "out" / "ecdbench.html"
    out = call("table", "--scores", two_models(tmp_path), "--out", tmp_path / "out")
    board, rows = out["tables"][0], board_of(out)
    assert "partial scores only" in board["title"] and "Scores are partial if parts are missing" in page.read_text()
    assert [(row["model"], row["rank"]) for row in rows] == [("b", 1), ("<b>a</b>", 2)]
    text = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S)  # all but the code
    assert "<b>a" not in text, "names are text"
    assert "&lt;b&gt;a&lt;/b&gt;" in text and "default-src 'none'" in text and not re.search(r'(src|href)="https?:', text)


def test_models_that_rest_on_different_parts_are_not_ranked(tmp_path: Path) -> None:
    records = [r | {"model": m} for m, d in (("a", "wic"), ("b", "lcqmc")) for r in whole(d, "accuracy", 0.5)]
    out = call("table", "--scores", write_all(tmp_path / "s.jsonl", records))
    board = out["tables"][0]
    assert [row[1] for row in board["rows"]] == [None, None] and any("No ranks: " in note for note in out["notes"])
    records = [
        {"model": "a", "node": name, "value": 59} for name in ("values_safety", "foundational", "emotional", "companionship")
    ]
    out = call("table", "--scores", write_all(tmp_path / "s.jsonl", records))
    assert out["tables"][0]["rows"][0][:4] == ["a", None, 59, 0]
    assert any("No ranks: no complete total passes the gate" in note for note in out["notes"])


@pytest.mark.slow
def test_explain_goes_down_to_single_items(tmp_path: Path) -> None:
    scores = two_models(tmp_path)
    found = call("table", "--scores", scores, "--model", "b", "--node", "safetybench_1")
    places, items = found["tables"]
    method = dict(zip(places["columns"], places["rows"][-1], strict=True))
    assert [row[2:] for row in items["rows"]] == [["99", None], *([str(n), 0] for n in range(70, 74))]
    assert method["unread"] == 1 and method["raw"] == pytest.approx(0.7)
    with pytest.raises(UserError, match="--node: 2 models have scores; name one with --model: <b>a</b>, b"):
        call("table", "--scores", scores, "--node", "total")
    with pytest.raises(UserError, match="--node: no part 'wick': did you mean wic"):
        call("table", "--scores", scores, "--model", "b", "--node", "wick")


def test_another_benchmark_in_yaml_runs_through_every_verb(tmp_path: Path) -> None:
    own = tmp_path / "small.yaml"
    own.write_text(SMALL)
    scores = write(
        tmp_path / "s.jsonl", [{"node": "safe", "value": 60}, {"node": "base", "value": 50}, {"node": "heart", "value": 75}]
    )
    found = call("table", "--scores", scores, "--benchmark", own)
    (row,) = board_of(found)
    assert (row["total by algorithm 5"], row["gate"], row["rank"]) == (pytest.approx(65), "passed", 1)
    (places,) = call("table", "--scores", scores, "--benchmark", own, "--node", "base")["tables"]
    assert places["rows"][0][3] == 50
    assert [table["key"] for table in call("table", "--benchmark", own)["tables"]] == ["registry", "metrics"]
    with pytest.raises(UserError, match="--published is ECDBench's table 5"):
        call("table", "--published", "--benchmark", own)
    with pytest.raises(UserError, match="--node: there are no scores"):
        call("table", "--node", "total")


@pytest.mark.slow
def test_a_capability_of_which_nothing_can_be_run_has_no_total() -> None:
    small = yaml.safe_load(SMALL)
    small["datasets"]["d13"]["run"] = small["datasets"]["d12"]["run"]  # the gate's only dataset: nobody has it
    benchmark = Benchmark.model_validate(small)
    with pytest.raises(UserError, match="small: too little of it can be run for a total: .*safe"):
        _ = benchmark.runnable


def test_a_reply_in_words_counts_by_lm_evals_metric_or_else_by_its_accuracy() -> None:
    sample: Any = {"doc": {}, "resps": [["yes"]], "filtered_resps": ["yes"], "acc": 1}
    for metric, more, value in ((None, {}, 1), ("exact_match", {}, 1), ("exact_match", {"exact_match": 0}, 0)):
        assert _fields(DatasetMethod(metric="accuracy"), "ratio", [sample | more], metric) == {"value": value}
