"""`language`: the texts of a language are laid out, checked, and taken from the folder by what asks for them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from core.errors import UserError
from core.files import CONFIGS, write_text
from core.prompts import load_pack, seeker_system
from core.records import RoleCard
from core.rubrics import load_rubric
from data_prep.__main__ import app

FRENCH = Path("languages/fr")
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("data_prep.commands.language.console", Console(width=4000))
    return lambda *arguments: CliRunner().invoke(app, ["language", *arguments])


def row(printed: str, file: str) -> list[str]:
    """The cells of a file's row."""
    (line,) = (line for line in printed.splitlines() if file in line)
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_a_new_language_is_laid_out_in_english_and_keeps_what_is_there(run: Run) -> None:
    write_text(FRENCH / "prompts/esc_eval/greeting.txt", "Bonjour.")
    assert run("new", "fr").exit_code == 0
    assert (FRENCH / "prompts/esc_eval/greeting.txt").read_text() == "Bonjour."
    assert "Write in French, and only" in (FRENCH / "prompts/esc_eval/seeker_system.j2").read_text()
    english = {path.name for path in (CONFIGS / "prompts" / "esc_eval" / "en").iterdir() if "paper" not in path.name}
    assert {path.name for path in (FRENCH / "prompts/esc_eval").iterdir()} == english
    printed = run("check", "fr").stdout
    assert row(printed, "words.yaml")[2] == "" and row(printed, "greeting.txt") == [
        "prompts/esc_eval/greeting.txt",
        "1",
        "",
        "",
    ]
    assert row(printed, "rubrics/esc_eval.yaml")[1:] == ["49", "", "all"]
    assert "French (French): not reviewed by a native clinician." in printed


def test_what_is_translated_is_asked_and_the_rest_is_listed(run: Run) -> None:
    write_text(FRENCH / "words.yaml", "own_name: français\nreviewed: read by Dr Lam\n")
    write_text(FRENCH / "rubrics/esc_eval.yaml", "empathy: {label: Empathie, levels: {0: Blesse.}}\n")
    write_text(FRENCH / "prompts/esc_eval/seeker_system.j2", "Jouez {{ card.problem }}, {{ card.age }}, {{ paper }}.")
    printed = run("check", "fr", "--rubric", "esc_eval").stdout
    assert "French (français): read by Dr Lam." in printed and row(printed, "greeting.txt")[2:] == ["all", ""]
    missing = row(printed, "rubrics/esc_eval.yaml")[2]
    assert "fluency.label" in missing and "empathy.label" not in missing and "empathy.about" in missing
    card = RoleCard(id="c", language="fr", problem="P", source="own", card_method="written")
    assert seeker_system(load_pack("esc_eval"), card) == "Jouez P, , False."
    rubric = load_rubric("esc_eval")
    assert (rubric.label("empathy", "fr"), rubric.label("skill", "fr")) == ("Empathie", "Skill")
    assert rubric.about("empathy", "fr") == rubric.about("empathy", "en") and rubric.texts("empathy", "fr")[0] == "Blesse."


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("words.yaml", "seekr: x", r"words\.yaml: seekr: unknown: did you mean seeker"),
        ("rubrics/esc_eval.yaml", "empathy: {name: x}", r"esc_eval\.yaml: empathy\.name: unknown: did you mean"),
        ("prompts/esc_eval/judge_joint.j2", "{{ low }", r"judge_joint\.j2: line 1: unexpected '}'"),
        ("prompts/esc_eval/_transcript.j2", "x", r"_transcript\.j2: \[BEGIN TRANSCRIPT\] is missing: keep it as in English"),
        ("prompts/esc_eval/judge_joint.j2", "x", r'judge_joint\.j2: {% include "_transcript\.j2" %} is missing'),
        ("floors.yaml", "silent: [", r"floors\.yaml:\d: malformed YAML"),
    ],
)
def test_files_that_a_run_could_not_use_are_refused(run: Run, file: str, content: str, fault: str) -> None:
    write_text(FRENCH / file, content)
    error = run("check", "fr").exception
    assert isinstance(error, UserError) and re.search(fault, str(error)), error


def test_all_faults_are_told_together_and_other_words_are_refused(run: Run) -> None:
    write_text(FRENCH / "words.yaml", "seekr: x\nhumour: y\n")
    write_text(FRENCH / "floors.yaml", "loud: x\n")
    assert len(str(run("check", "fr").exception).split("; ")) == 3
    assert "languages/it here" in str(run("check", "it").exception) and "language new it" in str(run("check", "it").exception)
    assert "CODE french: " in str(run("new", "french").exception) and "unknown action 'old'" in str(run("old", "fr").exception)
    assert not Path("languages/it").exists()


def test_a_rubric_of_the_wrong_form_is_one_error_in_a_run(run: Run) -> None:
    write_text(FRENCH / "rubrics/esc_eval.yaml", "empathy: Empathie\n")
    with pytest.raises(UserError, match=r"languages/fr/rubrics/esc_eval\.yaml: empathy: "):
        load_rubric("esc_eval").texts("empathy", "fr")
