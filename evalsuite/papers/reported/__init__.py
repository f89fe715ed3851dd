"""The papers' tables as numbers, configs/reported/PAPER/*.yaml: their form, how they are read and how cells are named.

A cell has one name on every axis of its table: the heads of its row, `column`, and `part` if a printed cell has several numbers
(`9.9/9.8`). A selector maps axes to a name or a list of names; `"*"` is any name.

`derived` has rules that cells must satisfy (`recomputation` checks them), `remarks` our comments on single cells, `beside` the
counterparts of the harness's own tables (`against`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictFloat, StrictInt, StrictStr, model_validator

from core.errors import UserError, near
from core.files import CONFIGS
from core.settings import Settings, read_yaml

COLUMN, PART = "column", "part"
RELATIONS = ("equals", "at_most", "at_least", "multiple_of", "share_of", "sign_of")

Number = StrictInt | StrictFloat
Names = dict[StrictStr, StrictStr | list[StrictStr]]
At = dict[StrictStr, StrictStr]


class Rule(Settings):
    """A rule that some cells (all, if none are named) must satisfy: exactly one of the relations.

    - `equals`, `at_most`, `at_least`: the value of a number, a selector of one cell, or an operation on a list of these: `sum`,
      `mean`, `minus`, `times`, `ratio`, `count` (of cells). A selector may name another `table`; an axis that it leaves out
      keeps the checked cell's value, so `mean: [{column: [A, B]}]` is the mean of A and B in the cell's own row. Cells without
      a figure are an error, unless the selector says `lost: skip`.
    - `multiple_of`: a whole multiple of such a value. `share_of: n`: a percentage of n items, so a multiple of 100/n.
    - `sign_of`: the sign of the selected cells, if these agree and all, with the checked one, are at least `beyond` from 0.

    `decimals`: to how many the cells are rounded, if not as in the rest of the table.

    `items`, for a multiple or a share, says what is counted and where the number is from: the cells' exact figures are then
    known, and rules with them as inputs use these instead of the rounded ones.
    """

    why: str
    cells: Names = Field(default={})
    equals: Any = None
    at_most: Any = None
    at_least: Any = None
    multiple_of: Any = None
    share_of: Annotated[int, Field(gt=0)] | None = None
    sign_of: Annotated[list[Names], Field(min_length=1)] | None = None
    beyond: Number = 5
    decimals: Annotated[int, Field(ge=0)] | None = None
    items: str | None = None

    @model_validator(mode="after")
    def _one_relation(self) -> Rule:
        if sum(getattr(self, name) is not None for name in RELATIONS) != 1:
            raise ValueError(f"exactly one of {', '.join(RELATIONS)} is needed")
        return self

    @property
    def relation(self) -> str:
        return next(name for name in RELATIONS if getattr(self, name) is not None)


class Remark(Settings):
    """Our comment on some printed cells."""

    cells: Names
    note: str


class Counterpart(Settings):
    """The mapping of the harness's tables with the keys `tables` to cells of the paper's.

    `rows`: one or more of our columns → name in it → axes of the paper's table; `columns`: name of a figure's column → axes;
    `at`: the other axes. Together they select at most one cell. Our keys and names are patterns (`*`, `[Aa]`), of which the
    first match counts. Both sides are in the same unit, or `scale` has the paper's figures for our 0 and 100. With `as_rows`
    the names in `rows` are the paper's, and its figures become further rows of our table instead of columns.
    """

    tables: Annotated[list[str], Field(min_length=1)]
    at: At = Field(default={})
    rows: Annotated[dict[StrictStr, dict[StrictStr, At]], Field(min_length=1)]
    columns: Annotated[dict[StrictStr, At], Field(min_length=1)]
    as_rows: bool = False
    scale: tuple[Number, Number] | None = None
    note: str | None = None

    def ours(self, printed: float) -> float:
        """A printed figure in our unit."""
        if self.scale is None:
            return printed
        low, high = self.scale
        return 100 * (printed - low) / (high - low)


@dataclass(frozen=True)
class Printed:
    """One number of a table: its name on every axis, its row and column as shown, and the number, None if the paper's text
    lost it."""

    at: Mapping[str, str]
    row: str
    column: str
    value: int | float | None


class ReportedTable(Settings):
    """One table of a paper. `rows` are lists as printed: the heads, then a number (or a list of parts) for every column.

    A number has at most `decimals` decimals and stands for all numbers that round to it, unless the table is `exact` (counts).
    """

    paper: str
    table: StrictStr
    section: StrictStr
    title: str
    decimals: Annotated[int, Field(ge=0)]
    exact: bool = False
    heads: Annotated[list[StrictStr], Field(min_length=1)]
    columns: Annotated[list[StrictStr], Field(min_length=1)]
    parts: list[StrictStr] = Field(default=[])
    rows: Annotated[list[list[StrictStr | Number | list[Number | None] | None]], Field(min_length=1)]
    notes: list[str] = Field(default=[])
    derived: list[Rule] = Field(default=[])
    remarks: list[Remark] = Field(default=[])
    beside: list[Counterpart] = Field(default=[])

    @model_validator(mode="after")
    def _rows_fit(self) -> ReportedTable:
        for index, row in enumerate(self.rows):
            heads, figures = row[: len(self.heads)], row[len(self.heads) :]
            where = f"rows.{index} ({', '.join(map(str, heads))})"
            if not all(isinstance(head, str) for head in heads) or any(heads == row[: len(heads)] for row in self.rows[:index]):
                raise ValueError(f"{where}: a row starts with its own {', '.join(self.heads)}, each a name")
            if len(figures) != len(self.columns):
                raise ValueError(f"{where}: {len(figures)} cells for {len(self.columns)} columns")
            for column, figure in zip(self.columns, figures, strict=True):
                numbers = figure if isinstance(figure, list) else [figure]
                if isinstance(figure, list) != bool(self.parts) or len(numbers) != (len(self.parts) or 1):
                    raise ValueError(f"{where}, {column}: {figure!r} is not {' and '.join(self.parts) or 'one number'}")
                for number in (number for number in numbers if number is not None):
                    if isinstance(number, str) or (exact := Decimal(str(number))) != round(exact, self.decimals):
                        problem = f"{number!r} is not a number of at most {self.decimals} decimals"
                        raise ValueError(f"{where}, {column}: {problem}")
        return self

    @property
    def axes(self) -> list[str]:
        return [*self.heads, COLUMN, *([PART] if self.parts else [])]

    def cells(self) -> Iterator[Printed]:
        """Every number, row by row."""
        for row in self.rows:
            heads: list[Any] = row[: len(self.heads)]
            for column, figure in zip(self.columns, row[len(self.heads) :], strict=True):
                numbers: list[Any] = figure if isinstance(figure, list) else [figure]
                for part, number in zip(self.parts or [""], numbers, strict=True):
                    at = dict(zip(self.axes, [*heads, column, part], strict=False))
                    yield Printed(at, " / ".join(heads), f"{column} {part}".strip(), number)


class Reported:
    """The tables of one paper by their ids, in the paper's order."""

    def __init__(self, paper: str, files: Mapping[Path, ReportedTable]) -> None:
        self.paper = paper
        self.tables: dict[str, ReportedTable] = {}
        self.files: dict[str, Path] = {}
        for path, table in sorted(files.items(), key=lambda item: (len(item[1].table), item[1].table)):
            if table.table in self.tables:
                raise UserError(f"{path}: table: {table.table!r} is also in {self.files[table.table]}")
            self.tables[table.table], self.files[table.table] = table, path
        self.cells = {name: [*table.cells()] for name, table in self.tables.items()}
        self._names = {
            name: {axis: {cell.at[axis] for cell in self.cells[name]} | {"*"} for axis in table.axes}
            for name, table in self.tables.items()
        }

    def table(self, name: str) -> ReportedTable:
        """A table by its id. Raises `UserError` for an unknown one."""
        if name not in self.tables:
            raise UserError(f"no table {name!r} of {self.paper}: {near(name, self.tables)}")
        return self.tables[name]

    def select(self, name: str, selector: Mapping[str, str | list[str]], where: str) -> list[Printed]:
        """The cells of a table that a selector names, in the table's order; none if no row has such a combination of names.
        Raises `UserError`, which starts with `where`, for axes and names that the table does not have."""
        wanted = {axis: names if isinstance(names, list) else [names] for axis, names in selector.items()}
        for axis, names in wanted.items():
            if axis not in self._names[name]:
                raise UserError(f"{where}: table {name} has no axis {axis!r}: {near(axis, self._names[name])}")
            valid = self._names[name][axis]
            for unknown in (value for value in names if value not in valid):
                raise UserError(f"{where}: table {name} has no {axis} {unknown!r}: {near(str(unknown), valid)}")
        narrow = [(axis, names) for axis, names in wanted.items() if "*" not in names]
        return [cell for cell in self.cells[name] if all(cell.at[axis] in names for axis, names in narrow)]

    def cell(self, name: str, at: Mapping[str, str], where: str) -> Printed | None:
        """The single cell that a selector names, if any. Raises `UserError` if it names several."""
        cells = self.select(name, at, where)
        if len(cells) > 1:
            raise UserError(f"{where}: {at} names {len(cells)} cells of table {name}: more axes are needed")
        return cells[0] if cells else None


def load_reported(name: str = "esc_eval") -> Reported:
    """The tables of a paper: bundled under a name (configs/reported/NAME), or in a user's folder of YAML files. Raises
    `UserError` with file and field."""
    folder = Path(name) if "/" in name else CONFIGS / "reported" / name
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        papers = [path.name for path in (CONFIGS / "reported").iterdir()]
        raise UserError(f"no reported tables in {folder}" if "/" in name else f"unknown paper {name!r}: {near(name, papers)}")
    return Reported(folder.name, {path: read_yaml(path, ReportedTable, "reported table") for path in paths})
