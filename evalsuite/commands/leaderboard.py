"""`esc-eval leaderboard`: one board over any number of run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.paths import Writes
from core.tables import to_console
from evalsuite.commands.options import IN_RUN, JudgedByOption
from evalsuite.report.board import board
from evalsuite.report.report import write_report
from evalsuite.runs.records import read_runs


def leaderboard(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Scored run folders."), IN_RUN],
    judge: JudgedByOption = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for leaderboard.html, .json, .md and every table as CSV."),
        Writes(("leaderboard.*", "tables/*")),
    ] = Path("runs/leaderboard"),
) -> None:
    """One board over the supporters of several runs.

    Runs compare where they were made alike: framework, mode, seeker, prompts, exchanges, judge and rubric. A run that differs
    from the first one is left out, and the board says why. Only cards and trials that all the others have count.

    Example: esc-eval leaderboard runs/esc_eval/model-a runs/esc_eval/model-b --out runs/board
    """
    content = board(read_runs(runs, least=1, judge=judge))
    paths = write_report(out, content, "leaderboard")
    console = Console()
    for table in content.tables:
        if table.key.startswith(("leaderboard", "runs")):
            to_console(table, console)
    for warning in content.cautions:
        console.print(warning, markup=False, highlight=False)
    for kind, path in paths.items():
        console.print(f"{kind}: {path}", soft_wrap=True, highlight=False, markup=False)
