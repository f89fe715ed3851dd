"""Ranker examples: the messages are the scorer's, the labels are what people gave, and the files repeat byte for byte."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.judge_prompts import PromptMethod
from core.ledger import BuildStep
from core.prompts import load_pack
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.rubrics import Rubric, load_rubric
from core.specs import load_spec
from core.verbs import Verbs
from data_prep.commands.rank_sft import rank_sft
from data_prep.scores import synthetic
from data_prep.scores.human import read_scores
from data_prep.scores.rank_sft import RankCase, RankExample, cases, majority, mean_targets, narrowed, split_cases
from evalsuite.judge.judge import Judge
from evalsuite.statistics.agreement import agreement
from serve.answers import Reply
from serve.client import ChatClient
from serve.questions import Question
from tests.verbs import printed

pytestmark = pytest.mark.slow

METHODS: tuple[PromptMethod, ...] = ("joint", "per_dimension", "paper")
FILES = ("train.jsonl", "valid.jsonl", "test.jsonl")
app = Verbs(pretty_exceptions_enable=False)
app.command()(rank_sft)


def talk(name: str = "d", language: str = "en", **fields: Any) -> Dialogue:
    turns = (Turn(role="seeker", text=f"My kettle {name} broke."), Turn(role="supporter", text="That is a pity."))
    return Dialogue.model_validate({"id": name, "language": language, "source": "test", "turns": turns} | fields)


def given(name: str, dimension: str, value: float, **fields: Any) -> HumanScore:
    base = {"dialogue_id": name, "language": "en", "annotator": "ann", "rubric": "esc_eval", "dimension": dimension}
    return HumanScore.model_validate(base | {"value": value} | fields)


def full(name: str, values: Sequence[float], rubric: Rubric) -> dict[str, dict[str, float]]:
    return {name: dict(zip(rubric.dimensions, values, strict=True))}


class Listener:
    """Stands where the chat client does and keeps what a judge asks."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    async def ask(self, spec: object, question: Question) -> Reply:
        self.asked.append(question)
        return Reply(text="?", finish_reason="stop")


@pytest.mark.parametrize("prompts", ["esc_eval", "esc_rank"])
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("method", METHODS)
async def test_messages_are_those_that_scoring_sends(method: PromptMethod, language: str, prompts: str) -> None:
    rubric, pack, dialogue = load_rubric("esc_eval"), load_pack(prompts), talk(language=language)
    listener = Listener()
    await Judge(cast(ChatClient, listener), load_spec("esc-rank"), rubric, pack, method).score(dialogue)
    found = cases([dialogue], full("d", (3, 2, 4, 0, 1, 3, 2), rubric), rubric, method, BuildStep("s"))
    examples = [case.example(pack, rubric) for case in found]
    by_dimension = {str(question.sample["dimension"]): list(question.messages) for question in listener.asked}
    assert {e.dimension or "all": list(e.prompt) for e in examples} == by_dimension
    answers = ["3240132"] if method == "joint" else list("3240132")
    assert [e.completion for e in examples] == [({"role": "assistant", "content": text},) for text in answers]


def test_several_annotators_are_averaged_and_rounded_half_up() -> None:
    rubric = narrowed(load_rubric("esc_eval"), ["empathy"])
    step = BuildStep("scores")
    scores = [given("d", "empathy", 2), given("d", "empathy", 3, annotator="bob"), given("e", "empathy", 1)]
    targets, used = mean_targets(scores, {"d": talk("d"), "e": talk("e")}, rubric, step)
    assert targets == {"d": {"empathy": 2.5}, "e": {"empathy": 1.0}} and used == scores
    example = cases([talk("d")], targets, rubric, "joint", BuildStep("s"))[0].example(load_pack("esc_eval"), rubric)
    assert example.labels == {"empathy": 3} and example.target == {"empathy": 2.5}
    assert example.completion[0]["content"] == "3"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rubric": "esc_eval_human"}, "of rubric esc_eval_human"),
        ({"dimension": "skill"}, "dimension skill not asked"),
        ({"turn": 1}, "of a single turn"),
        ({"dialogue_id": "gone"}, "no such dialogue"),
        ({"dialogue_id": "greeting"}, "dialogue that no judge is asked about (no answered seeker turn, or a server failed)"),
        ({"dialogue_id": "lost"}, "dialogue that no judge is asked about (no answered seeker turn, or a server failed)"),
    ],
)
def test_every_unused_score_has_its_reason(fields: dict[str, Any], reason: str) -> None:
    rubric = narrowed(load_rubric("esc_eval"), ["empathy"]).model_copy(update={"languages": ("en",)})
    opening = (Turn(role="supporter", text="Hello."), Turn(role="seeker", text="Hm."))
    dialogues = [talk("d"), talk("greeting", turns=opening), talk("lost", termination="infrastructure")]
    step = BuildStep("scores")
    score = given("d", "empathy", 2).model_copy(update=fields)
    targets, used = mean_targets([score], {d.id: d for d in dialogues}, rubric, step)
    assert (targets, used) == ({}, []) and dict(step.dropped) == {reason: 1}
    step.check()


def test_wrong_scores_are_errors() -> None:
    rubric, dialogues = load_rubric("esc_eval"), {"d": talk()}
    with pytest.raises(UserError, match=r"dialogue d, dimension empathy: value: 5 is off the scale of rubric esc_eval, 0 to 4"):
        mean_targets([given("d", "empathy", 5)], dialogues, rubric, BuildStep("s"))
    with pytest.raises(UserError, match="ann gave d / empathy in two files"):
        mean_targets([given("d", "empathy", 2), given("d", "empathy", 2)], dialogues, rubric, BuildStep("s"))
    with pytest.raises(UserError, match="'empaty' is not in rubric esc_eval: did you mean empathy"):
        narrowed(rubric, ["empaty"])
    wide = rubric.model_copy(update={"scale": rubric.scale.model_copy(update={"max": 10})})
    with pytest.raises(UserError, match="one digit"):
        cases([talk()], {}, wide, "joint", BuildStep("s"))


def test_joint_needs_every_dimension() -> None:
    rubric = narrowed(load_rubric("esc_eval"), ["skill", "empathy"])
    assert list(rubric.dimensions) == ["empathy", "skill"], "the rubric's order stands"
    targets = {"d": {"skill": 1.0, "empathy": 3.0}, "e": {"skill": 2.0}}
    step = BuildStep("s")
    found = cases([talk("e"), talk("d")], targets, rubric, "joint", step)
    assert [(case.id, list(case.target)) for case in found] == [("d/joint", ["empathy", "skill"])]
    assert (step.taken, step.kept, dict(step.dropped)) == (3, 2, {"no joint answer without empathy": 1})
    single = cases([talk("e"), talk("d")], targets, rubric, "paper", BuildStep("s"))
    assert [case.id for case in single] == ["e/skill", "d/empathy", "d/skill"]


@pytest.mark.parametrize("targets", [[0, 1, 1, 2, 2, 4], [3, 3.5, 2.5, 1, 0.5], [4], [0, 0, 4, 4, 3, 2, 2.5]])
def test_the_majority_baseline_is_that_of_agreement(targets: list[float]) -> None:
    names = [f"d{i}" for i in range(len(targets))]
    verdicts = [
        Judgement(dialogue_id=name, language="en", judge="j", rubric="r", dimension="empathy", value=0) for name in names
    ]
    gold = [given(name, "empathy", value) for name, value in zip(names, targets, strict=True)]
    expected = agreement(verdicts, gold)["en"]["empathy"]
    found = majority(targets)
    assert found["n"] == expected["n"] == sum(found["counts"].values())
    assert (found["majority_acc"], found["majority_acc_soft"]) == (expected["majority_acc"], expected["majority_acc_soft"])


@pytest.mark.parametrize("method", METHODS)
def test_a_grouped_split_has_no_card_on_two_sides(method: PromptMethod) -> None:
    rubric = load_rubric("esc_eval")
    dialogues = [talk(f"{card}-{supporter}", card_id=f"c{card}") for card in range(40) for supporter in range(3)]
    targets = {d.id: {key: float((i + j) % 5) for j, key in enumerate(rubric.dimensions)} for i, d in enumerate(dialogues)}
    splits = split_cases(cases(dialogues, targets, rubric, method, BuildStep("s")), "grouped", 0)
    cards = {name: {case.dialogue.card_id for case in found} for name, found in splits.items()}
    assert {name: len(found) for name, found in cards.items()} == {"train": 28, "valid": 4, "test": 8}
    assert sum(map(len, cards.values())) == 40


# --- the command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def score_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    dialogues, scores = synthetic.build(languages=("en",))
    write_jsonl(folder / "dialogues.jsonl", dialogues)
    write_jsonl(folder / "scores.jsonl", scores)
    return folder


def call(folder: Path, out: Path, *more: str) -> str:
    given = ("--dialogues", folder / "dialogues.jsonl", "--gold", folder / "scores.jsonl")
    return printed(app, *given, "--out", out, *more)


@pytest.mark.parametrize("split", ["grouped", "random"])
def test_one_seed_gives_the_same_bytes_and_another_does_not(split: str, score_set: Path, tmp_path: Path) -> None:
    some = read_jsonl(score_set / "dialogues.jsonl", Dialogue, "dialogues")[::8]
    write_jsonl(tmp_path / "dialogues.jsonl", some)
    names = {dialogue.id for dialogue in some}
    write_jsonl(tmp_path / "scores.jsonl", [s for s in read_scores(score_set / "scores.jsonl") if s.dialogue_id in names])
    made = []
    for name, seed in (("a", "4"), ("b", "4"), ("c", "5")):
        call(tmp_path, tmp_path / name, "--seed", seed, "--split", split)
        made.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
    for file in ("train.jsonl", "test.jsonl"):  # a validation set of two bases can recur
        assert made[0][file] != made[2][file], file


@pytest.mark.slow
def test_bundled_set_through_the_command(score_set: Path, tmp_path: Path) -> None:
    output = call(score_set, tmp_path)
    splits = {file: read_jsonl(tmp_path / file, RankExample, "examples") for file in FILES}
    dialogues = read_jsonl(score_set / "dialogues.jsonl", Dialogue, "dialogues")
    assert sum(map(len, splits.values())) == 7 * len(dialogues)
    groups = [{example.group for example in found} for found in splits.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 86, "the variants of one base stay together"
    tested = [d.id for d in read_jsonl(tmp_path / "dialogues_test.jsonl", Dialogue, "dialogues")]
    assert tested == [example.dialogue_id for example in splits["test.jsonl"]][::7]
    gold = read_scores(tmp_path / "scores_test.jsonl")
    assert {score.dialogue_id for score in gold} == set(tested) and len(gold) == 7 * len(tested)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["seed"] == 0 and manifest["settings"]["method"] == "per_dimension"
    assert set(manifest["outputs"]) == {*FILES, "dialogues_test.jsonl", "scores_test.jsonl", "labels.json", "rubric.yaml"}
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert labels["on_several_sides"] == {"dialogues": 0, "groups": 0}
    rows = [row for row in labels["labels"] if row["split"] == "test"]
    assert [row["dimension"] for row in rows] == list(load_rubric("esc_eval").dimensions)
    assert all(row["n"] == len(tested) for row in rows)
    assert "points off 70 : 10 : 20" in output and "test  en overall" in output


def test_the_written_rubric_asks_what_the_examples_ask(score_set: Path, tmp_path: Path) -> None:
    call(score_set, tmp_path, "--dimensions", "skill, empathy")
    rubric, pack = load_rubric(str(tmp_path / "rubric.yaml")), load_pack("esc_eval")
    assert list(rubric.dimensions) == ["empathy", "skill"]
    example = read_jsonl(tmp_path / "test.jsonl", RankExample, "examples")[0]
    dialogue = read_jsonl(tmp_path / "dialogues_test.jsonl", Dialogue, "dialogues")[0]
    target = {key: float(value) for key, value in example.target.items()}
    assert RankCase(dialogue, {"empathy": target["empathy"]}, "per_dimension").example(pack, rubric) == example


def test_every_dimension_of_the_papers_split_is_tested_on_the_same_dialogues(score_set: Path, tmp_path: Path) -> None:
    output = call(score_set, tmp_path, "--split", "random", "--method", "paper")
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert labels["on_several_sides"]["dialogues"] == 0 < labels["on_several_sides"]["groups"]
    assert f"{labels['on_several_sides']['groups']} on several sides" in output
    tested: dict[str, set[str]] = {}
    for example in read_jsonl(tmp_path / "test.jsonl", RankExample, "examples"):
        tested.setdefault(str(example.dimension), set()).add(example.dialogue_id)
    (names,) = {frozenset(names) for names in tested.values()}
    count = len(read_jsonl(score_set / "dialogues.jsonl", Dialogue, "dialogues"))
    assert len(tested) == 7 and len(names) == count - round(0.8 * count)


def test_nothing_to_learn_from_says_why(score_set: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="no example can be made of .*scores.jsonl with rubric epitome .dimension empathy not asked: "
    ):
        call(score_set, tmp_path, "--rubric", "epitome")
    assert not (tmp_path / "manifest.json").exists()


def test_scores_on_one_other_rubric_are_taken_and_told(tmp_path: Path) -> None:
    dialogues = [talk(f"{number}") for number in range(30)]
    write_jsonl(tmp_path / "dialogues.jsonl", dialogues)
    scores = [given(d.id, "empathy", 2, rubric="esc_eval_human") for d in dialogues]
    write_jsonl(tmp_path / "scores.jsonl", scores)
    output = call(tmp_path, tmp_path / "out", "--prompts", "esc_rank")
    settings = json.loads((tmp_path / "out" / "manifest.json").read_text())["settings"]
    assert settings["prompts"] == {"pack": "esc_rank", "fingerprint": load_pack("esc_rank").fingerprint()}
    assert "people scored on rubric esc_eval_human; the ranker's rubric is esc_eval" in output
    assert sum(len(read_jsonl(tmp_path / "out" / file, RankExample, "examples")) for file in FILES) == 30
    write_jsonl(tmp_path / "scores.jsonl", [*scores, given("0", "empathy", 2, rubric="feel")])
    with pytest.raises(UserError, match=r"no example can be made .*of rubric esc_eval_human: 30; of rubric feel: 1"):
        call(tmp_path, tmp_path / "out")


@pytest.mark.slow
def test_the_synthetic_set_is_written_beside_its_examples(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--gold", "synthetic", "--method", "joint", "--out", str(tmp_path / "one")])
    assert result.exception is None and "2232 dialogues, 15624 scores (synthetic" in result.output
    call(tmp_path / "one", tmp_path / "two", "--method", "joint")
    for file in (*FILES, "dialogues_test.jsonl", "scores_test.jsonl", "labels.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_what_gold_goes_with(tmp_path: Path) -> None:
    for arguments, message in (
        (("--gold", "synthetic", "--dialogues", __file__), "the set has its own dialogues and scores"),
        (("--gold", __file__), "give the scored dialogues with --dialogues FILE"),
    ):
        result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
        assert isinstance(result.exception, UserError) and message in str(result.exception)
    write_jsonl(tmp_path / "dialogues.jsonl", [talk("d", "zh")])
    write_jsonl(tmp_path / "scores.jsonl", [given("d", "empathy", 2)])
    with pytest.raises(UserError, match="dialogue d is in zh, not en"):
        call(tmp_path, tmp_path / "out")
