"""The reader for tables that people made or filled in: CSV as spreadsheets of any country save it, and XLSX."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import UserError, need_modules, say
from core.files import read_bytes, read_text
from core.tables import unguarded

csv.field_size_limit(10_000_000)  # corpora have excerpts of books in a cell; csv's own limit is 131,072 characters
TOLD = 20  # most faults of a file that are reported at once
_SHOWN = 200  # characters of a cell
TABLES = (".csv", ".tsv", ".xlsx", ".xlsm", ".xls", ".ods", ".numbers")  # suffixes, whether or not their content can be read
_DELIMITERS = (",", ";", "\t")
_INDEX = re.compile(r"|Unnamed: 0")  # pandas' heading of the index column
# What spreadsheets turn texts such as 1-2 or true into.
_CHANGED = re.compile(
    r"(?i)\d{1,2}(\. |[-. ])[^\W\d_]{3,4}\.?|[^\W\d_]{3,4}\.?[- ]\d{2,4}|\d{4}-\d\d-\d\d( 00:00:00)?|\d{1,2}月\d{1,2}日"
    r"|\d{1,2}([/.])\d{1,2}\3(\d{4}|\d\d)|TRUE|FALSE|WAHR|FALSCH|VRAI|FAUX|VERDADERO|FALSO"
    r"|#(NULL!|DIV/0!|VALUE!|REF!|NAME\?|NUM!|N/A)"
)
_DECLARED = re.compile(r"sep=(.)\r?\n")  # Excel's own first line of a CSV file


class Faults:
    """The errors of one file, raised together at the end of the block, so that a table can be mended in one go."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Collect the block's `UserError` instead of raising it."""
        try:
            yield
        except UserError as error:
            self.found.append(str(error))

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Raise `UserError` with the first `TOLD` errors, if there are any."""
        if kind is None and self.found:
            more = len(self.found) - TOLD
            raise UserError("\n".join(self.found[:TOLD]) + (f"\n(and {more} more)" if more > 0 else ""))


def shortened(cell: str) -> str:
    """A cell's or other text for an error message: 200 characters at most."""
    return cell if len(cell) <= _SHOWN else f"{cell[:_SHOWN]} …"


def changed_cell(cell: str, before: str = "") -> str:
    """A hint for a cell that a spreadsheet seems to have changed, with its text `before` if known; "" for any other cell."""
    if not _CHANGED.fullmatch(cell.strip()):
        return ""
    return f" ({cell.strip()!r}{f' where the sheet has {before[:40]!r}' if before else ''}: your spreadsheet changed it)"


def table_lines(path: Path, sheet: str | None = None) -> list[tuple[str, list[str]]]:
    """Header and rows as texts, each with its place: `file:line` in CSV (where it begins), `file: row n` in XLSX.

    `.xlsx`: the sheet of that name, by default the first that is not hidden. Otherwise CSV, separated by commas, semicolons or
    tabs. Unnamed columns at the end, pandas' index column and empty rows are left out. Raises `UserError` for a file that
    cannot be read, and for rows that do not fit their header.
    """
    if (suffix := path.suffix.lower()) in TABLES[4:]:
        raise UserError(f"{path}: {suffix} cannot be read: save it as XLSX, or as CSV in UTF-8")
    if suffix in (".xlsx", ".xlsm"):
        lines = _xlsx_lines(path, sheet)
    else:
        text = read_text(path, "table")
        if declared := _DECLARED.match(text):
            text = "\n" + text[declared.end() :]
        delimiter = declared[1] if declared else max(_DELIMITERS, key=text.lstrip("\r\n").partition("\n")[0].count)
        lines = [(f"{path}:{line}", [unguarded(cell) for cell in cells]) for line, cells in csv_records(path, text, delimiter)]
    lines = [(place, cells) for place, cells in lines if any(cell.strip() for cell in cells)]
    if not lines:
        return []
    (where, header), *rows = lines
    header = [name.strip() for name in header]
    while not header[-1]:
        header.pop()
    if len(header) > 1 and _INDEX.fullmatch(header[0]) and all(cells[0].isdecimal() for _, cells in rows):
        header, rows = header[1:], [(place, cells[1:]) for place, cells in rows]
    width = len(header)
    fitted = [(place, cells if any(map(str.strip, cells[width:])) else cells[:width]) for place, cells in rows]
    if len(fitted) > 1 and min(len(cells) for _, cells in fitted) > width:
        names = shortened(", ".join(header))
        hint = "the first row must hold the headings, and a text with a comma stands in quotes"
        raise UserError(f"{where}: {width} columns ({names}), but every row below has more cells: {hint}")
    return [(where, header), *fitted]


def csv_records(path: Path, text: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """First line and cells of each record of a CSV text. Raises `UserError` for an unclosed quote, which swallows the rest."""
    reader, line = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{line}: malformed CSV: {error}") from None


def _xlsx_lines(path: Path, sheet: str | None) -> list[tuple[str, list[str]]]:
    need_modules("openpyxl", purpose="XLSX sheets")
    import openpyxl

    raw = io.BytesIO(read_bytes(path, "sheet"))
    try:
        book = openpyxl.load_workbook(raw, read_only=True, data_only=True)
        names = book.sheetnames
        shown = [page.title for page in book.worksheets if page.sheet_state == "visible"] or names
        name = shown[0] if sheet is None else sheet
        rows = book[name].iter_rows(values_only=True) if name in names else ()
        lines = [[_cell_text(value) for value in row] for row in rows]
        unknown = _without_result(raw, name) if name in names else []
    except Exception as error:  # errors of zip, XML and openpyxl have no common base
        raise UserError(f"{path}: not a readable XLSX file: {type(error).__name__}: {error}") from None
    if name not in names:
        raise UserError(f"{path}: no sheet named {sheet!r} (it has {', '.join(map(repr, names))})")
    if unknown:
        cells = shortened(", ".join(unknown))
        raise UserError(f"{path}: formulas without a stored result: open the file in a spreadsheet and save it ({cells})")
    if sheet is None and len(shown) > 1:
        _tell_sheet(path, name, len(shown))
    width = max(map(len, lines), default=0)  # empty cells at the end of a row may be missing
    return [(f"{path}: row {n}", line + [""] * (width - len(line))) for n, line in enumerate(lines, start=1)]


def _without_result(raw: io.BytesIO, sheet: str) -> list[str]:
    """The cells of a sheet whose formula no spreadsheet has computed yet, as in files that programs write."""
    import openpyxl

    with zipfile.ZipFile(raw) as parts:
        pages = [parts.read(part) for part in parts.namelist() if part.startswith("xl/worksheets/")]
    if not any(b"<f>" in page or b"<f " in page for page in pages):  # the usual case, without reading every cell again
        return []
    formulas, results = (
        openpyxl.load_workbook(raw, read_only=True, data_only=computed)[sheet].iter_rows() for computed in (False, True)
    )
    return [
        cell.coordinate
        for row, computed in zip(formulas, results, strict=True)
        for cell, result in zip(row, computed, strict=True)
        if cell.data_type == "f" and result.value is None and result.data_type == "n"  # a stored "" is of type str
    ]


@cache
def _tell_sheet(path: Path, sheet: str, sheets: int) -> None:
    say(f"{path}: the sheet {sheet!r} is read, the first of {sheets}", err=True)


def _cell_text(value: Any) -> str:
    """A cell's text. Spreadsheets store typed numbers as floats, so 3.0 becomes 3; dates are texts that they converted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, date | datetime | time):
        return value.isoformat(*([" "] if isinstance(value, datetime) else []))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
