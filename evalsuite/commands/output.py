"""The output of verbs: tables on the console, JSON on standard output, JSON and CSV files in a folder."""

import dataclasses
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.text import Text

from core.errors import clean, say
from core.files import write_json
from core.options import console
from core.tables import Screen, Table, to_console, write_csv
from evalsuite.report.sheet import Sheet, as_figures, write_sheet

LINES = 6  # how many findings, and changed lines of a text, the console shows


def deliver(
    name: str, figures: Any, tables: Sequence[Table], out: Path | None, as_json: bool, printed: Sequence[Table] | None = None
) -> bool:
    """Write OUT/NAME.json with `figures` and every table as OUT/KEY.csv; print the figures as JSON, or `printed` (without it,
    all tables). Returns whether tables were printed."""
    if out is not None:
        write_json(out / f"{name}.json", figures)
        write_csv(name, tables, out)
    if as_json:
        print_json(figures)
        return False
    for table in tables if printed is None else printed:
        to_console(table, console)
    return True


def print_paths(paths: Mapping[str, Path]) -> None:
    """Print the paths of written files, one line per kind."""
    for kind, path in paths.items():
        console.print(f"{kind}: {path}", soft_wrap=True)


def talk(as_json: bool) -> Console:
    """The console for progress and remarks: with --json, standard output has only the JSON."""
    return Screen(stderr=True) if as_json else console


def deliver_page(
    name: str, sheet: Sheet, out: Path | None, as_json: bool = False, printed: Sequence[Table] | None = None
) -> bool:
    """Write the page to `out`. Print it as JSON, or its findings with the `printed` tables (default: all) as `deliver` does."""
    paths = {} if out is None else write_sheet(out, name, sheet)
    if as_json:
        print_json(as_figures(sheet))
        return False
    for lines in (sheet.findings, [f"Caution: {line}" for line in sheet.cautions]):
        for line in [*lines[:LINES], *[f"… and {len(lines) - LINES} more"] * (len(lines) > LINES)]:
            console.print(Text(clean(line)))
    for title, lines in sheet.texts[:1]:
        more = [f"… {len(lines)} lines of {len(sheet.texts)} texts in all"] * (len(lines) > LINES or len(sheet.texts) > 1)
        for line in [f"{title}:", *lines[:LINES], *more]:
            console.print(Text(clean(line)), no_wrap=True, overflow="ellipsis")
    for table in sheet.tables if printed is None else printed:
        to_console(table, console)
    print_paths(paths or {"html, json, md, csv": Path("--out DIR writes them")})
    return True


def print_json(figures: Any) -> None:
    """Print figures as JSON on standard output: UTF-8 in any locale, as JSON must be."""
    text = clean(orjson.dumps(figures, option=orjson.OPT_INDENT_2).decode() + "\n", lambda sign: f"\\u{ord(sign[0]):04x}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
    else:
        sys.stdout.write(text)


def plain(tables: Sequence[Table]) -> dict[str, Any]:
    """Tables as figures: JSON for verbs whose figures are all in their tables."""

    def cell(value: Any) -> Any:
        return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value

    fields = ("key", "title", "columns")
    rows = ([[cell(value) for value in row] for row in table.rows] for table in tables)
    return {"tables": [{name: getattr(t, name) for name in fields} | {"rows": r} for t, r in zip(tables, rows, strict=True)]}


def exit_if_lost(lost: int, total: int, what: str, failures: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> None:
    """Exit with code 1 if a failed server left `lost` of the `total` dialogues, verdicts or replies (`what`) missing. The error
    quotes the first reason among a run's `failures` (`Run.failures`)."""
    if lost:
        cause = next((f": {call['reason']}" for calls in (failures or {}).values() for call in calls), "")
        say(
            f"error: {lost} of {total} {what} are missing because a server failed{cause}. "
            "Run the same command again to ask only for those",
            err=True,
        )
        sys.exit(1)
