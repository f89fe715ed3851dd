"""Sheets: exact round trips, nothing that a spreadsheet would run, and two workers' sheets from export to the settled cards."""

import json
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Language, RoleCard
from core.tables import guarded, unguarded
from data_prep.__main__ import app
from data_prep.cards import load_taxonomy
from data_prep.cards.sheets import read_filled, read_sheet, write_csv, write_xlsx
from data_prep.commands.card_sheets import ANSWERS, SHEET, THIRD_SHEET, WORKERS_SHEET, export_marks
from tests import files_of_rows

LEAVES = list(load_taxonomy().leaves.items())
NASTY = [
    *("=1+1", "+49 30", "-5", "@here", "＝１", "\tx", "\n=x"),  # what a spreadsheet may take for a formula
    *("'", "'=1", "''=1", "'quoted'", "a,b;c", 'say "no"', "two\nlines", "", " kept "),
    *("a;=1", 'a;"=1', "a;''=1", "a; '-b", "\t=x", "'\t'=x", "- one\n- two\n'- three", "\n\n=x", " =x"),
    *("None", "007", "1e5", "#N/A", "_x0041_"),
]


@given(st.text(alphabet="=+-@＝'\t\r\n;\" a,"))
def test_the_guard_is_taken_off_any_text(text: str) -> None:
    assert unguarded(guarded(text)) == text
    assert not re.search(r"""(\A *|[;\t\n\r][ "]*)[-=+@＝]""", guarded(text))


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_cells_come_back_exactly(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"sheet{suffix}"
    rows = [{"id": f"r{n}", "text": text} for n, text in enumerate(NASTY)]
    if suffix == ".csv":
        write_csv(path, ("id", "text"), rows)
    else:
        write_xlsx(path, SHEET, ("id", "text"), rows)
    assert [row.cells for row in read_sheet(path, SHEET, ("id", "text"))] == rows


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    write_xlsx(tmp_path / "x.xlsx", SHEET, ("text",), [{"text": text} for text in NASTY])
    page = openpyxl.load_workbook(tmp_path / "x.xlsx")[SHEET]
    kinds = {cell.data_type for row in page.iter_rows() for cell in row if cell.value is not None}
    assert kinds == {"s"}


def test_a_cell_too_long_for_xlsx_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row 2: 32768 characters"):
        write_xlsx(tmp_path / "x.xlsx", SHEET, ("text",), [{"text": "x" * 32_768}])
    assert not (tmp_path / "x.xlsx").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected the columns id, text; found none"),
        (b"id,txt\na,b\n", r"s\.csv:1: expected the columns id, text; found id, txt"),
        (b"id\na\n", r"s\.csv:1: expected the columns id, text; found id"),
        (b"id,text,text\na,b,c\n", "found id, text, text"),
        (b"id,text\na\n", r"s\.csv:2: 1 cells, expected 2"),
        (b"id,text\na,b,c\n", r"s\.csv:2: 3 cells, expected 2"),
        (b'id,text\na,b\nc,"open\n', r"s\.csv:3: malformed CSV"),
    ],
)
def test_csv_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "s.csv").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_sheet(tmp_path / "s.csv", SHEET, ("id", "text"))


def test_xlsx_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "s.xlsx"
    path.write_bytes(b"id,text\n")
    with pytest.raises(UserError, match="not a readable XLSX file"):
        read_sheet(path, SHEET, ("id",))
    write_xlsx(path, "other", ("id",), [])
    with pytest.raises(UserError, match=r"no sheet named 'cards' \(it has 'other'\)"):
        read_sheet(path, SHEET, ("id",))


def test_an_xlsx_cell_that_cannot_be_read(tmp_path: Path) -> None:
    """openpyxl reads rows when they are asked for: a number of 5,000 digits is more than int() takes."""
    write_xlsx(tmp_path / "whole.xlsx", SHEET, ("id",), [{"id": "a"}])
    path = tmp_path / "s.xlsx"
    with zipfile.ZipFile(tmp_path / "whole.xlsx") as whole, zipfile.ZipFile(path, "w") as changed:
        for name in whole.namelist():
            content = whole.read(name)
            if name == "xl/worksheets/sheet1.xml":
                content = re.sub(rb'<c r="A2".*?</c>', b'<c r="A2"><v>' + b"9" * 5_000 + b"</v></c>", content)
            changed.writestr(name, content)
    with pytest.raises(UserError, match=r"s\.xlsx: not a readable XLSX file: ValueError"):
        read_sheet(path, SHEET, ("id",))


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_sheet_with_nothing_but_its_header_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"empty{suffix}"
    if suffix == ".csv":
        write_csv(path, WORKERS_SHEET.columns, [])
    else:
        write_xlsx(path, SHEET, WORKERS_SHEET.columns, [])
    with pytest.raises(UserError, match=rf"empty{suffix}: no card below the header"):
        read_filled(path, WORKERS_SHEET, {"c1": "My cat."}, "card", lambda key, row: key)


# --- role cards of two workers -----------------------------------------------------------------------------------------------


def card(number: int, language: Language, problem: str) -> RoleCard:
    return RoleCard(id=f"c{number}", language=language, problem=problem, source="own", card_method="written", gender="=woman")


CARDS = [
    card(1, "en", "Her shop burned down and the insurer does not pay."),
    card(2, "zh", "室友半夜打游戏，\n他睡不着，又不敢说。"),
    card(3, "en", "-\tHis band threw him out after he missed three rehearsals."),
    card(4, "zh", "父亲住院，她请不了假。"),
    card(5, "en", "Feels empty."),
    card(6, "en", "The new manager gives her shifts to a friend."),
]
Answers = dict[str, tuple[str, str]]
# c1 both high; c2 middle; c3 high against middle; c4 other categories; c5 invalid; c6 both questions
FIRST: Answers = {"c1": ("high", "1"), "c2": ("middle", "2"), "c3": ("high", "3"), "c4": ("middle", "4"), "c5": ("invalid", "")}
FIRST |= {"c6": ("middle", "6")}
SECOND: Answers = FIRST | {
    "c1": ("HIGH", "1"),
    "c3": ("middle", "3"),
    "c4": ("middle", "5"),
    "c5": ("high", "1"),
    "c6": ("high", "7"),
}
CHOSEN: Answers = {"c3": ("middle", ""), "c4": ("", "30"), "c6": ("high", "6")}


class Bench:
    """A folder with cards and exported sheets, and the commands on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cards = folder / "cards.jsonl"
        write_jsonl(self.cards, CARDS)
        assert self("export", "--out", folder / "sheets", "--seed", "1") == ""

    def __call__(self, verb: str, *arguments: object) -> str:
        """Run a verb; returns the error's text ("" if none)."""
        result = CliRunner().invoke(app, ["sheet", verb, "--cards", str(self.cards), *map(str, arguments)])
        if result.exception and not isinstance(result.exception, UserError):
            raise result.exception
        self.printed = " ".join(result.output.split())
        return str(result.exception or "")

    def settle(self, *more: object, out: str = "out") -> str:
        sheets = (self.folder / "first.csv", self.folder / "second.xlsx")
        return self("import", *sheets, "--out", self.folder / out, *more)

    def kept(self, out: str = "out") -> dict[str, tuple[Any, Any]]:
        """{id: (quality, number of its category)}"""
        found = read_jsonl(self.folder / out / "cards.jsonl", RoleCard, "cards", allow_empty=True)
        numbers = {path: number for number, (path, _) in enumerate(LEAVES)}
        return {c.id: (c.quality, numbers[c.category]) for c in found if c.category}  # type: ignore[index]


def fill_csv(
    source: Path,
    target: Path,
    answers: Answers,
    chinese: bool = False,
    keep: Sequence[str] | None = None,
    **other: Callable[[dict[str, str]], None],
) -> None:
    """Answer a CSV sheet as a person would: category numbers become names."""
    columns, rows = files_of_rows.read_sheet(source)
    for row in rows:
        if row["card_id"] in answers:
            row["quality"], number = answers[row["card_id"]]
            row["category"] = LEAVES[int(number)][1].label("zh" if chinese else "en") if number else ""
        if row["card_id"] in other:
            other[row["card_id"]](row)
    files_of_rows.write_sheet(target, columns, [row for row in rows if keep is None or row["card_id"] in keep])


def fill_xlsx(source: Path, target: Path, answers: Answers) -> None:
    book = openpyxl.load_workbook(source)
    page = book[SHEET]
    titles = [cell.value for cell in page[1]]
    for row in page.iter_rows(min_row=2):
        quality, number = answers[str(row[0].value)]
        row[titles.index("quality")].value = quality
        row[titles.index("category")].value = LEAVES[int(number)][1].zh if number else None
    book.save(target)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    fill_csv(tmp_path / "sheets" / "worker_1.csv", tmp_path / "first.csv", FIRST)
    fill_xlsx(tmp_path / "sheets" / "worker_2.xlsx", tmp_path / "second.xlsx", SECOND)
    return made


def test_exported_sheets(bench: Bench) -> None:
    sheets = bench.folder / "sheets"
    orders = []
    for worker in ("worker_1", "worker_2"):
        for suffix in (".csv", ".xlsx"):
            rows = read_sheet(sheets / f"{worker}{suffix}", SHEET, WORKERS_SHEET.columns)
            assert {r.cells["card_id"]: r.cells["problem"] for r in rows} == {c.id: c.problem for c in CARDS}
            assert all(r.cells["gender"] == "=woman" and not any(r.cells[name] for name in ANSWERS) for r in rows)
        orders.append([r.cells["card_id"] for r in rows])
        assert [r.cells["language"] for r in rows] == ["en"] * 4 + ["zh"] * 2
    assert orders[0] != orders[1]
    book = openpyxl.load_workbook(sheets / "worker_1.xlsx")
    rules = {str(rule.sqref): rule.formula1 for rule in book[SHEET].data_validations.dataValidation}
    assert rules == {"H2:H7": "rules!$A$2:$A$4", "I2:I5": "taxonomy!$C$2:$C$36", "I6:I7": "taxonomy!$F$2:$F$36"}
    assert [book["rules"].cell(n, 1).value for n in (2, 3, 4)] == ["high", "middle", "invalid"]
    for letter, names in (("C", [leaf.en for _, leaf in LEAVES]), ("F", [leaf.zh for _, leaf in LEAVES])):
        assert [book["taxonomy"][f"{letter}{n}"].value for n in range(2, 37)] == names
    guide = (sheets / "guide.txt").read_text()
    assert "35 categories" in guide and "37" in guide and all(leaf.zh in guide for _, leaf in LEAVES)


@pytest.mark.slow
def test_export_follows_the_seed(bench: Bench) -> None:
    def files(folder: str) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in (bench.folder / folder).iterdir() if p.name != "manifest.json"}

    bench("export", "--out", bench.folder / "again", "--seed", "1")
    bench("export", "--out", bench.folder / "other", "--seed", "2")
    assert files("again") == files("sheets")
    with zipfile.ZipFile(bench.folder / "again" / "worker_1.xlsx") as book:
        assert book.read("docProps/core.xml").count(b"2000-01-01T00:00:00Z") == 2, "not the time at which it was written"
    assert files("other")["worker_1.csv"] != files("sheets")["worker_1.csv"]


@pytest.mark.slow
def test_from_two_sheets_to_settled_cards(bench: Bench) -> None:
    assert bench.settle() == ""
    assert bench.kept() == {"c1": ("high", 1), "c2": ("middle", 2)}
    assert [c.id for c in read_jsonl(bench.folder / "out" / "dropped.jsonl", RoleCard, "cards")] == ["c5"]
    assert "settle: 6 in, 2 out" in bench.printed and "1 cards that both workers call high" in bench.printed
    third = read_sheet(bench.folder / "out" / "third.csv", SHEET, THIRD_SHEET.columns)
    assert {r.cells["card_id"]: r.cells["decide"] for r in third} == {"c3": "quality", "c4": "category", "c6": "both"}
    assert [r.cells for r in read_sheet(bench.folder / "out" / "third.xlsx", SHEET, THIRD_SHEET.columns)] == [
        r.cells for r in third
    ]
    qualities = {r.cells["card_id"]: (r.cells["first_quality"], r.cells["second_quality"]) for r in third}
    assert qualities == {"c3": ("high", "middle"), "c4": ("middle", "middle"), "c6": ("middle", "high")}
    [c4] = [r.cells for r in third if r.cells["card_id"] == "c4"]
    assert (c4["first_category"], c4["second_category"]) == (LEAVES[4][1].zh, LEAVES[5][1].zh)

    fill_csv(bench.folder / "out" / "third.csv", bench.folder / "third.csv", CHOSEN, chinese=True)
    assert bench.settle(bench.folder / "third.csv") == ""
    expected = {"c1": ("high", 1), "c2": ("middle", 2), "c3": ("middle", 3), "c4": ("middle", 30), "c6": ("high", 6)}
    assert bench.kept() == expected
    assert not (bench.folder / "out" / "third.csv").exists()  # nothing is left to decide
    manifest = json.loads((bench.folder / "out" / "manifest.json").read_text())
    figures = manifest["figures"]
    assert (figures["high"], figures["middle"], figures["both_say_high"]) == (2, 3, 1)
    assert figures["agreement"][0]["question"] == "quality"
    assert len(manifest["inputs"]) == 4

    assert bench.settle(bench.folder / "third.csv", "--mode", "paper", out="paper") == ""
    assert bench.kept("paper") == expected | {"c1": ("middle", 1)}


@pytest.mark.slow
def test_a_third_sheet_may_come_in_parts(bench: Bench) -> None:
    bench.settle()
    for name, ids in (("a.csv", ["c3"]), ("b.csv", ["c4", "c6"])):
        chosen = {card_id: CHOSEN[card_id] for card_id in ids}
        fill_csv(bench.folder / "out" / "third.csv", bench.folder / name, chosen, keep=ids)
    assert bench.settle(bench.folder / "a.csv") == ""
    assert "2 cards wait for a third person" in bench.printed
    assert set(bench.kept()) == {"c1", "c2", "c3"}
    assert bench.settle(bench.folder / "a.csv", bench.folder / "b.csv") == ""
    assert len(bench.kept()) == 5
    (bench.folder / "c.csv").write_bytes((bench.folder / "a.csv").read_bytes())
    assert "duplicate cards" in bench.settle(bench.folder / "a.csv", bench.folder / "c.csv")


@pytest.mark.slow
def test_what_the_third_person_says_unasked_changes_nothing_and_is_told(bench: Bench) -> None:
    bench.settle()
    more = CHOSEN | {"c3": ("middle", "9")}
    fill_csv(bench.folder / "out" / "third.csv", bench.folder / "third.csv", more)
    assert bench.settle(bench.folder / "third.csv") == ""
    assert bench.kept()["c3"] == ("middle", 3)
    assert "not asked for: the third person's answers on 1 cards (c3)" in bench.printed


@pytest.mark.slow
def test_answers_are_never_overwritten(bench: Bench) -> None:
    bench.settle()
    third = bench.folder / "out" / "third.csv"
    fill_csv(third, third, CHOSEN)
    before = third.read_bytes()
    assert "may hold answers and would be overwritten" in bench.settle()
    assert bench.settle(third) == ""
    assert third.read_bytes() == before
    fill_csv(bench.folder / "sheets" / "worker_1.csv", bench.folder / "sheets" / "worker_1.csv", FIRST)
    assert "worker_1.csv may hold answers" in bench("export", "--out", bench.folder / "sheets")


def change(column: str, value: str) -> Callable[[dict[str, str]], None]:
    return lambda row: row.update({column: value})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("card_id", "c33", r"first\.csv:\d, column card_id: unknown card 'c33': did you mean c"),
        ("card_id", "c1", r"first\.csv:\d, column card_id: card c1 occurs twice"),
        ("card_id", "", "column card_id: empty"),
        ("quality", "", r"first\.csv:\d, column quality: empty"),
        ("quality", "middel", "column quality: unknown word 'middel': did you mean middle"),
        ("category", "", r"first\.csv:\d, column category: empty"),
        ("category", "Body shape anxeity", "unknown category 'Body shape anxeity': did you mean Body shape anxiety"),
        ("category", "Family and Life", "unknown category 'Family and Life'"),  # level 1 is not enough
        ("problem", "Something else.", "column problem: not the problem of card c3"),
    ],
)
def test_cells_that_are_wrong_are_errors_with_their_place(bench: Bench, column: str, value: str, message: str) -> None:
    fill_csv(bench.folder / "sheets" / "worker_1.csv", bench.folder / "first.csv", FIRST, c3=change(column, value))
    with pytest.raises(UserError, match=message):
        raise UserError(bench.settle())
    assert not (bench.folder / "out").exists()


def test_a_card_without_a_row_is_an_error(bench: Bench) -> None:
    lines = (bench.folder / "first.csv").read_text().splitlines(keepends=True)
    gone = next(line for line in lines if line.startswith("c6"))
    (bench.folder / "first.csv").write_text("".join(line for line in lines if line != gone))
    assert "no row for 1 of 6 cards, the first c6" in bench.settle()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("quality", "", "empty, but asked for"), ("quality", "invalid", "decides between high and middle")],
)
def test_third_sheets_that_are_wrong(bench: Bench, column: str, value: str, message: str) -> None:
    bench.settle()
    fill_csv(bench.folder / "out" / "third.csv", bench.folder / "third.csv", CHOSEN, c3=change(column, value))
    error = bench.settle(bench.folder / "third.csv")
    assert message in error and "third.csv:" in error and "column quality" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["first.csv"], "1 sheets of workers are given"),
        (["first.csv", "first.csv"], "the same file is given twice"),
        (["first.csv", "second.xlsx", "--mode", "papr"], "unknown mode 'papr': did you mean paper"),
    ],
)
def test_options_that_do_not_fit(bench: Bench, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(bench.folder)
    assert message in bench("import", "--out", "out", *arguments)


def test_the_problem_may_hold_what_xlsx_cannot(tmp_path: Path) -> None:
    odd = [card(1, "en", "bell\x07 and\r\nreturn\rs")]
    export_marks(odd, [], tmp_path, 0)
    for suffix in (".csv", ".xlsx"):
        assert len(read_sheet(tmp_path / f"worker_1{suffix}", SHEET, WORKERS_SHEET.columns)) == 1
