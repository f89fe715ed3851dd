"""The rankers' table: ACC, differences and intervals that can be worked out by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import yaml
from typer.testing import CliRunner

from core.errors import UserError
from core.files import write_json, write_jsonl
from core.records import Dialogue, Judgement, Turn
from core.rubrics import load_rubric
from core.statistics.bootstrap import interval, resampled_means
from data_prep.scores.rank_sft import RankExample, narrowed
from train.__main__ import app
from train.rank_figures import Difference, Row, Verdicts, compared, table_rows
from train.rank_table import against_baselines, named, read_judges
from train.surface import Item

RUBRIC = narrowed(load_rubric("esc_eval"), ["fluency", "skill"])
LABELS = {"en": [0, 1, 2, 3] * 6, "zh": [4, 4, 2, 2] * 3}  # of both dimensions; two dialogues a group
TEST: Any = {
    (language, dimension): [
        Item(f"{language}{n}", f"{language} group {n // 2}", label, label) for n, label in enumerate(labels)
    ]
    for language, labels in LABELS.items()
    for dimension in RUBRIC.dimensions
}


def judged(
    name: str, wrong: dict[str, int], method: str = "joint", off: int = 1, unread: bool = False, last: bool = False
) -> list[Judgement]:
    """Right but for the fluency of the first (last) `wrong[language]` dialogues, which is `off` by so much (or unreadable)."""
    made = []
    for (language, dimension), own in TEST.items():
        for n, item in enumerate(own):
            miss = dimension == "fluency" and (len(own) - 1 - n if last else n) < wrong[language]
            value = item.label + (off if item.label + off <= 4 else -off) if miss else item.label
            made.append(
                Judgement(
                    dialogue_id=item.dialogue_id,
                    language=language,
                    judge=name,
                    rubric="esc_eval",
                    dimension=dimension,
                    value=None if miss and unread else value,
                    method=method,
                )
            )
    return made


def by_item(judgements: list[Judgement]) -> Verdicts:
    return {(j.dialogue_id, j.dimension): j for j in judgements}


def rows_of(*judgements: list[Judgement]) -> list[Row]:
    found = {(own[0].judge, own[0].method): by_item(own) for own in judgements}
    return table_rows(found, TEST, RUBRIC, {})


def differences(a: list[Judgement], b: list[Judgement]) -> dict[str, Difference]:
    first, second = rows_of(a, b)
    return {d.language: d for d in compared(first, second, TEST)}


def test_figures_are_means_over_dimensions_then_languages() -> None:
    (row,) = rows_of(judged("a", {"en": 6, "zh": 3}, off=2))
    assert row.figures["en"]["fluency"]["acc"] == 18 / 24 and row.figures["en"]["skill"]["acc"] == 1
    assert row.average["en"]["acc"] == (18 / 24 + 1) / 2 and row.average["zh"]["acc"] == (9 / 12 + 1) / 2
    assert row.average["mean"]["acc"] == (0.875 + 0.875) / 2 and row.average["mean"]["n"] == 2 * (24 + 12)
    assert row.average["en"]["acc_soft"] == 0.875  # two off is not soft either
    assert row.average["en"]["ece"] is None  # no distributions
    near, unread = rows_of(judged("b", {"en": 6, "zh": 0}), judged("c", {"en": 6, "zh": 0}, unread=True))
    assert near.average["en"]["acc_soft"] == 1
    assert unread.average["en"]["acc"] == 0.875 and unread.average["en"]["acc_soft"] == 0.875
    assert unread.figures["en"]["fluency"]["kappa"] == 1 and unread.figures["en"]["fluency"]["read"] == 18


def test_seeds_of_a_judge_are_averaged_and_each_is_shown() -> None:
    first = [judged(f"a@{seed}", {"en": wrong, "zh": 0}) for seed, wrong in enumerate((0, 6, 12))]
    rows = rows_of(*first, judged("b", {"en": 0, "zh": 0}))
    assert [row.name for row in rows] == ["a, mean of 3 seeds", "a@0", "a@1", "a@2", "b"]
    assert rows[0].average["en"]["acc"] == pytest.approx((1 + 0.875 + 0.75) / 3) and rows[0].average["en"]["n"] == 48
    np.testing.assert_allclose(rows[0].draws["en"]["acc"], np.mean([row.draws["en"]["acc"] for row in rows[1:4]], axis=0))
    assert named(rows, "a") is rows[0] and named(rows, "a@1") is rows[2]
    with pytest.raises(UserError, match="--against"):
        named(rows, "nobody")


def test_differences_are_paired_and_a_tie_is_called_one() -> None:
    better, worse = judged("better", {"en": 0, "zh": 0}), judged("worse", {"en": 12, "zh": 0})
    found = differences(better, worse)
    assert found["en"].acc == 0.25 and found["en"].verdict == "higher" and 0 < found["en"].low < 0.25 < found["en"].high
    assert found["zh"].acc == 0 and found["zh"].verdict == "tie"
    assert found["mean"].acc == 0.125 and found["mean"].verdict == "higher"
    back = differences(worse, better)
    assert back["en"].verdict == "lower" and back["en"].low == pytest.approx(-found["en"].high)
    # One judge misses the first two dialogues (a group), the other the last two: equally good, neither is better.
    even = differences(judged("a", {"en": 2, "zh": 0}), judged("b", {"en": 2, "zh": 0}, last=True))
    assert even["en"].acc == 0 and even["en"].low < 0 < even["en"].high and even["en"].verdict == "tie"
    # The same mistakes: no difference in any resample, although each judge's own interval is wide.
    same = differences(judged("a", {"en": 6, "zh": 0}), judged("b", {"en": 6, "zh": 0}))
    assert (same["en"].acc, same["en"].low, same["en"].high) == (0, 0, 0)


def test_the_bootstrap_draws_groups_whole() -> None:
    """Against every resample of three groups of unlike size: the percentiles of an exact bootstrap."""
    sums, counts = np.array([[0.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [6.0]])
    exact = [
        sum(sums[i, 0] for i in picks) / sum(counts[i, 0] for i in picks) for picks in itertools.product(range(3), repeat=3)
    ]
    draws = resampled_means(sums, counts)[:, 0]
    assert {round(value, 9) for value in draws} == {round(value, 9) for value in exact}
    assert abs(draws.mean() - np.mean(exact)) < 0.02
    low, high = interval(draws)
    assert (low, high) == (0, 1)


def test_one_group_gives_no_interval() -> None:
    one: Any = {("en", "fluency"): [Item("a", "g", 1, 1), Item("b", "g", 2, 2)]}
    common: Any = {"language": "en", "rubric": "esc_eval", "dimension": "fluency", "method": "joint"}
    made = [
        [Judgement(**common, judge=name, dialogue_id=id, value=value) for id, value in (("a", 1), ("b", second))]
        for name, second in (("x", 2), ("y", 3))
    ]
    rows = table_rows({(own[0].judge, "joint"): by_item(own) for own in made}, one, RUBRIC, {})
    (difference,) = compared(rows[0], rows[1], one)
    assert difference.acc == 0.5 and math.isnan(difference.low) and difference.verdict == "no interval"


def test_a_trained_judge_is_compared_with_the_base_that_was_asked_alike() -> None:
    all_right = {"en": 0, "zh": 0}
    rows = rows_of(
        [j.model_copy(update={"method": ""}) for j in judged("majority (train)", all_right)],
        judged("untrained", all_right),
        judged("untrained", all_right, "paper"),
        judged("a@1", all_right),
        judged("a@2", all_right),
        judged("b", all_right, "paper"),
    )
    pairs = list(dict.fromkeys((d.a, d.b) for d in against_baselines(rows, TEST)))
    assert pairs == [
        ("a, mean of 2 seeds", "majority (train)"),
        ("a, mean of 2 seeds", "untrained · joint"),
        ("b", "majority (train)"),
        ("b", "untrained · paper"),
    ]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda own: own[1:], "1 of 72 items .* not judged, for example dialogue en0, fluency"),
        (lambda own: [*own, own[0]], "en0, fluency: scored twice"),
        (lambda own: [*own, own[0].model_copy(update={"dialogue_id": "other"})], "other, fluency: not in the test split"),
        (lambda own: [own[0].model_copy(update={"value": 5.0}), *own[1:]], "value: 5 is not a score"),
        (lambda own: [own[0].model_copy(update={"rubric": "epitome"}), *own[1:]], "rubric: epitome"),
        (lambda own: [j.model_copy(update={"judge": "surface"}) for j in own], "name surface is that of a baseline"),
    ],
)
def test_judgements_of_other_items_are_refused(tmp_path: Path, change: Any, match: str) -> None:
    file = tmp_path / "judgements-a.jsonl"
    write_jsonl(file, change(judged("a", {"en": 0, "zh": 0})))
    with pytest.raises(UserError, match=match):
        read_judges([file], TEST, RUBRIC)


def test_the_verb_writes_and_prints_the_table(tmp_path: Path) -> None:
    def example(split: str, n: int, label: int) -> RankExample:
        return RankExample(
            id=f"{split}{n}",
            prompt=({"role": "user", "content": "x"},),
            completion=({"role": "assistant", "content": f"{label}"},),
            language="en",
            dialogue_id=f"{split}{n}",
            group=f"g {split}{n}",
            dimension="fluency",
            labels={"fluency": label},
            target={"fluency": float(label)},
        )

    splits = {"train": [1, 1, 3, 1], "valid": [1, 3], "test": [1, 3, 3, 3]}
    made = {name: [example(name, n, label) for n, label in enumerate(labels)] for name, labels in splits.items()}
    for name, own in made.items():
        write_jsonl(tmp_path / f"{name}.jsonl", own)
    (tmp_path / "rubric.yaml").write_text(yaml.safe_dump(RUBRIC.model_dump(), allow_unicode=True), encoding="utf-8")
    talks = [
        Dialogue(
            id=e.id,
            language="en",
            source="written",
            turns=(Turn(role="seeker", text="hi"), Turn(role="supporter", text="word")),
        )
        for own in made.values()
        for e in own
    ]
    write_jsonl(tmp_path / "dialogues.jsonl", talks)
    values = {"untrained": [1, 1, 1, 1], "mine": [1, 3, 3, 3], "other": [1, 1, 1, 3]}
    files = []
    for name, own_values in values.items():
        judge = [
            Judgement(
                dialogue_id=e.id, language="en", judge=name, rubric="esc_eval", dimension="fluency", value=v, method="joint"
            )
            for e, v in zip(made["test"], own_values, strict=True)
        ]
        files += ["--judgements", str(tmp_path / f"judgements-{name}.jsonl")]
        write_jsonl(tmp_path / f"judgements-{name}.jsonl", judge)
    write_json(tmp_path / "timing.json", {"mine": {"seconds_per_dialogue": 1.5}})
    arguments = ["rank-table", "--data", str(tmp_path), "--dialogues", str(tmp_path / "dialogues.jsonl"), *files]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out"), "--against", "mine", "--language", "en"])
    assert result.exit_code == 0, result.output
    facts = orjson.loads((tmp_path / "out" / "table.json").read_bytes())
    acc = {row["name"]: row["figures"]["en"]["average"]["acc"] for row in facts["rows"]}
    assert acc == {
        "majority (train)": 0.25,
        "majority (test)": 0.75,
        "surface": 0.25,
        "untrained": 0.25,
        "mine": 1,
        "other": 0.5,
    }
    assert [row["seconds_per_dialogue"] for row in facts["rows"]] == [None, None, None, None, 1.5, None]
    told = [(d["a"], d["b"], d["acc"], d["verdict"]) for d in facts["differences"]]
    assert [pair for pair in told if pair[1] == "mine"] == [("other", "mine", -0.5, "tie")]  # 1 in 16 resamples has none
    assert ("mine", "majority (train)", 0.75, "higher") in told and ("mine", "untrained", 0.75, "higher") in told
    text = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "| mine | 100.00 [100.00, 100.00] n=4 |" in text and "Fewer than 20 groups" in text
    refused = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "none"), "--language", "zh"])
    assert isinstance(refused.exception, UserError) and "language zh" in str(refused.exception)


def test_a_verdict_follows_the_interval() -> None:
    for acc, low, high, verdict in ((1, 0.1, 2, "higher"), (-1, -2, -0.1, "lower"), (1, 0, 2, "tie")):
        assert Difference("a", "b", "en", acc, low, high, 1).verdict == verdict
