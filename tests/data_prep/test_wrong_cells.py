"""Whoever mends a table is told of every wrong cell at once, in every kind of table, and of a long cell its beginning alone."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.ledger import BuildStep
from core.people_tables import TOLD
from core.records import RoleCard
from data_prep.cards.sheets import write_csv
from data_prep.commands import card_sheets, sheet
from data_prep.scores import annotation
from data_prep.scores.annotation import read_weights
from data_prep.scores.held import read_held
from data_prep.scores.human import COLUMNS, read_comparisons, read_scores
from evalsuite.commands.agree import read_judgements
from evalsuite.statistics.discrimination import read_ratings
from tests.data_prep.test_dialogue_annotation import RUBRIC, dialogue
from tests.files_of_rows import read_sheet, write_sheet

N = 12  # rows of each table
CARDS = [
    RoleCard(id=f"c{n}", language="en", problem=f"My cat {n}.", source="s", source_id=str(n), card_method="written")
    for n in range(N)
]
THIRD = card_sheets.THIRD_SHEET
TALKS = [dialogue(n) for n in range(N)]
ASKED: dict[str, tuple[str, ...]] = {talk.id: ("empathy",) for talk in TALKS}
Write = Callable[[Path], Any]
Read = Callable[[Path], Any]


def table(name: str, columns: str, row: str) -> Write:
    lines = [columns, *(row.replace("#", str(n)) for n in range(N))]
    return lambda folder: (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


# Name of the file → how it is written, how it is read, and the columns that people fill in.
KINDS: dict[str, tuple[Write, Read, list[str]]] = {
    "worker_1": (
        lambda folder: card_sheets.export_marks(CARDS, [], folder, 0),
        lambda path: card_sheets.read_marks(path, card_sheets.WORKERS_SHEET, {card.id: card for card in CARDS}),
        ["quality", "category"],
    ),
    "third": (
        lambda folder: write_csv(
            folder / "third.csv", THIRD.columns, [{"card_id": card.id, "problem": card.problem} for card in CARDS]
        ),
        lambda path: card_sheets.read_marks(
            path, THIRD, {card.id: card for card in CARDS}, {card.id: ("quality", "category") for card in CARDS}
        ),
        ["quality", "category"],
    ),
    "keep": (
        lambda folder: sheet.export_keep_cards(CARDS, [], folder, 0),
        lambda path: sheet.read_keep([path], sheet.CARD_SHEET, {card.id: card.problem for card in CARDS}),
        ["keep"],
    ),
    "scores": (
        lambda folder: annotation.ScoreSheets(TALKS[:2], RUBRIC).write(folder, "scores", TALKS[:2]),
        lambda path: annotation.ScoreSheets(TALKS[:2], RUBRIC).read_scores(path, BuildStep("s")),
        ["score"],
    ),
    "review": (
        lambda folder: annotation.ScoreSheets(TALKS, RUBRIC).write_review(folder, ASKED, []),
        lambda path: annotation.ScoreSheets(TALKS, RUBRIC).read_review(path, ASKED, BuildStep("s")),
        ["score"],
    ),
    "gold": (table("gold", ",".join(COLUMNS[:6]), "d#,en,anna,feel,safety,2"), read_scores, ["language", "value"]),
    "choices": (
        table("choices", "item,a,b,annotator,verdict", "i#,x,y,anna,a"),
        lambda path: read_comparisons([path]),
        ["verdict"],
    ),
    "weights": (
        table("weights", "dialogue_id,chance,weight", "d#,0.5,2"),
        lambda path: read_weights([path]),
        ["chance", "weight"],
    ),
    "users": (table("users", "user,model,score", "u#,m,2"), read_ratings, ["score"]),
    "verdicts": (
        table("verdicts", "dialogue_id,language,judge,rubric,dimension,value", "d#,en,j,feel,safety,2"),
        read_judgements,
        ["value"],
    ),
    "utterances": (
        table("utterances", "situation,supporter,language,role,text", "s#,m,en,seeker,hi\ns#,m,en,supporter,ho"),
        lambda path: read_held([path]),
        ["role"],
    ),
}


def spoilt(kind: str, folder: Path, cell: str) -> tuple[Read, Path, int]:
    """A table whose every answer is `cell`: how it is read, where it is, and how many cells are wrong."""
    write, read, columns = KINDS[kind]
    write(folder)
    path = folder / f"{kind}.csv"
    header, rows = read_sheet(path)
    asked = [row for row in rows if " turn " not in row.get("row", "")]
    for row in asked:
        row.update(dict.fromkeys(columns, cell))
    write_sheet(path, header, rows)
    return read, path, len(asked) * len(columns)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_cell_is_named_up_to_twenty_at_once(kind: str, tmp_path: Path) -> None:
    read, path, wrong = spoilt(kind, tmp_path, "2-Jan")
    with pytest.raises(UserError) as caught:
        read(path)
    lines = str(caught.value).split("\n")
    told = "('2-Jan'.*: your spreadsheet changed it)"
    assert len([line for line in lines if path.name in line and re.search(told, line)]) == min(TOLD, wrong)
    assert lines[TOLD:] == ([f"(and {wrong - TOLD} more)"] if wrong > TOLD else [])


@pytest.mark.parametrize("kind", ["gold", "choices", "weights", "users", "verdicts", "utterances"])
def test_headings_may_be_in_any_case_and_an_unknown_one_is_one_fault(kind: str, tmp_path: Path) -> None:
    write, read, _ = KINDS[kind]
    write(tmp_path)
    path = tmp_path / f"{kind}.csv"
    header, *rows = path.read_text().splitlines()
    expected = repr(read(path))
    path.write_text("\n".join([header.title().replace("_", " "), *rows]))
    assert repr(read(path)) == expected
    if kind not in ("weights", "users"):  # of which further columns are ignored
        path.write_text("\n".join([f"{header},Notes", *(f"{row},x" for row in rows)]))
        with pytest.raises(UserError, match=rf"^{path}:1: unknown column Notes: leave it out, or use one of [^\n]*$"):
            read(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_cell_is_cut_in_the_error(kind: str, tmp_path: Path) -> None:
    read, path, _ = spoilt(kind, tmp_path, "Q" * 5000)
    with pytest.raises(UserError) as caught:
        read(path)
    assert "q" * 30 in str(caught.value).lower() and "q" * 201 not in str(caught.value).lower()
    write_sheet(path, ["Q" * 5000], [{"Q" * 5000: "x"} for _ in range(2)])
    with pytest.raises(UserError) as caught:
        read(path)
    assert "Q" * 201 not in str(caught.value)
