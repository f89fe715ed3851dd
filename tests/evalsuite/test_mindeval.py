"""MindEval on a miniature of its repository: what the published scripts would send, by a loop of this file's own, and what they
make of the answers; experts' scores and agreement against sums by hand and other libraries."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_jsonl
from core.records import Dialogue, HumanScore, Judgement, RoleCard
from evalsuite.cli import app
from evalsuite.judge.published_packs import numbers_in
from evalsuite.statistics.paired import one_sided_clusters
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.published_benchmarks import JUDGE, LABELS, PROMPTS, imported, member, mindeval_clone, rated

CONFIG = str(Path(__file__).parents[2] / "configs" / "eval" / "mindeval.yaml")
IN_PLACE = ("--set", "prompts=in/prompts", "--set", 'cards=["in/cards.jsonl"]')
NO_GOLD = ("--set", "gold=null")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return mindeval_clone(tmp_path / "clone")


def run_at(url: str, *more: object) -> tuple[object, ...]:
    out = () if "--out" in more else ("--out", "run")
    return ("run", "--config", CONFIG, "--model", f"my-model@{url}", *IN_PLACE, *more, *out)


def said(body: dict[str, Any], count: int) -> Answer:
    """By the messages alone, whoever is asked: now and then nothing, from a judge a line too few or a number off the scale."""
    draw = int(hashlib.sha256(json.dumps(body["messages"], sort_keys=True).encode()).hexdigest(), 16)
    if len(body["messages"]) > 1:
        return Answer("" if draw % 7 == 0 else f"  ${{age}} {{{{ {draw % 9973} }}}}\n\nyes \n")
    numbers = [f"{1 + (draw >> 8 * place) % 41 / 8:g}" for place in range(5)]
    lines = [f"{label}: {number}" for label, number in zip(LABELS, numbers, strict=True)]
    lines[1] = f"{LABELS[1]}: 35" if draw % 2 else lines[1]
    return Answer("<think>\nFirst\n</think>\nRatings\n" + "\n".join(lines[: 4 + draw // 2 % 2]))


@pytest.mark.slow
def test_the_clone_becomes_members_prompts_scores_and_peoples_turns(clone: Path) -> None:
    output = imported("mindeval")
    assert "licence: none stated" in output and not (clone / "ran").exists(), "scripts are read, not run"
    cards = read_jsonl(Path("in/cards.jsonl"), RoleCard, "cards")
    assert [(card.id, card.age, card.problem[:6]) for card in cards] == [
        (f"mindeval-{n}", age, name) for n, age, name in ((1, "40", "Ada li"), (2, "31", "Bo lie"), (3, "22", "Cy lie"))
    ]
    assert cards[0].details["program_goal"] == "To sleep ${well}"
    names = {path.name for path in Path("in/prompts/en").iterdir()}
    assert names == {
        *("seeker_v1.j2", "seeker_v0_2.j2", "supporter_v0_1.j2", "supporter_brief.j2", "_judge_v0_1.j2"),
        *("judge_lines.j2", "opening.txt"),
    }, "custom is a placeholder"
    dialogues = read_jsonl(Path("in/dialogues.jsonl"), Dialogue, "dialogues")
    assert [(d.id, d.supporter, d.fields["mood"], d.turns[0].role) for d in dialogues[:1]] == [
        ("mindeval-r1", "some-model", "calm", "supporter")
    ]
    scores = read_jsonl(Path("in/scores.jsonl"), HumanScore, "scores")
    given = {(s.dialogue_id[-2:], s.annotator, s.dimension): s.value for s in scores}
    first, second = "expert-e-one-lo", "expert-e-two-lo"
    assert (given["r1", first, "clinical_accuracy"], given["r1", second, "clinical_accuracy"]) == (2.5, 4.5)
    assert given["r1", first, "therapeutic_alliance"] == 2, "a 0 says that the question does not apply"
    assert ("r2", first, "therapeutic_alliance") not in given and len(given) == 3 * 2 * 5 - 1
    people = Path("in/people_turns.jsonl").read_text()
    assert "secret" not in people and [len(json.loads(line)["turns"]) for line in people.splitlines()] == [2, 1]


WRONG: dict[str, tuple[str, Any, str]] = {
    "a member without a story": ("profiles", {"member_attributes": {}}, "profiles.jsonl:2: member_narrative"),
    "a score off the scale": ("human_annotations", rated("x", {"criterion_3": [7, 1]}), "criterion_3.responses: '7' is not"),
    "a score of nobody": (
        "human_annotations",
        rated("x", {}) | {"criterion_6.responses.users": ["e"]},
        "human_annotations.jsonl:2: criterion_6.responses: expected a score for each name",
    ),
    "an unknown speaker": (
        "human_annotations",
        rated("x", {}) | {"messages": [{"role": "bot", "content": "hi"}]},
        "human_annotations.jsonl:2: messages: turns",
    ),
    "a turn without text": ("human_user_turns", {"patient_profile": {}}, "human_user_turns.jsonl:2: content"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_named_and_nothing_is_written(clone: Path, case: str) -> None:
    file, row, message = WRONG[case]
    path = clone / "data" / f"{file}.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n" + json.dumps(row) + "\n")
    with pytest.raises(UserError, match=re.escape(message)):
        imported("mindeval")
    assert not Path("in/cards.jsonl").exists()


@pytest.mark.parametrize(
    ("script", "old", "new", "message"),
    [
        ("mindeval/prompts.py", "INTERACTION_MEMBER", "OTHER", "no dictionary INTERACTION_MEMBER_VERSION_DICT"),
        ("mindeval/prompts.py", "Template(", "(", ": INTERACTION_MEMBER_VERSION_DICT: no version with a Template"),
        ("mindeval/judge_prompts.py", "${name}", "$ {name}", "judge_prompts.py:3: a $ that begins no field"),
        ("mindeval/scripts/generate_interactions.py", '"user"', "user", "no first message of the user"),
    ],
)
def test_a_script_of_another_shape_is_named(clone: Path, script: str, old: str, new: str, message: str) -> None:
    path = clone / script
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=re.escape(message)):
        imported("mindeval")


def published(exchanges: int) -> tuple[set[str], list[dict[str, float]]]:
    """What the published protocol sends for the three members, and its scores, by a loop of our own: `string.Template` fills
    the prompts in; a reply without its white space, or dots, is heard by both sides."""
    prompts: dict[str, Any] = {}
    exec(PROMPTS + JUDGE, prompts)
    asked: set[str] = set()
    scores = []

    def ask(messages: list[dict[str, str]]) -> str:
        asked.add(json.dumps(messages, sort_keys=True))
        return said({"messages": messages}, 0).text.rpartition("</think>")[2].strip()

    for name, age in (("Ada", 40), ("Bo", 31), ("Cy", 22)):
        row = member(name, age)
        told = row["member_attributes"] | {"member_narrative": row["member_narrative"]}
        systems = prompts["INTAKE"].substitute(told), prompts["MEMBER"].substitute(told)
        clinician, seeker = ([{"role": "system", "content": text}] for text in systems)
        clinician.append({"role": "user", "content": "Morning"})
        seeker.append({"role": "assistant", "content": "Morning"})
        for _ in range(exchanges):
            for own, other in ((clinician, seeker), (seeker, clinician)):
                text = ask(own) or "..."
                own.append({"role": "assistant", "content": text})
                other.append({"role": "user", "content": text})
        tags = {"user": "member", "assistant": "therapist"}
        chat = "".join(f"<{tags[m['role']]}>\n{m['content']}\n</{tags[m['role']]}>\n" for m in clinician[1:]).strip()
        answer = ask([{"role": "user", "content": prompts["RATE"].substitute(told, conversation_str=chat)}])
        found = {label: re.search(rf"{label}:\s*(\d+\.?\d*)", answer) for label in LABELS}
        scores.append({label: float(match[1]) if match else 3 for label, match in found.items()})
    return asked, scores


def test_paper_mode_sends_and_scores_what_the_published_scripts_do(clone: Path, esc_eval: EscEval) -> None:
    imported("mindeval")
    messages, scores = published(4)
    with Endpoint(said) as endpoint:
        paper = (*NO_GOLD, "--set", "mode=paper", "--set", "exchanges=4")
        code, _ = esc_eval(*run_at(endpoint.url, *paper))
        assert code == 0
        sent = {json.dumps(body["messages"], sort_keys=True) for body in endpoint.requests}
        assert sent == messages and len(messages) == 3 * (2 * 4 + 1)
        asked = len(endpoint.requests)
        assert esc_eval(*run_at(endpoint.url, *paper))[0] == 0 and len(endpoint.requests) == asked, "nothing is asked twice"
    report = json.loads(Path("run/report.json").read_text())
    (table,) = (table for table in report["tables"] if table["key"] == "mindeval-my-model")
    row = dict(zip(table["columns"], table["rows"][0], strict=True))
    means = {label: np.mean([one[label] for one in scores]) for label in LABELS}
    assert {label: row[label]["mean"] for label in LABELS} == pytest.approx(means)
    assert row["Overall score"]["mean"] == pytest.approx(np.mean([*means.values()])) and row["cluster"] == 1
    recorded = read_jsonl(Path("run/judgements.jsonl"), Judgement, "judgements")
    ours = [[j.value for j in recorded[n : n + 5]] for n in range(0, 15, 5)]
    wanted = [[score if score != 3 and score <= 6 else None for score in one.values()] for one in scores]
    assert ours == wanted and any(None in one for one in wanted), "no record holds a score that was not given"
    dialogue = read_jsonl(Path("run/dialogues.jsonl"), Dialogue, "dialogues")[0]
    assert [turn.role for turn in dialogue.turns[:3]] == ["seeker", "supporter", "seeker"] and len(dialogue.turns) == 9


def test_experts_measure_the_judge_beside_the_score(clone: Path, esc_eval: EscEval) -> None:
    """The gold set of the config is the import's; what `agree` makes of the same verdicts is what scipy makes of them."""
    imported("mindeval")
    gold = '{"dialogues": "in/dialogues.jsonl", "scores": "in/scores.jsonl"}'
    with Endpoint(said) as endpoint:
        code, _ = esc_eval(*run_at(endpoint.url, "--set", f"gold={gold}", "--set", "exchanges=1", "--limit", 1))
        assert code == 0
        shown = [body["messages"][0]["content"] for body in endpoint.requests if len(body["messages"]) == 1]
        assert any("with Ada.\n<conversation>\n<therapist>\nr1 line 0\n</therapist>" in text for text in shown)
    agreed = json.loads(Path("run/agreement.json").read_text())["agreement"]["en"]
    scores = read_jsonl(Path("in/scores.jsonl"), HumanScore, "scores")
    verdicts = read_jsonl(Path("run/gold_judgements.jsonl"), Judgement, "judgements")
    read = {j.dialogue_id: j.value or 0.0 for j in verdicts if j.dimension == "clinical_accuracy"}
    by_people = {
        id: np.mean([s.value for s in scores if (s.dialogue_id, s.dimension) == (id, "clinical_accuracy")]) for id in read
    }
    assert by_people == {"mindeval-r1": 3.5, "mindeval-r2": 2.25, "mindeval-r3": 5.75}
    assert agreed["clinical_accuracy"]["spearman"] == pytest.approx(
        stats.spearmanr([read[id] for id in by_people], [*by_people.values()]).statistic
    )
    assert agreed["clinical_accuracy"]["n"] == 3
    people = CliRunner().invoke(app, ["agree", "--gold", "in/scores.jsonl", "--json"])
    pair = next(one for one in json.loads(people.output)["annotators"] if one["dimension"] == "clinical_accuracy")["by_pair"][0]
    accuracy = [s for s in scores if s.dimension == "clinical_accuracy"]
    a, b = (np.array([s.value for s in accuracy if s.annotator == f"expert-{who}"]) for who in ("e-one-lo", "e-two-lo"))
    assert pair["kappa"]["mean"] == pytest.approx(1 - ((a - b) ** 2).mean() / ((a[:, None] - b) ** 2).mean(), abs=1e-6)


def test_a_clinician_may_have_a_prompt_of_its_own(clone: Path, esc_eval: EscEval) -> None:
    imported("mindeval")
    Path("mine.txt").write_text("For $name, aged ${age}: $$0.")
    mine = ("--set", "mindeval.clinician_prompt=mine.txt", "--set", "exchanges=1", "--limit", "1", *NO_GOLD)
    with Endpoint(said) as endpoint:
        assert esc_eval(*run_at(endpoint.url, *mine))[0] == 0
        assert "For Ada, aged 40: $0." in {body["messages"][0]["content"] for body in endpoint.requests}
        for text, message in (
            ("$moodd", "moodd}: no field of the published prompt: did you mean mood"),
            ("5 $", "write $$ for a"),
        ):
            own = ("--set", f"mindeval.clinician_prompt={text}", "--out", "other")
            code, err = esc_eval(*run_at(endpoint.url, *own, *NO_GOLD))
            assert code == 2 and message in " ".join(err.split())
        assert not Path("other").exists()


def test_a_dialogue_with_somebody_unknown_is_refused(clone: Path, esc_eval: EscEval) -> None:
    imported("mindeval")
    talk = json.loads(Path("in/dialogues.jsonl").read_text().splitlines()[0])
    Path("talks.jsonl").write_text(json.dumps(talk | {"fields": {}, "card_id": "who"}) + "\n")
    with Endpoint(said) as endpoint:
        code, err = esc_eval(*run_at(endpoint.url, *NO_GOLD, "--only", "score", "--dialogues", "talks.jsonl"))
    assert code == 2 and "the judge needs to know who the member is: its card (who) is not in `cards:`" in " ".join(err.split())


def test_clusters_are_those_of_the_published_test() -> None:
    """Against its own steps, on matrices of scores: every pair's one-sided p, then supporters by falling mean."""
    random = np.random.default_rng(1)
    for count in range(2, 7):
        matrix = np.round(random.normal(random.normal(0, 0.4, count), 1, (12, count)), 1)
        scores = {f"s{column}": dict(enumerate(map(float, matrix[:, column]))) for column in range(count)}
        with np.errstate(all="ignore"):
            better = [[stats.ttest_rel(a, b, alternative="greater").pvalue < 0.05 for b in matrix.T] for a in matrix.T]
        groups: list[list[int]] = [[]]
        for column in np.argsort(-matrix.mean(axis=0), kind="stable"):
            if any(better[other][column] for other in groups[-1]):
                groups.append([])
            groups[-1].append(int(column))
        assert one_sided_clusters(scores) == {f"s{c}": place for place, group in enumerate(groups, start=1) for c in group}
    assert one_sided_clusters({"a": {1: 2.0}, "b": {1: 1.0}}) == {"a": 1, "b": 1}, "one item tells nothing"


def test_the_first_number_behind_a_label_counts_wherever_it_stands() -> None:
    from core.rubrics import load_rubric

    text = f"I would say {LABELS[0]}:\n 4.25/6, or {LABELS[0]}: 2. {LABELS[2]}: high, {LABELS[3]}:7"
    found = numbers_in(text, load_rubric("mindeval"), "en")
    assert found == {"clinical_accuracy": 4.25, "therapeutic_alliance": 7}
