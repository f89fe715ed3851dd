"""Judges' averages, means over seeds and their tests, and a split's baselines: figures that can be worked out by hand."""

import itertools
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from scipy.stats import t as student_t
from typer.testing import CliRunner

from core.errors import UserError
from core.files import write_json, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.rubrics import load_rubric
from core.tables import Estimate
from data_prep.scores.rank_sft import RankExample, narrowed
from evalsuite.cli import app
from evalsuite.statistics.contestants import Clusters
from evalsuite.statistics.judge_figures import JudgeDifference, JudgeSettings, compare, judge_figures, seed_families
from evalsuite.statistics.judges import by_judge
from evalsuite.statistics.summary import AVERAGE
from tests.evalsuite.oracles import agrees, student

RUBRIC = narrowed(load_rubric("esc_eval"), ["fluency", "skill"])
LABELS: dict[Any, list[int]] = {"en": [0, 1, 2, 3] * 6, "zh": [4, 4, 2, 2] * 3}  # of both dimensions; two dialogues a group
GROUPS = {f"{language}{n}": f"{language} group {n // 2}" for language, labels in LABELS.items() for n in range(len(labels))}
CLUSTERS = Clusters(GROUPS, "groups")
ITEMS = [
    (language, dimension, n, label)
    for language in LABELS
    for dimension in RUBRIC.dimensions
    for n, label in enumerate(LABELS[language])
]
GOLD = [
    HumanScore(
        dialogue_id=f"{language}{n}", language=language, annotator="a", rubric="esc_eval", dimension=dimension, value=label
    )
    for language, dimension, n, label in ITEMS
]


def judged(
    name: str, wrong: dict[str, int], method: str = "joint", off: int = 1, unread: bool = False, last: bool = False
) -> list[Judgement]:
    """Right but for the fluency of the first (last) `wrong[language]` dialogues, which is `off` by so much (or unreadable)."""
    made = []
    for language, dimension, n, label in ITEMS:
        place = len(LABELS[language]) - 1 - n if last else n
        miss = dimension == "fluency" and place < wrong[language]
        value = label + (off if label + off <= 4 else -off) if miss else label
        made.append(
            Judgement(
                dialogue_id=f"{language}{n}",
                language=language,
                judge=name,
                rubric="esc_eval",
                dimension=dimension,
                value=None if miss and unread else value,
                method=method,
            )
        )
    return made


def rows_of(*judgements: list[Judgement], **settings: Any) -> dict[str, dict[str, tuple[Any, ...]]]:
    """The tables of averages: {language: {judge: cells}}."""
    chosen = JudgeSettings("paper", RUBRIC, clusters=CLUSTERS, averages=True, seeds=True, **settings)
    _, tables = judge_figures(by_judge(itertools.chain(*judgements)), GOLD, chosen)
    averages = [table for table in tables.first if table.key.startswith("judge_averages")]
    return {table.key.split("_")[-1]: {str(row[0]): row[1:] for row in table.rows} for table in averages}


def differences(*judgements: list[Judgement]) -> list[JudgeDifference]:
    """Those of averages."""
    judges = by_judge(itertools.chain(*judgements))
    found = compare(judges, GOLD, "paper", seed_families(judges), clusters=CLUSTERS, over_languages=True)
    return [one for one in found if one.dimension == AVERAGE]


def of_pair(a: list[Judgement], b: list[Judgement]) -> dict[str, JudgeDifference]:
    return {d.language: d for d in differences(a, b)}


def mean(cell: Any) -> float:
    assert isinstance(cell, Estimate) and cell.mean is not None
    return cell.mean


def test_averages_are_means_over_dimensions_then_languages() -> None:
    tables = rows_of(judged("a", {"en": 6, "zh": 3}, off=2))
    assert mean(tables["en"]["a"][0]) == 100 * (18 / 24 + 1) / 2 and mean(tables["zh"]["a"][0]) == 100 * (9 / 12 + 1) / 2
    assert mean(tables["all"]["a"][0]) == 87.5 and tables["all"]["a"][0].n == 2 * (24 + 12)
    assert mean(tables["en"]["a"][1]) == 87.5  # two off is not soft either
    assert tables["en"]["a"][4] is None  # no probabilities, no ECE
    tables = rows_of(judged("b", {"en": 6, "zh": 0}), judged("c", {"en": 6, "zh": 0}, unread=True))
    assert mean(tables["en"]["b"][1]) == 100
    assert mean(tables["en"]["c"][0]) == mean(tables["en"]["c"][1]) == 87.5  # unreadable is wrong
    assert tables["en"]["c"][2] == 1  # kappa is over what was read


@pytest.mark.slow
def test_seeds_of_a_judge_are_averaged_and_each_is_shown() -> None:
    seeds = [judged(f"a@{seed}", {"en": wrong, "zh": 0}) for seed, wrong in enumerate((0, 6, 12))]
    tables = rows_of(*seeds, judged("b", {"en": 0, "zh": 0}), seconds={("a@0", "joint"): 1.0, ("a@1", "joint"): 2.0})
    assert list(tables["en"]) == ["a, mean of 3 seeds", "a@0", "a@1", "a@2", "b"]
    whole = tables["en"]["a, mean of 3 seeds"]
    assert mean(whole[0]) == pytest.approx(100 * (1 + 0.875 + 0.75) / 3) and whole[0].n == 48
    assert [row[5] for row in tables["en"].values()] == [None, 1, 2, None, None]
    # Its interval is that of the mean in every draw: narrower than the worst seed's, wider than that of the best, which has
    # one although all of its verdicts are right.
    width = {name: row[0].high - row[0].low for name, row in tables["en"].items()}
    assert 0 < width["a@0"] < width["a, mean of 3 seeds"] < width["a@2"]


def test_the_mean_over_seeds_is_tested_in_their_place() -> None:
    seeds = [judged(f"a@{seed}", {"en": wrong, "zh": 0}) for seed, wrong in enumerate((0, 6, 12))]
    found = {(d.a, d.b, d.language): d for d in differences(*seeds, judged("b", {"en": 0, "zh": 0}))}
    assert set(found) == {("a, mean of 3 seeds", "b", language) for language in ("en", "zh", "all")}
    assert found["a, mean of 3 seeds", "b", "en"].difference == pytest.approx(-(0 + 0.125 + 0.25) / 3)


def test_means_of_two_methods_have_two_names() -> None:
    made = [judged(f"a@{n}", {"en": 0, "zh": 0}, "joint" if n < 2 else "paper") for n in range(4)]
    families = seed_families(by_judge(itertools.chain(*made)))
    assert families == {"a · joint, mean of 2 seeds": ["a@0", "a@1"], "a · paper, mean of 2 seeds": ["a@2", "a@3"]}
    assert seed_families(by_judge(judged("a@1", {"en": 0, "zh": 0}))) == {}


def test_differences_are_paired_over_groups_and_languages() -> None:
    better, worse = judged("better", {"en": 0, "zh": 0}), judged("worse", {"en": 12, "zh": 0})
    found = of_pair(better, worse)
    assert found["en"].difference == 0.25 and (found["en"].clusters, found["en"].n) == (12, 48)
    assert found["en"].low is not None and found["en"].high is not None and 0 < found["en"].low < 0.25 < found["en"].high
    gaps = [[1.0, 0.0]] * 6 + [[0.0, 0.0]] * 6  # of groups: six differ, in fluency
    assert found["en"].p == pytest.approx(student(gaps, most=1))
    assert found["zh"].difference == 0 and found["zh"].p == 1
    # Over languages: half of English's gaps and errors, on the degrees of freedom of Chinese, which has six groups.
    t_of_english = student_t.isf(found["en"].p / 2, 11) if found["en"].p else 0
    assert found["all"].difference == 0.125 and found["all"].clusters == 18
    raw = 2 * student_t.sf(t_of_english, 5)
    assert agrees(found["all"].p, raw, Estimate(0.125, found["all"].low, found["all"].high, 0))
    # One judge misses the first two dialogues (a group), the other the last two: equally good, neither is better.
    even = of_pair(judged("a", {"en": 2, "zh": 0}), judged("b", {"en": 2, "zh": 0}, last=True))["en"]
    assert even.difference == 0 and even.low is not None and even.high is not None and even.low < 0 < even.high
    # The same mistakes in 24 dialogues: no difference, though other dialogues may show one.
    same = of_pair(judged("a", {"en": 6, "zh": 0}), judged("b", {"en": 6, "zh": 0}))["en"]
    assert same.difference == 0 and same.low is not None and same.high is not None and -0.2 < same.low < 0 < same.high < 0.2


@pytest.mark.slow
def test_references_limit_the_pairs_and_have_to_be_there() -> None:
    right = {"en": 0, "zh": 0}
    made = [
        *(judged("untrained", right), judged("untrained", right, "paper"), judged("a@1", right), judged("a@2", right)),
        judged("b", right),
    ]
    judges = by_judge(itertools.chain(*made))

    def pairs(*references: str) -> set[tuple[str, str]]:
        settings = JudgeSettings("paper", RUBRIC, seeds=True, references=references)
        return {(d["a"], d["b"]) for d in judge_figures(judges, GOLD, settings)[0]["differences"]}

    assert pairs("untrained · joint") == {
        ("a, mean of 2 seeds", "untrained · joint"),
        ("untrained · joint", "untrained · paper"),
        ("untrained · joint", "b"),
    }
    assert len(pairs()) == 6 and len(pairs("untrained")) == 5 and ("a, mean of 2 seeds", "b") not in pairs("untrained")
    assert len(pairs("a")) == 3  # the mean over its seeds
    with pytest.raises(UserError, match="--reference: no judge 'nobody'"):
        pairs("nobody")


@pytest.mark.slow
def test_the_verb_adds_the_baselines_of_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.chdir(tmp_path)
    splits = {"train": [1, 1, 3, 1], "valid": [1, 3], "test": [1, 3, 3, 3]}
    made = {name: [example(name, n, label) for n, label in enumerate(labels)] for name, labels in splits.items()}
    for name, examples in made.items():
        write_jsonl(Path("split") / f"{name}.jsonl", examples)
    Path("split/rubric.yaml").write_text(yaml.safe_dump(RUBRIC.model_dump(), allow_unicode=True), encoding="utf-8")
    everything = [e for examples in made.values() for e in examples]
    turns = (Turn(role="seeker", text="hi"), Turn(role="supporter", text="word"))
    write_jsonl(Path("talks.jsonl"), [Dialogue(id=e.id, language="en", source="written", turns=turns) for e in everything])
    common: dict[str, Any] = {"language": "en", "rubric": "esc_eval", "dimension": "fluency"}
    gold = [HumanScore(**common, dialogue_id=e.id, annotator="a", value=e.labels["fluency"]) for e in everything]
    write_jsonl(Path("gold.jsonl"), gold)
    words: list[str] = []
    for name, values in {"untrained": [1, 1, 1, 1], "mine": [1, 3, 3, 3], "other": [1, 1, 1, 3]}.items():
        judge = [
            Judgement(**common, dialogue_id=e.id, judge=name, value=value, method="joint")
            for e, value in zip(made["test"], values, strict=True)
        ]
        write_jsonl(Path(f"judgements-{name}.jsonl"), judge)
        words += ["--judgements", f"judgements-{name}.jsonl"]
    write_json(Path("timing.json"), {"mine": {"seconds_per_dialogue": 1.5}})
    words += ["--gold", "gold.jsonl", "--only-shared", "--mode", "paper"]
    asked = ["agree", *words, "--split", "split", "--dialogues", "talks.jsonl", "--reference", "mine", "--out", "out"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    facts = orjson.loads(Path("out/agreement.json").read_bytes())
    acc = {name: judge["agreement"]["en"]["average"]["acc"] for name, judge in facts["judges"].items()}
    assert acc == {"untrained": 0.25, "mine": 1, "other": 0.5, "majority (train)": 0.25, "surface": 0.25}
    assert facts["surface"][0]["valid_n"] == 2
    found = {(d["a"], d["b"]): d["difference"] for d in facts["differences"]}
    assert found["mine", "majority (train)"] == found["untrained", "mine"] * -1 == 0.75 and len(found) == 4
    text = Path("out/table4.md").read_text(encoding="utf-8")
    assert re.search(r"\| mine \| 100.00 \[\d\d.\d\d, 100.00\] n=4 \|", text)
    assert "s a dialogue" in text and "| 1.50 |" in text
    refused = CliRunner().invoke(app, ["agree", *words, "--split", "split", "--cluster", "card"])
    assert isinstance(refused.exception, UserError) and "--split resamples its own groups whole" in str(refused.exception)
