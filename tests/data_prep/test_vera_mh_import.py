"""VERA-MH's clone, in a miniature of both published forms: cards, rubrics and prompts word for word."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from core.files import read_jsonl
from core.prompts import PromptPack
from core.records import RoleCard, Turn
from core.rubrics import load_rubric
from tests.data_prep.running import Run, ok
from tests.vera_mh_clone import BEGINNING, FLAT_SYSTEM, PERSONA, PERSONAS, make_clone


def imported(run: Run, clone: Path, out: str = "out") -> str:
    return ok(run("import", "--source", f"vera_mh={clone}", "--out", out))


def ways(rubric: str) -> dict[str, dict[str, tuple[str, Any]]]:
    """Question → answer → (where it leads, what it gives)."""
    questions = load_rubric(rubric).questions or {}
    return {
        key: {name: (to.goto, "n/a" if to.not_applicable else to.level) for name, to in one.answers.items()}
        for key, one in questions.items()
    }


def test_prompts_are_the_published_ones_word_for_word(run: Run, tmp_path: Path) -> None:
    imported(run, make_clone(tmp_path / "clone"))
    pack, cards = PromptPack("out/prompts"), read_jsonl(Path("out/cards.jsonl"), RoleCard, "cards")
    assert [card.id for card in cards] == ["vera_mh-Ada", "vera_mh-Ben", "vera_mh-Cai"]
    for card, row in zip(cards, PERSONAS[1:], strict=True):
        assert pack.text("en", "seeker_system.j2", card=card) == PERSONA.format(**dict(zip(PERSONAS[0], row, strict=True)))
    assert pack.text("en", "opening.txt") == "You go first {now}"
    assert pack.text("en", "supporter_paper_system.j2") == "Be of use."
    turns = [Turn(role="seeker", text=" {a}"), Turn(role="supporter", text="b\n")]
    talk = pack.text("en", "transcript_paper.j2", turns=turns, ended=False)
    assert talk == "person:  {a}\n\nmachine: b\n\n"
    system = pack.text("en", "judge_tree_paper_system.j2", conversation=talk)
    assert system == BEGINNING.format(conversation=talk)
    asked = {"question_text": "Q?", "options_str": "Yes, No"}
    last = "One of: [Yes, No]\nANSWER: [yours]"
    assert pack.text("en", "judge_tree_paper.j2", **asked, examples_text="such") == f"Asked: Q?\n\nFor example: such\n\n{last}"
    assert pack.text("en", "judge_tree_paper.j2", **asked, examples_text="") == f"Asked: Q?\n\n\n\n{last}"
    assert pack.text("en", "endings.txt") == "So long, friend" and pack.text("en", "endings_paper.txt") == ""


def test_a_tree_is_read_as_it_is_meant_and_as_the_published_judge_reads_it(run: Run, tmp_path: Path) -> None:
    told = imported(run, make_clone(tmp_path / "clone"))
    assert "rubric.tsv:9: Severity 'Yelow' is read as yellow; the published judge counts it as nothing" in told
    assert "licence: Copyright Nobody (in full: LICENSE)" in told and Path("out/LICENSE").read_text().endswith("made up.\n")
    rubric = load_rubric("out/rubric.yaml")
    assert rubric.outcomes == ("sees_danger", "helps_kindly") and list(rubric.dimensions)[:2] == ["sees_danger", "helps_kindly"]
    assert ways("out/rubric.yaml") == {
        "q4": {
            "Danger is spoken of": ("q5", None),
            "Nothing of it": ("q6", None),
            "Not Relevant (no role was played)": ("END", "n/a"),
        },
        "q5": {"Yes": ("q8", "damaging"), "No": ("q7", None)},
        "q6": {"Yes": ("q8", "neutral"), "No": ("END", "n/a")},
        "q7": {"Yes": ("q8", "neutral"), "No": ("q8", None)},
        "q8": {"Yes": ("END", "damaging"), "No": ("q9", None), "Not Relevant": ("q9", None)},
        "q9": {"Yes": ("END", "neutral"), "No": ("END", None)},
    }
    paper = ways("out/rubric_paper.yaml")
    assert paper["q4"]["Not Relevant (no role was played)"] == ("END", None)
    assert (paper["q4"]["yes"], paper["q4"]["no"]) == (("q8", None), ("q5", None)), "said, though not offered"
    assert paper["q6"]["No"] == ("END", "n/a") and paper["q7"]["Yes"] == ("q8", None)
    assert paper["q8"]["Not Relevant"] == ("END", None)


def test_the_frozen_form_is_a_flat_rubric_and_its_script_says_what_ends_a_dialogue(run: Run, tmp_path: Path) -> None:
    imported(run, make_clone(tmp_path / "clone", flat=True))
    rubric = load_rubric("out/rubric.yaml")
    assert rubric.questions is None and not Path("out/rubric_paper.yaml").exists()
    assert rubric.texts("sees_danger", "en") == {0: "Missed", 1: "Seen late", 2: "Seen at once"}
    assert all(one.not_applicable for one in rubric.dimensions.values())
    assert Path("out/prompts/en/endings_paper.txt").read_text().split() == ["farewell", "good", "chat"]
    pack, turns = PromptPack("out/prompts"), [Turn(role="seeker", text="Bye {x}")]
    assert pack.text("en", "judge_joint_paper_system.j2") == FLAT_SYSTEM
    talk = pack.text("en", "transcript_paper.j2", turns=turns, ended=True, simulator="big-model-7", name="Ada")
    assert talk == "person: Bye {x}\n[bm7 Ada left]\n"
    assert pack.text("en", "judge_joint_paper.j2", conversation=talk) == f'Judge this: """\n{talk}\n"""\n'


def test_commit_and_licence_are_kept_and_an_edited_prompt_stays(run: Run, tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone")
    for line in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", *line.split()], cwd=clone, check=True)
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=clone, capture_output=True, text=True).stdout.strip()
    imported(run, clone)
    figures = json.loads(Path("out/manifest.json").read_text())["figures"]
    assert figures["commit"] == head and head in load_rubric("out/rubric.yaml").title
    Path("out/prompts/en/opening.txt").write_text("Mine.\n")
    assert "kept as edited in out/prompts: en/opening.txt" in imported(run, clone)
    assert Path("out/prompts/en/opening.txt").read_text() == "Mine.\n"


FAULTS = [
    ("data/personas.tsv", "Current Risk Level", "Risk", "personas.tsv: no column 'Current Risk Level'"),
    ("data/persona_prompt_template.txt", "{Age}", "{Years}", "persona_prompt_template.txt: {Years} is none of Name, Age"),
    ("data/persona_prompt_template.txt", "Ways:", "Ways} :", "persona_prompt_template.txt: Single '}' encountered"),
    ("data/rubric.tsv", "\r\n9\t", "\r\nnine\t", "rubric.tsv:13: Question ID: 'nine' is no whole number"),
    (
        "data/rubric.tsv",
        "\t5\r",
        "\t55\r",
        "rubric.tsv:2: GOTO: no question '55': write one of 4, 5, 6, 7, 8, 9, END, ASSIGN_END",
    ),
    ("data/rubric.tsv", "Yelow", "Purple", "rubric.tsv:9: Severity: 'Purple': write Red or Yellow"),
    ("data/rubric.tsv", "\t8\r", "\t4\r", "questions: a circle"),
    ("data/rubric.tsv", "Question ID\tDimension", "Number\tDimension", "no tree (a column 'Question ID'), no levels by column"),
    (
        "generate_conversations/conversation_simulator.py",
        "'You go first {now}'",
        "first",
        "not found in its scripts: opening.txt",
    ),
    ("generate_conversations/runner.py", "class", "class class", "runner.py: not readable as python"),
]


@pytest.mark.parametrize(("file", "old", "new", "error"), FAULTS, ids=[old for _, old, *_ in FAULTS])
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    run: Run, tmp_path: Path, file: str, old: str, new: str, error: str
) -> None:
    place = make_clone(tmp_path / "clone") / file
    text = place.read_bytes().decode()
    assert old in text
    place.write_bytes(text.replace(old, new).encode())
    result = run("import", "--source", f"vera_mh={tmp_path / 'clone'}", "--out", "out")
    assert result.exit_code != 0 and error in str(result.exception)
    assert not [*Path("out").glob("[!.]*")]


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [
        ("{criterion_name}: [", "{criterion_name.upper()}: [", "judge_joint_paper_system.j2"),
        ("{question_text}", "{question_text.upper()}", "judge_tree_paper.j2"),
    ],
)
def test_scripts_of_another_commit_leave_native_mode(run: Run, tmp_path: Path, old: str, new: str, lacking: str) -> None:
    clone = make_clone(tmp_path / "clone", flat="criterion" in old)
    judge = clone / "judge/llm_judge.py"
    judge.write_text(judge.read_text().replace(old, new))
    assert f"not found in its scripts: {lacking}: mode paper cannot be used with this commit" in " ".join(
        imported(run, clone).split()
    )
    assert Path("out/prompts/en/seeker_system.j2").exists() and not Path("out/prompts/en", lacking).exists()


@pytest.mark.parametrize(("goto", "answer"), [("END", "No"), ("ASSIGN_END", "No"), ("ASSIGN_END", "Yes")])
def test_an_answer_that_ends_rates_its_dimension_or_nothing(run: Run, tmp_path: Path, goto: str, answer: str) -> None:
    clone = make_clone(tmp_path / "clone")
    table = clone / "data/rubric.tsv"
    text = table.read_bytes().decode()
    old = "\tNo\tEND" if answer == "No" else "\tYes\t8\r\n\t\t\t\t\t\tNo\tEND"
    assert old in text
    table.write_bytes(text.replace(old, old.replace("END", goto) if answer == "No" else old.replace("8", goto, 1)).encode())
    imported(run, clone)
    rubric = load_rubric("out/rubric.yaml")
    end = (rubric.questions or {})["q6"].answers[answer]
    assert (end.goto, end.not_applicable, end.level) == ("END", answer == "No", "neutral" if answer == "Yes" else None)


def test_a_folder_that_is_no_clone_is_one_line(run: Run) -> None:
    Path("empty").mkdir()
    result = run("import", "--source", "vera_mh=empty", "--out", "out")
    assert "--source vera_mh=empty: no data/personas.tsv there" in str(result.exception)
