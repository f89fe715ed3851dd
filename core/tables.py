"""Tables, which look the same everywhere: console, Markdown, CSV and the HTML report all print cells with `fmt`."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_type_hints

import rich.table
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from core.errors import clean
from core.files import write_text
from core.names import NUMBER

DASH = "–"
PARTED = " · "  # between the parts of a name, such as a scorer's judge, method and condition
# Characters that make a spreadsheet take text for a formula; East Asian ones also accept full-width characters.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# Where a formula could begin in a CSV cell: at its start, and wherever another program may split it. Spreadsheets of countries
# with semicolons as separators split our files at these, and then at line ends and inside quotation marks too.
_PLACE = r"""(?:(?:\A[ ]*|(?<=[;\t\r\n])[ "]*)'*{}(?=[=+\-@＝＋－＠])|\A'*{}(?=[\t\r\n]))"""
_UNGUARDED, _GUARDED = re.compile(_PLACE.format("", "")), re.compile(_PLACE.format("'", "'"))


@dataclass(frozen=True)
class Estimate:
    """A mean of n observations with its interval, as one cell (in CSV, as four columns). `low` and `high` are None if no
    interval is defined or it has no width, which would claim certainty; `mean` is None without observations."""

    mean: float | None
    low: float | None
    high: float | None
    n: int

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and not self.high - self.low > 1e-9 * max(1, abs(self.low)):
            object.__setattr__(self, "low", None)
            object.__setattr__(self, "high", None)

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit, such as per cent for a share; with −1, with the sign reversed."""
        mean, low, high = (None if figure is None else factor * figure for figure in (self.mean, self.low, self.high))
        return Estimate(mean, low, high, self.n) if factor > 0 else Estimate(mean, high, low, self.n)

    def record(self) -> dict[str, float | None]:
        """For JSON: the mean is called `value`."""
        return {"value": self.mean, "low": self.low, "high": self.high, "n": self.n}


Cell = str | int | float | Estimate | None


class Column(NamedTuple):
    """The table column of a record's field (dataclass or named tuple), as in
    `share: Annotated[float, Column("share %", per_cent)]`. `show` makes a cell from a value; None becomes an empty cell."""

    head: str
    show: Callable[[Any], Cell] = lambda value: value


def per_cent(share: float | Estimate | None) -> float | Estimate | None:
    """A share (0–1) in per cent; None stays None."""
    return share.times(100) if isinstance(share, Estimate) else None if share is None else 100 * share


@cache
def _columns(kind: Any) -> dict[str, Column]:
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: mark for name, hint in hints for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Column)}


def cells(record: object) -> dict[str, Cell]:
    """Heading → cell, for the fields of a record that have a `Column`."""
    kind: Any = type(record)
    values = ((column, getattr(record, name)) for name, column in _columns(kind).items())
    return {column.head: None if value is None else column.show(value) for column, value in values}


def json_record(record: Any, *merged: str) -> dict[str, Any]:
    """The fields of a record for JSON. Values with a `record` method become objects, or several fields if `merged`."""
    fields: dict[str, Any] = {}
    for name in get_type_hints(type(record)):
        value = getattr(record, name)
        value = value.record() if hasattr(value, "record") else value
        fields |= value if name in merged else {name: value}
    return fields


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns.

    `key` is safe as a file name, `notes` are printed below the table, and `section` is its heading in the report (tables
    without one come last). `bold` has the cells to emphasise as (row, column) from 0, though not in CSV. Raises `ValueError`
    for a row whose length differs from `columns` and a bold cell out of range.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    section: str = ""
    bold: tuple[tuple[int, int], ...] = ()  # not a set, since it is written to JSON
    decimals: int | None = None

    @classmethod
    def of(
        cls,
        key: str,
        title: str,
        rows: Iterable[object],
        notes: Iterable[str] = (),
        section: str = "",
        *,
        heads: Iterable[str] = (),
        decimals: int | None = None,
    ) -> Self:
        """A table from rows that are heading → cell, or records with `Column`s; columns are `heads`, then others."""
        body: list[Mapping[str, Cell]] = [row if isinstance(row, Mapping) else cells(row) for row in rows]
        columns = tuple(dict.fromkeys([*heads, *(head for row in body for head in row)]))
        lines = tuple(tuple(row.get(head) for head in columns) for row in body)
        return cls(key, title, columns, lines, tuple(notes), section, decimals=decimals)

    def text(self, cell: Cell) -> str:
        """The printed form of a cell."""
        return fmt(cell) if self.decimals is None else fmt(cell, self.decimals)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.key):
            raise ValueError(f"table key {self.key!r} is not safe as a file name")
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.key}: row {number} has {len(row)} cells for {len(self.columns)} columns")
        for place, column in self.bold:
            if not (0 <= place < len(self.rows) and 0 <= column < len(self.columns)):
                raise ValueError(f"table {self.key}: there is no cell {place}, {column} to be bold")


def file_keys(names: Iterable[str], nameless: str = "judge") -> dict[str, str]:
    """Names as parts of file names (`A-Za-z0-9._-`); one without these becomes `nameless`, duplicates get a number."""
    keys: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or nameless
        key, number = plain, 1
        while key in keys.values():
            number += 1
            key = f"{plain}-{number}"
        keys[name] = key
    return keys


class Screen(Console):
    """A console for plain text: nothing printed is taken for markup or steers the terminal."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False} | settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))


def fmt(cell: Cell, decimals: int = 2) -> str:
    """A cell as text: floats rounded, None and NaN as a dash, estimates as `mean [low, high] n=…`."""
    if isinstance(cell, Estimate):
        if cell.mean is None:
            return f"{DASH} n={cell.n}"
        interval = "" if cell.low is None else f" [{fmt(cell.low, decimals)}, {fmt(cell.high, decimals)}]"
        return f"{fmt(cell.mean, decimals)}{interval} n={cell.n}"
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return DASH
    if isinstance(cell, float):
        text = f"{cell:.{decimals}f}"
        return text.removeprefix("-") if not text.strip("-0.") else text  # -0.001 is 0.00, not -0.00
    return clean(str(cell))


def is_numeric(table: Table, column: int) -> bool:
    """Whether a column has only numbers and estimates, apart from missing cells. Such columns are right-aligned."""
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(isinstance(cell, int | float | Estimate) for cell in cells)


def to_console(table: Table, console: Console) -> None:
    """Print a table to a rich console, with cells as plain text; a table that is too wide in parts."""
    for part in [table] if fits(table, console) else _parts(table, console):
        console.print(_printed(part))
    for note in table.notes:
        console.print(Text(clean(note)))


def fits(table: Table, console: Console) -> bool:
    """Whether a table fits a console without wrapping."""
    return Measurement.get(console, console.options.update(max_width=10_000), _printed(table)).maximum <= console.width


def _parts(table: Table, console: Console) -> list[Table]:
    """The table in parts that fit the console; each begins with the columns of names."""
    names = next((i for i in range(len(table.columns)) if is_numeric(table, i)), 1) or 1

    def part(columns: Sequence[int]) -> Table:
        rows = tuple(tuple(row[i] for i in columns) for row in table.rows)
        bold = tuple((row, columns.index(i)) for row, i in table.bold if i in columns)
        return replace(table, columns=tuple(table.columns[i] for i in columns), rows=rows, bold=bold)

    if not fits(part(range(names)), console):
        return [table]
    taken, parts = list(range(names)), []
    for column in range(names, len(table.columns)):
        if len(taken) > names and not fits(part([*taken, column]), console):
            parts.append(part(taken))
            taken = list(range(names))
        taken.append(column)
    return [*parts, part(taken)]


def _printed(table: Table) -> rich.table.Table:
    printed = rich.table.Table(title=Text(clean(table.title)), title_justify="left")
    for index, column in enumerate(table.columns):
        justify: Literal["right", "left"] = "right" if is_numeric(table, index) else "left"
        printed.add_column(Text(clean(column)), justify=justify, overflow="fold")  # never cut off: half a name is useless
    for i, row in enumerate(table.rows):
        printed.add_row(*(Text(table.text(cell), "bold" if (i, j) in table.bold else "") for j, cell in enumerate(row)))
    return printed


def escape_markdown(text: str) -> str:
    """Text for a Markdown table cell, in which it cannot become HTML, an image, a link, code, a cell border or a line break."""
    for plain, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\\", "\\\\"), ("|", "\\|"), ("`", "\\`")):
        text = text.replace(plain, escaped)
    text = re.sub(r"\](?=[(\[:])", r"\]", text)  # other brackets stay: intervals have them
    text = re.sub(r"(?i)(?<=www)\.", "&#46;", text.replace("://", "&#58;//"))  # GitHub turns bare URLs into links
    return clean(text).replace("\n", "<br>")


def to_markdown(table: Table) -> str:
    """The table in GitHub's Markdown: a bold title, the table, the notes, a final newline."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rules = ["---:" if is_numeric(table, index) else "---" for index in range(len(table.columns))]
    lines = [f"**{escape_markdown(table.title)}**", "", line([escape_markdown(c) for c in table.columns]), line(rules)]
    for i, row in enumerate(table.rows):
        texts = [escape_markdown(table.text(cell)) for cell in row]
        lines.append(line([f"**{text}**" if (i, j) in table.bold else text for j, text in enumerate(texts)]))
    lines += [part for note in table.notes for part in ("", escape_markdown(note))]
    return "\n".join(lines) + "\n"


def guarded(text: str) -> str:
    """Text for a CSV cell in which no spreadsheet finds a formula, however it splits the file; see `unguarded`."""
    return _UNGUARDED.sub(r"\g<0>'", text)


def unguarded(cell: str) -> str:
    """The text of a CSV cell from `guarded`; other cells are unchanged."""
    return _GUARDED.sub(lambda match: match[0][:-1], cell)


def to_csv(table: Table) -> str:
    """The table as CSV (see `spread`): numbers have the printed precision, missing cells are empty, lines end with `\\n`."""

    def text(cell: Cell) -> str:
        text = "" if cell is None else table.text(cell)
        return guarded(text) if isinstance(cell, str) and not NUMBER.fullmatch(text) else text

    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(map(text, row) for row in spread(table))
    return buffer.getvalue()


def spread(table: Table) -> list[list[Cell]]:
    """Header and rows of single values. A column of estimates becomes four: the mean, `… low`, `… high` and `… n`."""
    rows: list[list[Cell]] = [[] for _ in range(1 + len(table.rows))]
    for name, *cells in zip(table.columns, *table.rows, strict=True):
        wide = any(isinstance(cell, Estimate) for cell in cells)
        rows[0] += [name, f"{name} low", f"{name} high", f"{name} n"] if wide else [name]
        for row, cell in zip(rows[1:], cells, strict=True):
            if isinstance(cell, Estimate):
                row += [cell.mean, cell.low, cell.high, cell.n]
            else:
                row += [cell, None, None, None] if wide else [cell]
    return rows


def write_csv(name: str, tables: Sequence[Table], out: Path) -> None:
    """Write every table as OUT/KEY.csv, and remove those that an earlier call of this name (OUT/.NAME.tables) wrote alone."""
    listed = out / f".{name}.tables"
    before = set(listed.read_text(encoding="utf-8").split()) if listed.exists() else set()
    for table in tables:
        write_text(out / f"{table.key}.csv", to_csv(table))
    keys = {table.key for table in tables}
    for stale in before - keys:
        if Path(stale).name == stale:  # anybody can edit the list: it must not name files outside this folder
            (out / f"{stale}.csv").unlink(missing_ok=True)
    write_text(listed, "\n".join(sorted(keys)) + "\n")
