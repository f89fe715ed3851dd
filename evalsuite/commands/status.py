"""`esc-eval status`: how far a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.errors import UserError
from core.tables import to_console
from evalsuite.commands.options import IN_RUN
from evalsuite.runs.folder import Run
from evalsuite.runs.status import status as tables


def status(
    folder: Annotated[Path, typer.Option("--run", help="A run folder; a run may be at work in it."), IN_RUN],
) -> None:
    """How far a run is: calls answered and failed by role and model, how many answers are empty, refused, cut off or
    unreadable (what --retry of run, simulate and score asks again), and what is missing."""
    if not (folder / "calls.sqlite").exists():
        raise UserError(f"not a run folder (no calls.sqlite): {folder}")
    run = Run(folder)
    try:
        for table in tables(run):
            to_console(table, Console())
    finally:
        run.store.close()
