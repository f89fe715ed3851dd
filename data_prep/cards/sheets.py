"""Sheets for people, as CSV and XLSX: written so that a spreadsheet executes nothing in them, and read back exactly.

A cell that a spreadsheet could take for a formula is text in XLSX; in CSV it is guarded by an apostrophe (`tables.guarded`),
which reading removes. Equal rows give equal bytes.
"""

import csv
import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from core.errors import UserError, clean, near, need_modules
from core.files import sha256_file, write_bytes
from core.ledger import Build
from core.people_tables import Faults, changed_cell, shortened, table_lines
from core.tables import FORMULA_STARTS, guarded

T = TypeVar("T")
_LONGEST = 32_767  # characters in a cell of XLSX
_CLOCK = re.compile(rb"(<dcterms:(?:created|modified)[^>]*>)[^<]*")


@dataclass(frozen=True)
class SheetRow:
    """One row and its place: `file:line` in CSV (the line that it begins on), `file: row n` in XLSX. `faults` collects the
    problems of its file, for rows with several wrong cells."""

    where: str
    cells: dict[str, str]
    faults: Faults

    def fault(self, column: str, problem: str) -> UserError:
        """The error to raise about one cell."""
        return UserError(f"{self.where}, column {column}: {problem}{changed_cell(self.cells[column])}")


@dataclass(frozen=True)
class SheetChoice:
    """Rows `first` to `last` (from 0, below the header) of `column` take a value in the range `cells` (`sheet!$A$1:$A$9`)."""

    column: str
    first: int
    last: int
    cells: str


@dataclass(frozen=True)
class SheetLayout:
    """A kind of sheet that people fill in. `sheet` is its name in XLSX, `answers` the columns to fill in, `key` the column with
    the row's id, and `text` the one that shows what the row is about: if it comes back changed, the sheet is another one."""

    sheet: str
    columns: tuple[str, ...]
    answers: tuple[str, ...]
    key: str
    text: str


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Comma-separated UTF-8 with a byte-order mark (Excel reads Chinese only with one) and CRLF line ends."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([guarded(_plain(row.get(column, ""))) for column in columns] for row in rows)
    write_bytes(path, text.getvalue().encode("utf-8-sig"))


def write_xlsx(
    path: Path,
    sheet: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    choices: Sequence[SheetChoice] = (),
    extra: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> None:
    """A workbook whose first sheet holds the rows (every cell text, with the drop-down lists `choices`); `extra` are further
    sheets of text. Raises `UserError` for a cell that is too long for XLSX."""
    need_modules("openpyxl", purpose="XLSX sheets")
    from openpyxl import Workbook
    from openpyxl.styles import Alignment, Font
    from openpyxl.worksheet.datavalidation import DataValidation

    book: Any = Workbook()
    book.active.title = sheet
    tables = {sheet: [list(columns), *([row.get(column, "") for column in columns] for row in rows)]} | dict(extra or {})
    for name, lines in tables.items():
        page = book[name] if name == sheet else book.create_sheet(name)
        for number, line in enumerate(lines, start=1):
            for position, text in enumerate(line, start=1):
                if len(text) > _LONGEST:
                    raise UserError(f"{path}: {name}, row {number}: {len(text)} characters; a cell of XLSX holds {_LONGEST}")
                if text:
                    cell = page.cell(number, position, _plain(text))
                    cell.data_type = "s"  # openpyxl takes "=…" for a formula, and "#N/A" for an error
                    cell.quotePrefix = text.startswith(FORMULA_STARTS)  # so that it stays text when somebody edits the cell
                    cell.number_format = "@"
                    cell.alignment = Alignment(wrap_text=True, vertical="top")
        for position in range(1, len(lines[0]) + 1):
            page.cell(1, position).font = Font(bold=True)
            longest = max(len(line[position - 1]) for line in lines if len(line) >= position)
            page.column_dimensions[page.cell(1, position).column_letter].width = max(12, min(60, longest + 4))
        page.freeze_panes = "A2"
    page = book[sheet]
    for choice in choices:
        letter = page.cell(1, columns.index(choice.column) + 1).column_letter
        rule = DataValidation(type="list", formula1=choice.cells, allow_blank=True, showErrorMessage=True)
        rule.add(f"{letter}{choice.first + 2}:{letter}{choice.last + 2}")
        page.add_data_validation(rule)
    packed, result = io.BytesIO(), io.BytesIO()
    book.save(packed)
    # Without the time of writing, so that equal sheets are equal files.
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "docProps/core.xml":
                content = _CLOCK.sub(rb"\g<1>2000-01-01T00:00:00Z", content)
            new.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    write_bytes(path, result.getvalue())


def write_both(
    folder: Path,
    name: str,
    layout: SheetLayout,
    rows: Sequence[Mapping[str, str]],
    choices: Sequence[SheetChoice],
    extra: Mapping[str, Sequence[Sequence[str]]],
) -> list[str]:
    """A sheet to be filled in, as NAME.csv and NAME.xlsx; returns the two names."""
    write_csv(folder / f"{name}.csv", layout.columns, rows)
    write_xlsx(folder / f"{name}.xlsx", layout.sheet, layout.columns, rows, choices, extra)
    return [f"{name}.csv", f"{name}.xlsx"]


def read_sheet(
    path: Path, sheet: str, columns: Sequence[str], each: Callable[[SheetRow], None] = lambda _: None
) -> list[SheetRow]:
    """The rows of a returned sheet (see `core.people_tables`), each passed to `each`. Exactly these columns must be there, in
    any order. Raises `UserError` with file, line (or row) and column for everything that is wrong or that `each` refuses."""
    lines = table_lines(path, sheet)
    where, header = lines[0] if lines else (str(path), [])
    if sorted(header) != sorted(columns):
        raise UserError(f"{where}: expected the columns {', '.join(columns)}; found {shortened(', '.join(header)) or 'none'}")
    rows: list[SheetRow] = []
    with Faults() as faults:
        for where, cells in lines[1:]:
            with faults.noting():
                if len(cells) != len(header):
                    raise UserError(f"{where}: {len(cells)} cells, expected {len(header)}")
                rows.append(SheetRow(where, dict(zip(header, cells, strict=True)), faults))
                each(rows[-1])
    return rows


def columns_of(path: Path, sheet: str | None = None) -> frozenset[str]:
    """The columns of a table, by which forms of sheets are distinguished; empty for an empty file."""
    return frozenset(name for _, header in table_lines(path, sheet)[:1] for name in header)


def read_filled(
    path: Path, layout: SheetLayout, texts: Mapping[str, str], what: str, answer: Callable[[str, SheetRow], T]
) -> dict[str, T]:
    """{id: `answer(id, row)`} of a returned sheet, which was written with the `texts` by id. Raises `UserError` as `read_sheet`
    and `answer` do, for a sheet without rows, and for an id that is empty, unknown or doubled, or whose text has changed."""
    filled: dict[str, T] = {}
    places: dict[str, str] = {}

    def each(row: SheetRow) -> None:
        key = row.cells[layout.key]
        key = key if key in texts else key.strip()  # an id may begin or end with white space
        if not key:
            raise row.fault(layout.key, "empty")
        if key not in texts:
            raise row.fault(layout.key, f"unknown {what} {shortened(key)!r}: {near(key, texts)}")
        if places.setdefault(key, row.where) != row.where:
            raise row.fault(layout.key, f"{what} {key} occurs twice (first at {places[key]})")
        if _bare(row.cells[layout.text]) != _bare(texts[key]):
            if changed := changed_cell(row.cells[layout.text], texts[key]):
                raise UserError(f"{row.where}, column {layout.text}:{changed}")
            problem = f"not the {layout.text} of {what} {key}: the sheet is of other {what}s, or the text was edited"
            raise row.fault(layout.text, problem)
        filled[key] = answer(key, row)

    read_sheet(path, layout.sheet, layout.columns, each)
    if not filled:
        raise UserError(f"{path}: no {what} below the header")
    return filled


def _plain(text: str) -> str:
    return clean(text.replace("\r\n", "\n").replace("\r", "\n"))


def _bare(text: str) -> str:
    """A text without the white space and control characters that spreadsheets change."""
    return re.sub(r"[\s\ufffd]", "", _plain(text))


def refuse_to_overwrite(build: Build, names: Sequence[str]) -> None:
    """Raise `UserError` if NAME.csv or NAME.xlsx is there and not as this command wrote it: it may hold answers."""
    written = build.earlier().get("outputs", {})
    for path in (build.out / f"{name}{suffix}" for name in names for suffix in (".csv", ".xlsx")):
        if path.exists() and sha256_file(path) != written.get(path.name, {}).get("sha256"):
            raise UserError(f"{path} may hold answers and would be overwritten: move it, or choose another --out")
