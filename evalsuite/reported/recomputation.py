"""Does a paper's table follow from its own cells? Every rule of the reported tables (`tables`) recomputed.

A printed number stands for all that round to it (half a unit of its last place either way; counts are exact), a recomputed one
for all that its printed inputs allow. The two disagree when they have no number in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from evalsuite.reported.tables import Printed, Reported, ReportedTable, Rule
from serve.errors import UserError, near

OPERATIONS = ("sum", "mean", "minus", "times", "ratio", "count")
TABLE, LOST = "table", "lost"


@dataclass(frozen=True)
class Disagreement:
    """A printed number that does not follow from the others; `recomputed` is rounded as the printed one is."""

    paper: str
    table: str
    row: str
    column: str
    printed: float
    recomputed: float
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Without the notes: what `esc-eval reported check --json` lists."""
        return {name: getattr(self, name) for name in ("paper", "table", "row", "column", "printed", "recomputed")}


@dataclass(frozen=True)
class Checked:
    """`figures` printed numbers were held against at least one rule."""

    figures: int
    disagreements: list[Disagreement]


@dataclass(frozen=True)
class Spread:
    """The numbers that a recomputed figure may be, from `low` to `high`; `mid` is what its inputs give as printed."""

    low: Fraction
    mid: Fraction
    high: Fraction


def exactly(number: float | Fraction) -> Spread:
    value = Fraction(str(number))
    return Spread(value, value, value)


def check(reported: Reported) -> Checked:
    """Recompute all that the rules of a paper's tables say; disagreements come in the order of tables and cells.

    Two rules that give the same recomputed number for a cell are one disagreement with both reasons.
    Raises `UserError` with file and field for a rule that names cells there are not, or cannot be computed.
    """
    figures, found = 0, []
    for name, table in reported.tables.items():
        where = str(reported.files[name])
        places = [f"{where}: derived.{index}" for index in range(len(table.derived))]
        covered = [_places(reported, name, rule.cells, at) for rule, at in zip(table.derived, places, strict=True)]
        remarked = [_places(reported, name, r.cells, f"{where}: remarks.{index}") for index, r in enumerate(table.remarks)]
        for cell in reported.cells[name]:
            place = cell.row, cell.column
            rules = [i for i, cells in enumerate(covered) if place in cells and cell.value is not None]
            wrong: dict[float, list[str]] = {}
            for i in rules:
                at = f"{places[i]}.{table.derived[i].relation}"
                if (recomputed := _recomputed(reported, table, table.derived[i], cell, at)) is not None:
                    wrong.setdefault(recomputed[0], []).append(recomputed[1])
            figures += bool(rules)
            for value, reasons in wrong.items():
                notes = (*reasons, *(r.note for r, cells in zip(table.remarks, remarked, strict=True) if place in cells))
                assert cell.value is not None
                found.append(Disagreement(reported.paper, name, cell.row, cell.column, cell.value, value, notes))
    return Checked(figures, found)


def _places(reported: Reported, name: str, selector: Any, where: str) -> set[tuple[str, str]]:
    return {(cell.row, cell.column) for cell in _cells(reported, name, selector, f"{where}.cells")}


def _cells(reported: Reported, name: str, selector: Any, where: str) -> list[Printed]:
    found = reported.select(name, selector, where)
    if not found:
        raise UserError(f"{where}: no cell of table {name} is at {selector}")
    return found


def _recomputed(
    reported: Reported, table: ReportedTable, rule: Rule, cell: Printed, where: str
) -> tuple[int | float, str] | None:
    """(recomputed number, reason) when a rule does not hold for a printed cell."""
    printed = Fraction(str(cell.value))
    decimals = table.decimals if rule.decimals is None else rule.decimals
    slack = Fraction(0) if table.exact and rule.decimals is None else Fraction(1, 2 * 10**decimals)
    why = rule.why
    if rule.sign_of is not None:
        others = [_value(reported, table.table, selector, cell, where).mid for selector in rule.sign_of]
        near_zero = any(abs(figure) < rule.beyond for figure in (printed, *others))
        if near_zero or printed * others[0] > 0 or any(figure * others[0] < 0 for figure in others):
            return None
        recomputed = -printed
    elif rule.relation in ("multiple_of", "share_of"):
        expression = rule.multiple_of if rule.share_of is None else {"ratio": [100, rule.share_of]}
        step = _value(reported, table.table, expression, cell, where)
        if step.low != step.high or step.mid <= 0:
            raise UserError(f"{where}: the step must be exact and above 0")
        recomputed = round(printed / step.mid) * step.mid
        if abs(recomputed - printed) <= slack:
            return None
        if 0 < recomputed - printed < 2 * slack:
            why += "; cut off, not rounded"
    else:
        value = _value(reported, table.table, getattr(rule, rule.relation), cell, where)
        recomputed = value.mid
        above = rule.relation != "at_least" and printed - slack > value.high
        below = rule.relation != "at_most" and printed + slack < value.low
        if not above and not below:
            return None
    rounded = round(recomputed, decimals)
    return int(rounded) if isinstance(cell.value, int) and rounded.denominator == 1 else float(rounded), why


def _value(reported: Reported, name: str, expression: Any, cell: Printed, where: str) -> Spread:
    values = list(_values(reported, name, expression, cell, where))
    if len(values) != 1:
        raise UserError(f"{where}: one value is needed, {expression} gives {len(values)}")
    return values[0]


def _values(reported: Reported, name: str, expression: Any, cell: Printed, where: str) -> Iterator[Spread]:
    """A number or an operation gives one value, a selector one for every cell."""
    if isinstance(expression, int | float) and not isinstance(expression, bool):
        yield exactly(expression)
    elif not isinstance(expression, dict) or not expression:
        raise UserError(f"{where}: {expression!r} is not a number, a selector or one of {', '.join(OPERATIONS)}")
    elif next(iter(expression)) in OPERATIONS:
        if len(expression) > 1 or not isinstance(next(iter(expression.values())), list):
            raise UserError(f"{where}: {expression!r} is not one operation on a list")
        ((operation, operands),) = expression.items()
        if operation == "count":
            yield exactly(sum(len(_sources(reported, name, operand, cell, where)) for operand in operands))
        else:
            inputs = [value for operand in operands for value in _values(reported, name, operand, cell, where)]
            yield combine(operation, inputs, f"{where}.{operation}")
    else:
        for source in _sources(reported, name, expression, cell, where):
            if source.value is not None:
                table = reported.tables[expression.get(TABLE, name)]
                value, slack = Fraction(str(source.value)), Fraction(0 if table.exact else 1, 2 * 10**table.decimals)
                yield Spread(value - slack, value, value + slack)
            elif expression.get(LOST) != "skip":
                raise UserError(f"{where}: {source.row}, {source.column} is lost; `lost: skip` leaves such cells out")


def _sources(reported: Reported, name: str, selector: Any, cell: Printed, where: str) -> list[Printed]:
    """The cells that a selector means, seen from the checked cell: axes that it does not name stay as they are."""
    if not isinstance(selector, dict):
        raise UserError(f"{where}: {selector!r} is not a selector")
    other = selector.get(TABLE, name)
    if other not in reported.tables:
        raise UserError(f"{where}: no table {other!r}: {near(str(other), reported.tables)}")
    inherited = {axis: value for axis, value in cell.at.items() if axis in reported.tables[other].axes}
    named = {axis: value for axis, value in selector.items() if axis not in (TABLE, LOST)}
    return _cells(reported, other, inherited | named, where)


def combine(operation: str, values: list[Spread], where: str) -> Spread:
    """`sum`, `mean`, `minus` (two), `times` or `ratio` (two) of values, with the widest spread that theirs allow."""
    if not values or (operation in ("minus", "ratio") and len(values) != 2):
        raise UserError(f"{where}: {'values are' if not values else 'two values are'} needed, {len(values)} given")
    total = values[0]
    for value in values[1:]:
        if operation in ("sum", "mean"):
            total = Spread(total.low + value.low, total.mid + value.mid, total.high + value.high)
        elif operation == "minus":
            total = Spread(total.low - value.high, total.mid - value.mid, total.high - value.low)
        else:
            if operation == "ratio":
                if value.low <= 0 <= value.high:
                    raise UserError(f"{where}: the divisor may be 0")
                value = Spread(1 / value.high, 1 / value.mid, 1 / value.low)
            corners = [a * b for a in (total.low, total.high) for b in (value.low, value.high)]
            total = Spread(min(corners), total.mid * value.mid, max(corners))
    n = len(values) if operation == "mean" else 1
    return Spread(total.low / n, total.mid / n, total.high / n)
