"""What verbs do with their figures: tables on the console, JSON on standard output, JSON and CSV files in a folder."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from data_prep.tables import Table, to_console, write_csv
from serve.files import write_json


def deliver(
    name: str,
    figures: Any,
    tables: Sequence[Table],
    out: Path | None,
    as_json: bool,
    printed: Sequence[Table] | None = None,
) -> bool:
    """Write OUT/NAME.json with `figures` and every table as OUT/KEY.csv; print the figures as JSON, or `printed` (without it,
    all tables). Returns whether tables were printed."""
    if out is not None:
        write_json(out / f"{name}.json", figures)
        write_csv(name, tables, out)
    if as_json:
        print_json(figures)
        return False
    console = Console()
    for table in tables if printed is None else printed:
        to_console(table, console)
    return True


def print_json(figures: Any) -> None:
    """Figures on standard output, for programs."""
    sys.stdout.write(orjson.dumps(figures, option=orjson.OPT_INDENT_2).decode() + "\n")


def plain(tables: Sequence[Table]) -> dict[str, Any]:
    """Tables as figures: JSON for verbs whose figures are all in their tables."""

    def cell(value: Any) -> Any:
        return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value

    return {
        "tables": [
            {"key": t.key, "title": t.title, "columns": t.columns, "rows": [[cell(c) for c in row] for row in t.rows]}
            for t in tables
        ]
    }


def exit_if_lost(lost: int, total: int, what: str) -> None:
    """Exit code 1 where a server failed before `lost` of the `total` things were there; running again asks only for those."""
    if lost:
        print(
            f"error: {lost} of {total} {what} are missing because a server failed. "
            "Run the same command again to ask only for those",
            file=sys.stderr,
        )
        sys.exit(1)
