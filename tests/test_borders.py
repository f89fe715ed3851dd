"""What is printed or written for people passes one border: nothing in a name, a comment or an error steers their programs."""

import ast
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest
from rich.text import Text

from core.errors import UserError, clean, run_cli, say
from core.page import environment
from core.tables import Screen, Table, escape_markdown, guarded, to_console, to_csv, to_markdown
from data_prep.cards.sheets import SheetLayout, read_filled, write_csv, write_xlsx
from evalsuite.commands.output import print_json

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("core", "serve", "data_prep", "train", "evalsuite")
# What prints, or writes a table, where: beside the border a start that has imported nothing yet, a guard of servers that stands
# alone, and JSON for programs.
WRITERS = {
    "print": {"core/errors.py", "core/starting.py"},
    "typer.echo": set(),
    "Console": set(),
    "rich.print": set(),
    "csv.writer": {"core/tables.py", "data_prep/cards/sheets.py"},
    "csv.DictWriter": set(),
    "Workbook": {"data_prep/cards/sheets.py"},
    "sys.stdout.write": {"evalsuite/commands/output.py"},
    "sys.stdout.buffer.write": {"evalsuite/commands/output.py"},
    "sys.stderr.write": set(),
}
HOSTILE = [
    chr(code) for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
]
NAME = f"an\x1b[31mna{''.join(HOSTILE)}\x1b]0;title\x07"
TABLE = Table("t", NAME, ("judge", NAME), ((NAME, 1.0), ("b", 2.0)), (NAME,))


def raw(text: str) -> list[str]:
    return [repr(sign) for sign in HOSTILE if sign in text]


@pytest.mark.slow
def test_nothing_else_prints_or_writes_tables_and_warnings_are_clean() -> None:
    found: dict[str, set[str]] = {name: set() for name in WRITERS}
    for file in (file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in found:
                found[name].add(file.relative_to(ROOT).as_posix())
            elif isinstance(node, ast.Call) and name == "warnings.warn":
                assert ast.unparse(node.args[0]).startswith("clean("), f"{file}:{node.lineno}"
    assert found == WRITERS, "print with core.errors.say or core.tables.Screen, write tables with core.tables or cards.sheets"


def printed(show: Callable[[Screen], None]) -> str:
    buffer = io.StringIO()
    show(Screen(file=buffer, force_terminal=True, color_system=None, width=200))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "show",
    [
        lambda screen: screen.print(NAME, soft_wrap=True),
        lambda screen: screen.print(Text(NAME)),
        lambda screen: screen.print(Text.assemble((NAME, "bold"))),
        lambda screen: to_console(TABLE, screen),
        lambda screen: screen.rule(NAME),
        lambda screen: screen.log(NAME),
    ],
)
def test_a_console_shows_and_does_nothing(show: Callable[[Screen], None]) -> None:
    text = printed(show)
    assert not raw(text) and "an\ufffd[31mna" in text


def test_lines_errors_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise UserError(f"{NAME}: wrong")

    say(NAME)
    say(NAME, err=True)
    with pytest.raises(SystemExit):
        run_cli(fail)
    print_json({NAME: [NAME]})
    out, err = capsys.readouterr()
    assert not raw(out) and not raw(err)
    assert json.loads(out.partition("\n")[2]) == {NAME: [NAME]}


def test_tables_as_files(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": NAME}, {"id": "b", "text": f"={NAME}"}]
    write_csv(tmp_path / "s.csv", ("id", "text"), rows)
    write_xlsx(tmp_path / "s.xlsx", "s", ("id", "text"), rows)
    cells = [str(cell.value) for row in openpyxl.load_workbook(tmp_path / "s.xlsx")["s"] for cell in row]
    for text in (to_csv(TABLE), to_markdown(TABLE), escape_markdown(NAME), (tmp_path / "s.csv").read_text(), *cells):
        assert not raw(text)
    assert list(csv.reader(io.StringIO((tmp_path / "s.csv").read_text())))[2][1].startswith("'=an")
    assert guarded("=1") == "'=1"


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_sheet_of_what_is_not_shown_comes_back(suffix: str, tmp_path: Path) -> None:
    known = {"a": f"{NAME}\r\nand more\ufffe"}
    rows = [{"id": "a", "text": known["a"], "note": "x"}]
    path = tmp_path / f"s{suffix}"
    if suffix == ".csv":
        write_csv(path, ("id", "text", "note"), rows)
    else:
        write_xlsx(path, "s", ("id", "text", "note"), rows)
    layout = SheetLayout("s", ("id", "text", "note"), ("note",), "id", "text")
    assert read_filled(path, layout, known, "card", lambda _, row: row.cells["note"]) == {"a": "x"}


def test_pages() -> None:
    assert not raw(environment(Path()).from_string("{{ name }}").render(name=NAME))


@pytest.mark.parametrize("text", ["a\tb\nc", "سلام\u200cدنیا", "👩\u200d🎓", "\u200eא\u200f", "zero\u200bwidth"])
def test_what_is_text_stays(text: str) -> None:
    assert clean(text) == text
