"""The reader for tables that people made or filled in: CSV as spreadsheets of any country save it, and XLSX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from core.errors import UserError, need_modules
from core.files import read_bytes, read_text
from core.tables import unguarded

csv.field_size_limit(10_000_000)  # corpora have excerpts of books in a cell; csv's own limit is 131,072 characters
TOLD = 20  # most faults of a file that are reported at once
_SHOWN = 200  # characters of a cell
_DELIMITERS = (",", ";", "\t")
_INDEX = re.compile(r"|Unnamed: 0")  # pandas' heading of the index column
# What spreadsheets turn texts such as 1-2 or true into.
_CHANGED = re.compile(
    r"(?i)\d{1,2}[-. ][a-zä]{3,4}\.?|[a-zä]{3,4}[- ]\d{2,4}|\d{4}-\d\d-\d\d( 00:00:00)?|\d{1,2}月\d{1,2}日|TRUE|FALSE"
)


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

    `.xlsx`: the sheet of that name, by default the first. Otherwise CSV in an encoding of `core.files.decoded`, with any line
    ends, separated by commas, semicolons or tabs. The header is trimmed; unnamed columns at its end, pandas' index column and
    empty rows are left out. Raises `UserError` for a file that cannot be read.
    """
    if path.suffix.lower() == ".xlsx":
        lines = _xlsx_lines(path, sheet)
    else:
        text = read_text(path, "table")
        delimiter = max(_DELIMITERS, key=text.partition("\n")[0].count)
        lines = [(f"{path}:{line}", [unguarded(cell) for cell in cells]) for line, cells in csv_records(path, text, delimiter)]
    if not lines:
        return []
    (where, header), *rows = lines
    header = [name.strip() for name in header]
    while header and not header[-1]:
        header.pop()
    rows = [(place, cells) for place, cells in rows if any(cell.strip() for cell in cells)]
    if len(header) > 1 and _INDEX.fullmatch(header[0]) and all(cells[0].isdecimal() for _, cells in rows):
        header, rows = header[1:], [(place, cells[1:]) for place, cells in rows]
    width = len(header)
    fitted = [(place, cells if any(map(str.strip, cells[width:])) else cells[:width]) for place, cells in rows]
    return [(where, header), *fitted]


def csv_records(path: Path, text: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The first line and the cells of every record of a CSV text. Raises `UserError` for an unclosed quote, which swallows the
    rest of the file."""
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
        name = names[0] if sheet is None else sheet
        rows = book[name].iter_rows(values_only=True) if name in names else ()
        lines = [[_cell_text(value) for value in row] for row in rows]
    except Exception as error:  # errors of zip, XML and openpyxl have no common base
        raise UserError(f"{path}: not a readable XLSX file: {type(error).__name__}: {error}") from None
    if name not in names:
        raise UserError(f"{path}: no sheet named {sheet!r} (it has {', '.join(map(repr, names))})")
    width = max(map(len, lines), default=0)  # empty cells at the end of a row may be missing
    return [(f"{path}: row {n}", line + [""] * (width - len(line))) for n, line in enumerate(lines, start=1)]


def _cell_text(value: Any) -> str:
    """A cell's text. Spreadsheets store typed numbers as floats, so 3.0 becomes 3; dates are texts that they converted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, date | datetime | time):
        return value.isoformat(*([" "] if isinstance(value, datetime) else []))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
