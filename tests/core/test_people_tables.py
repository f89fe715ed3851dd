"""Tables as people's programs save them are read as they were meant, in every reader; faults are told at once."""

import re
import zipfile
from datetime import datetime
from pathlib import Path

import openpyxl
import pytest

from core.errors import UserError
from core.people_tables import TOLD
from data_prep.cards import load_cards
from data_prep.cards.sheets import SheetLayout, read_filled
from data_prep.dialogue_files import read_given
from data_prep.scores.held import read_held
from data_prep.scores.human import COLUMNS, read_comparisons, read_scores
from evalsuite.statistics.discrimination import read_ratings

ROWS = [["d1", "zh", "安娜", "feel", "safety", "1,5", ""], ["d2", "zh", "安娜", "feel", "safety", "３", ""]]
WRITTEN = [("d1", "安娜", 1.5), ("d2", "安娜", 3.0)]


def text(rows: list[list[str]], parted: str = ";") -> str:
    return "\r\n".join(parted.join(row) for row in [list(COLUMNS), *rows]) + "\r\n"


def found(path: Path) -> list[tuple[str, str, float]]:
    return [(score.dialogue_id, score.annotator, score.value) for score in read_scores(path)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("parted", [";", "\t"])
def test_scores_as_spreadsheets_of_any_country_save_them(encoding: str, parted: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes(text(ROWS, parted).encode(encoding))
    assert found(tmp_path / "s.csv") == WRITTEN


@pytest.mark.parametrize("above", [[], ["", ";;"], ["sep=;"]])
def test_the_index_of_pandas_and_empty_columns_and_rows_are_no_data(above: list[str], tmp_path: Path) -> None:
    rows = [["", *COLUMNS, "", ""], *([str(n), *row, "", ""] for n, row in enumerate(ROWS)), [""] * 10, []]
    (tmp_path / "s.csv").write_text("\n".join([*above, *(";".join(row) for row in rows)]))
    assert found(tmp_path / "s.csv") == WRITTEN


def test_the_first_sheet_of_a_workbook_that_is_not_hidden_is_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = openpyxl.Workbook()
    book.active.sheet_state = "hidden"
    scores, notes = book.create_sheet("scores"), book.create_sheet("notes")
    for line in ([], COLUMNS, *([*row[:5], value] for row, value in zip(ROWS, (1.5, "３"), strict=True))):
        scores.append(line)
    notes.append(["not read"])
    book.save(tmp_path / "s.xlsx")
    assert found(tmp_path / "s.xlsx") == WRITTEN
    assert capsys.readouterr().err.endswith("s.xlsx: the sheet 'scores' is read, the first of 2\n")


@pytest.mark.parametrize("suffix", ["xls", "ods", "numbers"])
def test_other_spreadsheets_are_to_be_saved_in_a_form_that_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"cards.{suffix}"
    path.write_bytes(b"\xd0\xcf\x11\xe0")
    for read in (load_cards, read_given):
        with pytest.raises(UserError, match=f"^{path}: .{suffix} cannot be read: save it as XLSX, or as CSV in UTF-8$"):
            read(path)


def test_a_formula_counts_as_its_result_and_without_one_is_refused(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for line in (COLUMNS, [*ROWS[0][:5], "=1+0.5"], [*ROWS[1][:5], "３"]):
        book.active.append(line)
    book.save(tmp_path / "s.xlsx")
    with pytest.raises(UserError, match=r"s\.xlsx: formulas without a stored result: .* save it \(F2\)"):
        read_scores(tmp_path / "s.xlsx")
    with zipfile.ZipFile(tmp_path / "s.xlsx") as old, zipfile.ZipFile(tmp_path / "saved.xlsx", "w") as new:
        for part in old.namelist():
            new.writestr(part, re.sub(rb"<v ?/>|<v></v>", b"<v>1.5</v>", old.read(part)))
    assert found(tmp_path / "saved.xlsx") == WRITTEN


def test_a_title_above_the_headings_is_one_fault(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(f"Scores of May 2026;;;;;;\n{text(ROWS)}")
    with pytest.raises(UserError, match=r"s\.csv:1: 1 columns \(Scores.*first row must hold the headings[^\n]*$"):
        read_scores(tmp_path / "s.csv")


def test_a_text_in_another_encoding_is_a_question_that_shows_it(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes(text(ROWS).encode("gb18030"))
    with pytest.raises(UserError, match="not UTF-8 .*; is it, as gb18030 'd1;zh;安娜;.* ESC_EVAL_ENCODING=gb18030"):
        read_scores(tmp_path / "s.csv")
    (tmp_path / "s.csv").write_bytes(b"d1;en;a long text in front of it;ren\xe9;feel\n")
    with pytest.raises(UserError, match="or as cp1252 '.*rené;"):
        read_scores(tmp_path / "s.csv")


@pytest.mark.parametrize("cell", ["1,5", "0.0", "2.50", ".5", "３", "１．５", " 2 "])
def test_numbers_as_people_type_them(cell: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(text([[*ROWS[0][:5], cell, ""]]))
    wanted = {"1,5": 1.5, "0.0": 0, "2.50": 2.5, ".5": 0.5, "３": 3, "１．５": 1.5, " 2 ": 2}
    assert [score.value for score in read_scores(tmp_path / "s.csv")] == [wanted[cell]]


def test_every_wrong_cell_is_told_up_to_twenty_at_once(tmp_path: Path) -> None:
    wrong = [[f"d{n}", "zh", "a", "feel", "safety", f"x{n}", ""] for n in range(TOLD + 3)]
    (tmp_path / "s.csv").write_text(text(wrong))
    with pytest.raises(UserError) as caught:
        read_scores(tmp_path / "s.csv")
    *lines, last = str(caught.value).split("\n")
    assert len(lines) == TOLD and last == "(and 3 more)"
    assert all(f"s.csv:{n + 2}: value: " in line and f"'x{n}'" in line for n, line in enumerate(lines))


LAYOUT = SheetLayout("s", ("id", "text", "note"), ("note",), "id", "text")


@pytest.mark.parametrize("cell", [datetime(2024, 1, 2), "2-Jan", True, "1. Mär", "1/2/2026", "01.02.26", "WAHR"])
def test_what_a_spreadsheet_made_of_a_text_is_told_as_that(cell: object, tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.title = "s"
    book.active.append(list(LAYOUT.columns))
    book.active.append(["c1", cell, "x"])
    book.save(tmp_path / "s.xlsx")
    with pytest.raises(UserError, match=r"row 2, column text: .* where the sheet has '1-2': your spreadsheet changed it"):
        read_filled(tmp_path / "s.xlsx", LAYOUT, {"c1": "1-2"}, "card", lambda key, row: key)


def test_null_in_an_optional_field_of_json_lines_is_absence(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"item": "i", "a": "x", "b": "y", "annotator": "anna", "verdict": "a"}\n')
    expected = read_comparisons([tmp_path / "c.jsonl"])
    nulls = ", ".join(f'"{name}": null' for name in ("question", "degree", "order"))
    (tmp_path / "c.jsonl").write_text(f'{{"item": "i", "a": "x", "b": "y", "annotator": "anna", "verdict": "a", {nulls}}}\n')
    assert read_comparisons([tmp_path / "c.jsonl"]) == expected


def test_held_dialogues_choices_and_ratings_go_through_the_same_reader(tmp_path: Path) -> None:
    held = "situation;supporter;language;role;text\ns1;alpha;en;seeker;hi\ns1;alpha;en;supporter;well\n"
    (tmp_path / "h.csv").write_bytes(held.encode("utf-16"))
    (tmp_path / "c.csv").write_bytes("item;a;b;annotator;degree\ni;x;y;anna;-1,5\n".encode("utf-16"))
    (tmp_path / "r.csv").write_bytes("user;model;score\nu;m;2,5\n".encode("utf-16"))
    assert len(read_held([tmp_path / "h.csv"])) == 1
    assert read_comparisons([tmp_path / "c.csv"])[0].degree == -1.5
    assert read_ratings(tmp_path / "r.csv")[0].tolist() == [[2.5]]
