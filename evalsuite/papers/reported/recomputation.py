"""Recomputation of the papers' figures from other figures, by the rules of the reported tables (`tables`).

A printed number stands for all numbers that round to it (half a unit of its last place either way; counts are exact), a
recomputed one for all numbers that its printed inputs allow. The two disagree if they have no number in common.

Inputs that count items of a stated number (rules with `items`) are exact: only one multiple of 25/331 is printed as 74.32. So
an average of such inputs is exact too, and one that was truncated does not pass as rounding.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from operator import itemgetter
from typing import Any, NamedTuple

from core.errors import UserError
from core.grouping import group_by
from evalsuite.papers.reported import Printed, Reported, ReportedTable, Rule

OPERATIONS = ("sum", "mean", "minus", "times", "ratio", "count")
TABLE, LOST = "table", "lost"
Exact = Mapping[tuple[str, str, str], Fraction]  # (table, row, column) → the exact figure of a cell
# A rule's result for a cell: the recomputed number if it disagrees, how far that may be off (None: only its sign counts), why.
Result = tuple[int | float | None, float | None, str]


@dataclass(frozen=True)
class Disagreement:
    """A printed number that contradicts others; `recomputed` is rounded like the printed one. `slack` is how far rounded
    inputs may put the recomputed number off: 0 for exact inputs, None if only its sign is whole."""

    paper: str
    table: str
    row: str
    column: str
    printed: float
    recomputed: float
    slack: float | None
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """The fields that `esc-eval paper reported --json` lists: all but the notes."""
        return {name: value for name, value in asdict(self).items() if name != "notes"}


class Checked(NamedTuple):
    """`figures`: how many printed numbers at least one rule checked."""

    figures: int
    disagreements: list[Disagreement]


class ReportedSpread(NamedTuple):
    """The range of a recomputed figure, `low` to `high`; `mid` is its value for the inputs as printed."""

    low: Fraction
    mid: Fraction
    high: Fraction


def check(reported: Reported) -> Checked:
    """Apply all rules of a paper's tables; disagreements are in the order of tables and cells.

    Two rules that give the same recomputed number for a cell are one disagreement with both reasons.
    Raises `UserError` with file and field for a rule that names missing cells.
    """
    exact, figures, disagreements = _exact(reported), 0, []
    for name, table in reported.tables.items():
        where = str(reported.files[name])
        rules = [(rule, f"{where}: derived.{index}") for index, rule in enumerate(table.derived)]
        covered = [(rule, at, _places(reported, name, rule.cells, at)) for rule, at in rules]
        remarked = [(r.note, _places(reported, name, r.cells, f"{where}: remarks.{i}")) for i, r in enumerate(table.remarks)]
        for cell in reported.cells[name]:
            place, printed = (cell.row, cell.column), cell.value
            if printed is None:
                continue
            results = [
                _recomputed(reported, exact, table, rule, cell, f"{at}.{rule.relation}")
                for rule, at, cells in covered
                if place in cells
            ]
            figures += bool(results)
            remarks = [note for note, cells in remarked if place in cells]
            for value, same in group_by(results, itemgetter(0)).items():
                if value is not None:
                    slack = min((slack for _, slack, _ in same if slack is not None), default=None)
                    notes = (*(why for *_, why in same), *remarks)
                    disagreements.append(Disagreement(reported.paper, name, *place, printed, value, slack, notes))
    return Checked(figures, disagreements)


def _exact(reported: Reported) -> Exact:
    """The exact figures of cells that are whole numbers of counted items. A cell that was truncated instead of rounded has an
    exact figure too; a cell that is neither has none."""
    figures: dict[tuple[str, str, str], Fraction] = {}
    for name, table in reported.tables.items():
        for index, rule in enumerate(table.derived):
            where, unit = f"{reported.files[name]}: derived.{index}", Fraction(1, 10**table.decimals)
            for cell in _cells(reported, name, rule.cells, f"{where}.cells") if rule.items is not None else ():
                if cell.value is None:
                    continue
                printed, step = Fraction(str(cell.value)), _step(reported, table, rule, cell, f"{where}.{rule.relation}")
                if step <= 2 * unit:
                    raise UserError(f"{where}.items: with a step of {float(step):.3g}, several counts are printed alike")
                value = round(printed / step) * step
                if abs(value - printed) <= unit / 2 or _cut_off(printed, value, unit):
                    figures[name, cell.row, cell.column] = value
    return figures


def _places(reported: Reported, name: str, selector: Any, where: str) -> set[tuple[str, str]]:
    return {(cell.row, cell.column) for cell in _cells(reported, name, selector, f"{where}.cells")}


def _cells(reported: Reported, name: str, selector: Any, where: str) -> list[Printed]:
    selected = reported.select(name, selector, where)
    if not selected:
        raise UserError(f"{where}: no cell of table {name} is at {selector}")
    return selected


def _recomputed(reported: Reported, exact: Exact, table: ReportedTable, rule: Rule, cell: Printed, where: str) -> Result:
    printed = Fraction(str(cell.value))
    decimals = table.decimals if rule.decimals is None else rule.decimals
    unit = Fraction(0) if table.exact and rule.decimals is None else Fraction(1, 10**decimals)
    slack: float | None = 0.0
    if rule.sign_of is not None:
        others = [_value(reported, exact, table.table, selector, cell, where).mid for selector in rule.sign_of]
        near_zero = any(abs(figure) < rule.beyond for figure in (printed, *others))
        holds = near_zero or printed * others[0] > 0 or any(figure * others[0] < 0 for figure in others)
        recomputed, slack = -printed, None
    elif rule.relation in ("multiple_of", "share_of"):
        step = _step(reported, table, rule, cell, where)
        recomputed = round(printed / step) * step
        holds = abs(recomputed - printed) <= unit / 2
    else:
        value = _value(reported, exact, table.table, getattr(rule, rule.relation), cell, where)
        recomputed, slack = value.mid, float(max(value.high - value.mid, value.mid - value.low))
        above = rule.relation != "at_least" and printed - unit / 2 > value.high
        below = rule.relation != "at_most" and printed + unit / 2 < value.low
        holds = not above and not below
    if holds:
        return None, slack, rule.why
    cut = slack == 0 and not rule.relation.startswith("at_") and _cut_off(printed, recomputed, unit)
    rounded = round(recomputed, decimals)
    shown = int(rounded) if isinstance(cell.value, int) and rounded.denominator == 1 else float(rounded)
    return shown, slack, rule.why + "; cut off, not rounded" * cut


def _cut_off(printed: Fraction, exact: Fraction, unit: Fraction) -> bool:
    """Whether truncating an exact figure gives the printed one."""
    return printed * exact >= 0 and 0 < abs(exact) - abs(printed) < unit


def _step(reported: Reported, table: ReportedTable, rule: Rule, cell: Printed, where: str) -> Fraction:
    expression = rule.multiple_of if rule.share_of is None else {"ratio": [100, rule.share_of]}
    return _value(reported, {}, table.table, expression, cell, where).mid


def _value(reported: Reported, exact: Exact, name: str, expression: Any, cell: Printed, where: str) -> ReportedSpread:
    values = list(_values(reported, exact, name, expression, cell, where))
    if len(values) != 1:
        raise UserError(f"{where}: one value is needed, {expression} gives {len(values)}")
    return values[0]


def _values(
    reported: Reported, exact: Exact, name: str, expression: Any, cell: Printed, where: str
) -> Iterator[ReportedSpread]:
    """The values of an expression: one for a number or an operation, one per cell for a selector."""
    if not isinstance(expression, dict):
        number = Fraction(str(expression))
        yield ReportedSpread(number, number, number)
    elif (operation := next(iter(expression))) in OPERATIONS:
        operands = expression[operation]
        if operation == "count":
            number = Fraction(sum(len(_sources(reported, name, operand, cell, where)) for operand in operands))
            yield ReportedSpread(number, number, number)
        else:
            yield combine(operation, [v for part in operands for v in _values(reported, exact, name, part, cell, where)])
    else:
        table = reported.tables[expression.get(TABLE, name)]
        for source in _sources(reported, name, expression, cell, where):
            if (whole := exact.get((table.table, source.row, source.column))) is not None:
                yield ReportedSpread(whole, whole, whole)
            elif source.value is not None:
                value, slack = Fraction(str(source.value)), Fraction(0 if table.exact else 1, 2 * 10**table.decimals)
                yield ReportedSpread(value - slack, value, value + slack)
            elif expression.get(LOST) != "skip":
                raise UserError(f"{where}: {source.row}, {source.column} has no figure; `lost: skip` leaves such cells out")


def _sources(reported: Reported, name: str, selector: Mapping[str, Any], cell: Printed, where: str) -> list[Printed]:
    """The cells of a selector, relative to the checked cell: axes that it does not name keep the cell's own value."""
    other = selector.get(TABLE, name)
    inherited = {axis: value for axis, value in cell.at.items() if axis in reported.table(other).axes}
    named = {axis: value for axis, value in selector.items() if axis not in (TABLE, LOST)}
    return _cells(reported, other, inherited | named, where)


def combine(operation: str, values: list[ReportedSpread]) -> ReportedSpread:
    """`sum`, `mean`, `minus` (two), `times` or `ratio` (two) of values, with the widest range that theirs allow."""
    total = values[0]
    for value in values[1:]:
        if operation in ("sum", "mean"):
            total = ReportedSpread(total.low + value.low, total.mid + value.mid, total.high + value.high)
        elif operation == "minus":
            total = ReportedSpread(total.low - value.high, total.mid - value.mid, total.high - value.low)
        else:
            if operation == "ratio":
                value = ReportedSpread(1 / value.high, 1 / value.mid, 1 / value.low)
            corners = [a * b for a in (total.low, total.high) for b in (value.low, value.high)]
            total = ReportedSpread(min(corners), total.mid * value.mid, max(corners))
    n = len(values) if operation == "mean" else 1
    return ReportedSpread(total.low / n, total.mid / n, total.high / n)
