"""The papers' tables for people to read: as printed, with figures that contradict others, and next to our own figures."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from core.errors import UserError, near
from core.tables import Cell, Estimate, Table, fmt
from evalsuite.papers.reported import At, Counterpart, Printed, Reported, ReportedTable, load_reported
from evalsuite.papers.reported.recomputation import Checked, Disagreement, check

TITLES = {"esc_eval": "ESC-Eval", "emoharbor": "EmoHarbor", "feel": "FEEL", "ecdbench": "ECDBench"}
AGAINST = {"paper": "esc_eval", "emoharbor": "emoharbor", "feel": "feel"}  # what `--against` takes
Source = tuple[str, int]  # a table of the paper, and the index of one of its `beside` entries


def against(tables: Iterable[Table], name: str | None) -> list[Table]:
    """The tables with the reported figures of `--against NAME`; unchanged for None. Raises `UserError` for an unknown name."""
    if name is None:
        return list(tables)
    if name not in AGAINST:
        raise UserError(f"--against: unknown {name!r}: {near(name, AGAINST)}")
    return [beside(table, _bundled(AGAINST[name])) for table in tables]


_bundled = cache(load_reported)


def beside(table: Table, paper: Reported) -> Table:
    """One of our tables with the paper's figures, as the paper's `beside` entries map them: a column `paper: NAME` after every
    column with a counterpart, or rows `paper: NAME` below ours.

    A figure that the paper lacks is None. Notes say where the figures are from, and which rows have none. A table without any
    counterpart is returned unchanged but for a note. Raises `UserError` for a mapping to several cells.
    """
    matching = [
        ((name, index), entry)
        for name, reported in paper.tables.items()
        for index, entry in enumerate(reported.beside)
        if any(fnmatchcase(table.key, key) for key in entry.tables) and set(entry.rows) <= set(table.columns)
    ]
    as_columns = [pair for pair in matching if not pair[1].as_rows]
    as_rows = [pair for pair in matching if pair[1].as_rows]
    printed: dict[tuple[int, int], float] = {}
    sources: dict[Source, None] = {}
    for (name, index), row, column, at in _places(as_columns, table):
        cell = paper.cell(name, at, f"{paper.files[name]}: beside.{index}")
        if cell is not None and cell.value is not None and (row, column) not in printed:
            printed[row, column] = paper.tables[name].beside[index].ours(cell.value)
            sources[name, index] = None
    if not printed and not as_rows:
        problem = "No row of this table is in" if as_columns else "There is no counterpart of this table in"
        return replace(table, notes=(*table.notes, f"{problem} {_title(paper)}."))
    matched = {column for _, column in printed}
    columns: list[str] = []
    rows: list[list[Cell]] = [[] for _ in table.rows]
    bold = []
    for index, head in enumerate(table.columns):
        bold += [(place, len(columns)) for place, column in table.bold if column == index]
        columns += [head, f"paper: {head}"] if index in matched else [head]
        for number, cells in enumerate(table.rows):
            rows[number] += [cells[index], printed.get((number, index))] if index in matched else [cells[index]]
    shown = [tuple(row) for row in rows] + [row for source, entry in as_rows for row in _rows(paper, source, entry, columns)]
    notes = list(table.notes)
    for name, index in sources | {source: None for source, _ in as_rows}:
        note = paper.tables[name].beside[index].note
        notes.append(f"paper: {_place(paper, paper.tables[name])}" + (f": {note}." if note else "."))
    heads = [index for index, head in enumerate(table.columns) if any(head in entry.rows for _, entry in as_columns)]
    with_figures = {row for row, _ in printed}
    lacking = dict.fromkeys(" ".join(fmt(row[i]) for i in heads) for n, row in enumerate(table.rows) if n not in with_figures)
    if heads and lacking:
        notes.append(f"Not in the paper: {', '.join(lacking)}.")
    return replace(table, columns=tuple(columns), rows=tuple(shown), bold=tuple(sorted(bold)), notes=tuple(notes))


def _rows(paper: Reported, source: Source, entry: Counterpart, columns: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    """The paper's own rows under our columns; percentages of a stated number of items with their n."""
    name, index = source
    where, shares = f"{paper.files[name]}: beside.{index}", _shares(paper, name)
    ((own_head, names),) = entry.rows.items()
    for label, across in names.items():
        cells: list[Cell] = []
        for head in columns:
            down = _match(head, entry.columns)
            cell = None if down is None else paper.cell(name, {**entry.at, **across, **down}, where)
            figure = _shown(paper.tables[name], cell, shares.get((cell.row, cell.column))) if cell else None
            cells.append(f"paper: {label}" if head == own_head else figure)
        yield tuple(cells)


def _places(entries: list[tuple[Source, Counterpart]], table: Table) -> Iterator[tuple[Source, int, int, At]]:
    """Every cell of ours that an entry maps, with the axes of its counterpart."""
    for source, entry in entries:
        for number, row in enumerate(table.rows):
            matches = [_match(str(row[table.columns.index(own_head)]), names) for own_head, names in entry.rows.items()]
            if None in matches:
                continue
            across = {axis: value for at in matches if at for axis, value in at.items()}
            for index, head in enumerate(table.columns):
                if head not in entry.rows and (down := _match(head, entry.columns)) is not None:
                    yield source, number, index, {**entry.at, **across, **down}


def _match(name: str, patterns: Mapping[str, At]) -> At | None:
    return next((at for pattern, at in patterns.items() if fnmatchcase(name, pattern)), None)


def _title(paper: Reported) -> str:
    return TITLES.get(paper.paper, paper.paper)


def _place(paper: Reported, table: ReportedTable) -> str:
    kind = f"table {table.table}" if table.table.isdigit() else table.table
    return f"{_title(paper)}, {kind} ({'section ' * table.section[:1].isdigit()}{table.section})"


def listed(paper: Reported) -> Table:
    """The list of a paper's tables, with a note on the other papers."""
    rows = tuple((name, table.title, table.section) for name, table in paper.tables.items())
    note = f"Other papers: {', '.join(f'--paper {name}' for name in TITLES if name != paper.paper)}."
    return Table("reported", f"Tables of {_title(paper)}", ("table", "title", "section"), rows, (note,))


def meant(paper: Reported, name: str) -> str:
    """The id of the table that a user means: `4`, `table4`, `Table 4`, `table_4.yaml`, `TEXT`."""
    match = re.fullmatch(r"(?:t[a-z]*[ _.-]*(?=\d))?(.+?)(?:\.ya?ml)?", name.strip().lower())
    return match[1] if match and match[1] in paper.tables else name


def as_printed(paper: Reported, name: str) -> Table:
    """A reported table as the paper has it; percentages of a stated number of items with their n.

    There are no intervals: items of one card are correlated, and the papers do not say how items are spread over cards. Notes
    say where the table is printed, what we know about it and which cells contradict others. Raises `UserError` for an unknown
    table.
    """
    table = paper.table(name)
    shares = _shares(paper, name)
    cells = [_shown(table, cell, shares.get((cell.row, cell.column))) for cell in paper.cells[name]]
    width = len(table.columns) * (len(table.parts) or 1)
    rows = [(*map(str, row[: len(table.heads)]), *cells[i * width : (i + 1) * width]) for i, row in enumerate(table.rows)]
    heads = dict.fromkeys(cell.column for cell in paper.cells[name])
    notes = [f"{_place(paper, table)}.", *table.notes]
    notes += [
        f"{cell.row}, {cell.column}: {_figure(table, cell.printed)}, recomputed {_recomputed(table, cell)} "
        f"({'; '.join(cell.notes)})."
        for cell in check(paper).disagreements
        if cell.table == name
    ]
    return Table(f"reported-{name}", table.title, (*table.heads, *heads), tuple(rows), tuple(notes))


def _shares(paper: Reported, name: str) -> dict[tuple[str, str], int]:
    """(row, column) → n, for cells that are percentages of n items."""
    return {
        (cell.row, cell.column): rule.share_of
        for index, rule in enumerate(paper.tables[name].derived)
        if rule.share_of is not None
        for cell in paper.select(name, rule.cells, f"{paper.files[name]}: derived.{index}.cells")
    }


def _shown(table: ReportedTable, cell: Printed, n: int | None) -> Cell:
    if cell.value is None or (table.exact and isinstance(cell.value, int)):
        return cell.value
    if n is not None:
        return Estimate(cell.value, None, None, n)
    return float(cell.value) if table.decimals == 2 else _figure(table, cell.value)  # `fmt` prints two decimals


def _figure(table: ReportedTable, value: float) -> str:
    rounded = f"{value:.{table.decimals}f}"
    return rounded if isinstance(value, float) and not table.exact and float(rounded) == value else str(value)


def _recomputed(table: ReportedTable, disagreement: Disagreement) -> str:
    return _figure(table, disagreement.recomputed) + (f" ± {disagreement.slack:.1g}" if disagreement.slack else "")


def disagreement_table(paper: Reported, checked: Checked) -> Table:
    """The table of `esc-eval paper reported`: one row per cell that contradicts others, with the reasons."""

    def row(cell: Disagreement) -> tuple[Cell, ...]:
        table = paper.tables[cell.table]
        figures = (_figure(table, cell.printed), _recomputed(table, cell))
        return cell.table, cell.row, cell.column, *figures, "; ".join(cell.notes)

    return Table(
        key="reported-check",
        title=f"{_title(paper)}: printed figures that do not follow from the others",
        columns=("table", "row", "column", "printed", "recomputed", "recomputed as; remarks"),
        rows=tuple(map(row, checked.disagreements)),
        notes=(
            f"{checked.figures:,} figures in {len(paper.tables)} tables were recomputed from others; "
            f"{len(checked.disagreements)} disagree by more than the rounding in print.",
        ),
    )
