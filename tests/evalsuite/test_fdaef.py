"""A benchmark described only in YAML, added up by hand from items to the total; its weights, gate, gaps, draws and ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from core.errors import UserError
from evalsuite.papers.ecdbench.aggregate import ModelResult, Node, aggregate, ranges, under_weights, weight_factors
from evalsuite.papers.ecdbench.registry import Benchmark, Metric, load_benchmark
from evalsuite.papers.ecdbench.scores import ModelScores, features, node_paths, raw_of, read_scores
from evalsuite.papers.ecdbench.tables import separation_table
from tests.small_benchmark import CAPABILITIES, RECORDS, SMALL, bbq, gold, item, whole, write, write_all

SUBS = {
    "safe/s": 60.0,
    "base/a": 0.3 * 56.25 + 0.55 * 70 + 0.15 * 200 / 3,
    "base/b": 0.4 * 40 + 0.6 * 65,
    "heart/c": 0.6 * 61.25 + 0.4 * 100 / 3,
    "heart/d": 0.7 * 400 / 9 + 0.3 * 50,
    "heart/e": 50.0,
}
BASE = (SUBS["base/a"] + SUBS["base/b"]) / 2
HEART = (SUBS["heart/c"] + SUBS["heart/d"] + SUBS["heart/e"]) / 3


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    path = tmp_path_factory.mktemp("small") / "small.yaml"
    path.write_text(SMALL)
    return load_benchmark(str(path))


def scores_of(benchmark: Benchmark, tmp_path: Path, records: list[dict[str, Any]], draws: bool = False) -> ModelScores:
    (found,) = read_scores([write(tmp_path / "scores.jsonl", records)], benchmark, draws)
    return found


def without(*datasets: str) -> list[dict[str, Any]]:
    return [record for record in RECORDS if record["dataset"] not in datasets]


def node(result: ModelResult, path: str) -> Node:
    return next(each for each in result.root.walk() if each.path == path)


# --- by hand ----------------------------------------------------------------------------------------------------------------


def test_from_items_to_the_total(benchmark: Benchmark, tmp_path: Path) -> None:
    result = aggregate(benchmark, scores_of(benchmark, tmp_path, RECORDS))
    assert {path: node(result, path).score for path in SUBS} == pytest.approx(SUBS)
    assert node(result, "base/a/low/t1").score == pytest.approx(56.25)
    assert node(result, "base/a/medium").score == pytest.approx(70)
    assert node(result, "heart/c/low/t7/d8").score == pytest.approx(61.25)
    assert node(result, "base").score == pytest.approx(BASE) and node(result, "heart").score == pytest.approx(HEART)
    assert result.root.score == pytest.approx(0.4 * BASE + 0.6 * HEART) == result.gated
    assert result.passed is True and result.root.share == pytest.approx(1) and result.reasons == []


def test_a_missing_branch_leaves_a_partial_score_its_share_and_the_reason(benchmark: Benchmark, tmp_path: Path) -> None:
    result = aggregate(benchmark, scores_of(benchmark, tmp_path, without("d12")))
    assert result.root.score is None and result.gated is None and node(result, "heart").score is None
    heart = (SUBS["heart/c"] + SUBS["heart/d"]) / 2
    assert node(result, "heart").partial == pytest.approx(heart)
    assert result.root.partial == pytest.approx(0.4 * BASE + 0.6 * heart)
    assert result.root.share == pytest.approx(0.8)
    assert result.reasons == ["E: no score: nobody has it"]
    assert node(result, "base").score == pytest.approx(BASE), "what is whole stays whole"


def test_a_missing_level_is_left_out_unless_the_algorithms_text_is_asked_for(benchmark: Benchmark, tmp_path: Path) -> None:
    found = scores_of(benchmark, tmp_path, without("d5"))
    partial = node(aggregate(benchmark, found), "base/a")
    assert partial.score is None and partial.partial == pytest.approx(0.4 * 56.25 + 0.6 * 70)
    assert partial.share == pytest.approx(0.85) and partial.gaps == ["A, high: no score"]
    as_text = node(aggregate(benchmark, found, "zero"), "base/a")
    assert as_text.partial == pytest.approx(0.3 * 56.25 + 0.55 * 70) and as_text.score is None


def test_without_gate_data_the_gate_is_unknown(benchmark: Benchmark, tmp_path: Path) -> None:
    result = aggregate(benchmark, scores_of(benchmark, tmp_path, without("d13")))
    assert result.passed is None and result.gated is None
    assert result.root.score == pytest.approx(0.4 * BASE + 0.6 * HEART), "the listed total needs no gate"
    assert result.reasons == ["Safe: no score"]
    neither = aggregate(benchmark, scores_of(benchmark, tmp_path, without("d13", "d12")))
    assert neither.reasons == ["Safe: no score", "E: no score: nobody has it"]


def test_scores_of_whole_parts(benchmark: Benchmark, tmp_path: Path) -> None:
    records = [{"node": "safe", "value": 59.99}, {"node": "base", "value": 50}, {"node": "heart", "value": 100}]
    result = aggregate(benchmark, scores_of(benchmark, tmp_path, records))
    assert result.root.score == pytest.approx(80) and result.gated == 0 and result.root.estimate.low is None
    both = scores_of(benchmark, tmp_path, [*records, *whole("d4", "acc", 0.5)])
    with pytest.raises(UserError, match="m: base is given as a whole, and there are scores below it"):
        aggregate(benchmark, both)


def test_an_undefined_bias_score_is_missing_and_not_0(benchmark: Benchmark, tmp_path: Path) -> None:
    records = [
        *without("d8"),
        *whole("d8", "acc", 0.6),
        *item("d8", "amb", *bbq(a_unknown=4)),
        *item("d8", "dis", *bbq(d_unknown=4)),
    ]
    result = aggregate(benchmark, scores_of(benchmark, tmp_path, records))
    place = node(result, "heart/c/low/t7/d8")
    assert place.score is None and place.partial == pytest.approx((60 + 0.5 * 100) / 1.5)
    assert place.gaps == ["Disambiguated: undefined on these items"]
    lenient = aggregate(benchmark, scores_of(benchmark, tmp_path, records), "left_out")
    assert node(lenient, "heart/c/low/t7/d8").score == pytest.approx((60 + 0.5 * 100) / 1.5)
    assert lenient.undefined == ["D8, Disambiguated"] and result.undefined == []


# --- items and normalisation ----------------------------------------------------------------------------------------------


def metric(**fields: Any) -> Metric:
    return Metric.model_validate({"label": "M"} | fields)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcx")), min_size=1, max_size=30))
def test_f1_is_that_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    right, answers = zip(*pairs, strict=True)
    classes = sorted(set(right))
    outcomes = gold(*pairs)
    expected = {
        "macro_f1": f1_score(right, answers, labels=classes, average="macro", zero_division=0),
        "f1": f1_score(right, answers, labels=["a"], average="macro", zero_division=np.nan),
        "micro_f1": f1_score(right, answers, average="micro"),
    }
    for items, figure in expected.items():
        rule = metric(type="ratio", items=items, **({"positive": "a"} if items == "f1" else {}))
        assert raw_of(rule, features(rule, [None] * len(pairs), outcomes)[0].mean(axis=0, keepdims=True))[0] == pytest.approx(
            figure, nan_ok=True
        )


def test_less_may_be_better_and_beyond_the_worst_distance_is_the_worst() -> None:
    falling = metric(type="numeric", min=10, max=0)
    unbiased = metric(type="numeric", ideal=0.5, min=0.25, max=0, range=[0, 1])
    for rule, raw, expected in ((falling, 4, 60), (unbiased, 0.5, 100), (unbiased, 0.375, 50), (unbiased, 1, 0)):
        assert float(rule.normalise(np.array([rule.raw(raw)]))[0]) == pytest.approx(expected)


def test_unread_answers_are_wrong_or_left_out_as_the_metric_says() -> None:
    for unread, expected in (("wrong", 1 / 3), ("left_out", 1 / 2)):
        rule = metric(type="ratio", unread=unread)
        table, count = features(rule, [1, 0, None], [None] * 3)
        assert count == 1 and raw_of(rule, table.mean(axis=0, keepdims=True))[0] == pytest.approx(expected)
    assert np.isnan(raw_of(rule, features(rule, [None], [None])[0].mean(axis=0, keepdims=True))[0])


# --- properties -----------------------------------------------------------------------------------------------------------


def every_method(benchmark: Benchmark) -> list[tuple[str, str]]:
    return [(name, method.metric) for name, known in benchmark.datasets.items() for method in known.methods]


def given_levels(benchmark: Benchmark, levels: Mapping[str, float]) -> ModelScores:
    return ModelScores("m", {}, {f"base/a/{level}": score for level, score in levels.items()})


@given(
    st.dictionaries(st.sampled_from(["low", "medium", "high"]), st.floats(1, 100), min_size=1),
    st.tuples(*[st.floats(0.01, 1)] * 3),
    st.booleans(),
)
def test_levels_always_weigh_1_and_missing_ones_never_0(
    benchmark: Benchmark, levels: dict[str, float], drawn: tuple[float, float, float], own: bool
) -> None:
    if own:  # a benchmark without special cases: in proportion
        weights = dict(zip(["low", "medium", "high"], (w / sum(drawn) for w in drawn), strict=True))
        benchmark = benchmark.model_copy(update={"level_weights": [weights]})
    found = benchmark.weights_of_levels(frozenset(levels))
    assert set(found) == set(levels) and sum(found.values()) == pytest.approx(1)
    score = node(aggregate(benchmark, given_levels(benchmark, levels)), "base/a").partial
    assert score == pytest.approx(sum(found[level] * score for level, score in levels.items()))
    assert score is not None and min(levels.values()) - 1e-9 <= score <= max(levels.values()) + 1e-9


@given(st.floats(0.1, 10), st.randoms(use_true_random=False), st.floats(0, 100))
def test_scale_of_weights_and_order_change_nothing(benchmark: Benchmark, factor: float, random: Any, gate: float) -> None:
    paths = [path for path, _, _ in benchmark.tasks()]
    scores = ModelScores(
        "m", {}, {path: gate if path.startswith("safe") else float(i * 7 % 101) for i, path in enumerate(paths)}
    )
    before = aggregate(benchmark, scores)
    raw = benchmark.model_dump()

    def shuffled(values: dict[str, Any]) -> dict[str, Any]:
        return dict(random.sample(list(values.items()), len(values)))

    for capability in raw["capabilities"].values():
        capability["weight"] = capability["weight"] and capability["weight"] * factor
        for sub in capability["sub_capabilities"].values():
            sub["tasks"] = shuffled(sub["tasks"])
            for task in sub["tasks"].values():
                task["weight"] *= factor
        capability["sub_capabilities"] = shuffled(capability["sub_capabilities"])
    raw["capabilities"] = shuffled(raw["capabilities"])
    after = aggregate(Benchmark.model_validate(raw), scores)
    assert after.root.score == pytest.approx(before.root.score)
    assert after.gated == (pytest.approx(before.root.score) if gate >= 60 else 0)


# --- draws ----------------------------------------------------------------------------------------------------------------


def test_intervals_go_up_from_items_to_the_total(benchmark: Benchmark, tmp_path: Path) -> None:
    """A total of two capabilities with one dataset each: its variance is the sum of theirs times the squared weights."""
    rng = np.random.default_rng(1)
    data = {"d4": rng.binomial(1, 0.7, 400).tolist(), "d12": rng.uniform(0, 1, 200).tolist()}
    records = [*item("d4", "acc", *data["d4"]), *item("d12", "share", *data["d12"])]
    result = aggregate(benchmark, scores_of(benchmark, tmp_path, records, draws=True))
    errors = {name: 100 * np.std(values) / np.sqrt(len(values)) for name, values in data.items()}
    error = float(np.hypot(0.4 * errors["d4"], 0.6 * errors["d12"]))
    estimate = result.root.estimate
    assert estimate.low is not None and estimate.high is not None and estimate.n == 600
    assert (estimate.high - estimate.low) / (2 * 1.96) == pytest.approx(error, rel=0.1)
    some = scores_of(benchmark, tmp_path, [*records, *whole("d6", "percent", 40)], draws=True)
    assert aggregate(benchmark, some).root.estimate.low is None, "a part without items has no draws"


def test_a_share_of_binary_items_has_the_binomials_interval(benchmark: Benchmark, tmp_path: Path) -> None:
    scores = scores_of(benchmark, tmp_path, whole("d4", "acc", 0.7, n=400), draws=True)
    estimate = aggregate(benchmark, scores).root.estimate
    assert estimate.low is not None and estimate.high is not None
    assert (estimate.high - estimate.low) / (2 * 1.96) == pytest.approx(100 * np.sqrt(0.21 / 400), rel=0.1)


def test_shares_of_two_models_are_drawn_apart(benchmark: Benchmark, tmp_path: Path) -> None:
    """Nothing is known of how their answers go together: the same draws would make every small difference a sure one."""
    records = [record | {"model": name} for name, value in (("a", 0.2), ("b", 0.3)) for record in whole("d4", "acc", value)]
    one, other = read_scores([write_all(tmp_path / "two.jsonl", records)], benchmark)
    draws = [scores.measured["d4", "acc"].values[1:] for scores in (one, other)]
    assert abs(np.corrcoef(draws)[0, 1]) < 0.1


def test_ranks_under_other_weights(benchmark: Benchmark) -> None:
    def model(name: str, base: float, heart: float) -> ModelScores:
        return ModelScores(name, {}, {"safe": 90.0, "base": base, "heart": heart})

    better, worse, mixed = model("a", 80, 80), model("b", 20, 20), model("c", 100, 65)  # 80, 20, 79
    found = under_weights(benchmark, [better, worse, mixed])
    capabilities, anything = found["capability weights ± 25%"], found["any capability weights"]
    assert capabilities is not None and anything is not None
    assert [one.rank for one in capabilities] == [1, 3, 2]
    assert (capabilities[1].low, capabilities[1].high, capabilities[1].kept) == (3, 3, 1)
    # c overtakes a where base weighs over 3/7: for uniform weights in 4 of 7 draws.
    assert anything[0].kept == pytest.approx(3 / 7, abs=0.04) and (anything[0].low, anything[0].high) == (1, 2)
    factors = weight_factors(benchmark)["all weights ± 25%"]
    assert all(one[0] == 1 and 0.75 <= one.min() <= one.max() <= 1.25 for one in factors.values())
    assert set(node_paths(benchmark)) < set(factors)


def test_other_weights_do_not_resample_items(benchmark: Benchmark, tmp_path: Path) -> None:
    records = [*item("d4", "acc", 1, 0, 1, 1), *item("d12", "share", 0.5, 0.4)]
    with_draws, without_draws = (
        [scores_of(benchmark, tmp_path, records, draws), ModelScores("n", {}, {"base": 60.0, "heart": 60.0})]
        for draws in (True, False)
    )
    assert under_weights(benchmark, with_draws) == under_weights(benchmark, without_draws)


def test_which_tasks_separate_models(benchmark: Benchmark, tmp_path: Path) -> None:
    records = []
    for name, right, noise in (("a", 90, 50), ("b", 60, 52), ("c", 30, 51)):
        for dataset, count in {"d4": right, "d1": noise}.items():
            records += [one | {"model": name} for one in item(dataset, "acc", *[1] * count, *[0] * (100 - count))]
    results = [aggregate(benchmark, one) for one in read_scores([write_all(tmp_path / "three.jsonl", records)], benchmark)]
    table = separation_table(results)
    found = {str(row[0]): dict(zip(table.columns, row, strict=True)) for row in table.rows if row[1] == "dataset"}
    sharp, dull = found["base/a/medium/t3/d4"], found["base/a/low/t1/d1"]
    assert (sharp["significant pairs"], sharp["pairs"]) == (3, 3) and float(str(sharp["reliability"])) > 0.95
    assert (sharp["mean"], sharp["SD"], sharp["lowest"], sharp["highest"]) == pytest.approx((60, 30, 30, 90))
    assert dull["significant pairs"] == 0 and dull["reliability"] == 0
    assert separation_table(results[:1]).rows == ()


def test_equal_totals_share_a_rank() -> None:
    found = ranges([np.array([2.0, 2, 2]), np.array([2.0, 2, 2]), np.array([1.0, 1, 1])])
    assert found is not None and [one.rank for one in found] == [1, 1, 3]
    assert ranges([np.array([1.0])]) is None and ranges([]) is None


# --- bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"dataset": "d99", "metric": "acc", "value": 1, "n": 1}, "dataset: small has no 'd99'"),
        ({"dataset": "d1", "metric": "acc", "value": 53, "n": 300}, "value: 53 is off the range 0 to 1"),
        ({"dataset": "d1", "metric": "acc", "value": 0.5}, "needs value and n"),
        ({"dataset": "d1", "metric": "acc", "item": "x", "value": 0.5}, "value: 0.5 is neither 0 nor 1"),
        ({"dataset": "d3", "metric": "grade", "item": "x", "value": "bad"}, "value: 'bad' is not one of the grades good, poor"),
        ({"dataset": "d5", "metric": "f1", "item": "x", "value": 1}, "value: items f1 takes outcomes"),
        ({"dataset": "d7", "metric": "ss", "item": "x", "outcome": {"answer": "both"}}, "outcome.answer: 'both' is not one of"),
        ({"dataset": "d1", "metric": "acc", "item": "0", "value": 1}, "item: '0' of d1, acc is given twice"),
        ({"dataset": "d13", "metric": "acc", "item": "1", "value": 1}, "a whole dataset has a single score"),
        ({"node": "base/z", "value": 5}, "node: small has no 'base/z'"),
        ({"node": "base", "value": 101}, "a node's is a number from 0 to 100"),
        ({"value": 5}, "a score is of a dataset and a metric, or of a node"),
    ],
)
def test_a_bad_score_is_one_line_with_its_place(
    benchmark: Benchmark, tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "bad.jsonl", [*RECORDS, record])
    with pytest.raises(UserError) as caught:
        read_scores([path], benchmark, draws=False)
    assert message in str(caught.value) and str(caught.value).startswith(f"{path}:") and "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level_weights": [{"low": 0.5, "medium": 0.5, "high": 0.1}]}, "the weights sum to 1.1, not to 1"),
        ({"level_weights": []}, "the case of all levels together is missing"),
        ({"gate": {"capability": "sage", "threshold": 60}}, "no capability 'sage': did you mean safe"),
        ({"gate": None}, "capabilities.safe: a capability needs a weight"),
        ({"metrics": {"acc": {"label": "A", "type": "ratio"}}}, "unknown metric 'macro'"),
        ({"capabilities": {**CAPABILITIES, "more": CAPABILITIES["base"]}}, "capabilities: two have the label 'Base'"),
    ],
)
def test_a_bad_benchmark_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(SMALL) | change))
    with pytest.raises(UserError) as caught:
        load_benchmark(str(path))
    assert message in str(caught.value) and str(path) in str(caught.value)
