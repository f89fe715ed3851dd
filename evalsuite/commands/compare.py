"""`esc-eval compare`: run folders side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.files import write_text
from core.tables import to_markdown
from evalsuite.commands.options import IN_RUN, JsonOption, JudgedByOption, ValueOption, out_tables, value_of
from evalsuite.commands.output import deliver
from evalsuite.runs.records import read_runs
from evalsuite.statistics import comparison as comparisons


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN…", help="Scored run folders, the one to compare with first."), IN_RUN
    ],
    judge: JudgedByOption = None,
    value: ValueOption = "value",
    as_json: JsonOption = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Also write compare.json, compare.md and a CSV file of every table into this folder."),
        out_tables("compare", "compare.md"),
    ] = None,
) -> None:
    """Runs side by side: scores, paired differences with tests, and what else changed between their configs.

    A supporter that two runs have is compared with itself (another prompt, another judge, another seeker); supporters that only
    one of them has are compared with those that only the other has. Differences are taken card by card, over the cards that
    both sides have; the runs must be scored on the same rubric.

    Example: esc-eval compare runs/before runs/after --out runs/before-after
    """
    comparison = comparisons.compare(read_runs(runs, judge=judge), value_of(value))
    tables = comparisons.tables(comparison)
    if out is not None:
        write_text(out / "compare.md", "\n".join(to_markdown(table) for table in tables))
    deliver("compare", comparisons.as_json(comparison), tables, out, as_json)
