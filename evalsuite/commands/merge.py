"""merge: the shards of one run as one run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evalsuite.commands.options import IN_RUN, OUT_RUN
from evalsuite.report.content import report_run
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run


def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="The run folders of all shards, in any order."), IN_RUN],
    out: Annotated[Path, typer.Option("--out", help="Run folder to make: what one unsharded run would have left."), OUT_RUN],
) -> None:
    """Put the shards of one run (run, simulate or score with --shard I/N) together, and write its report.

    Records, config, usage and finished calls are those of one run, byte for byte; seconds are added up. A shard that is
    missing, doubled, unfinished or of another config is refused, before anything is written. Example:

    esc-eval merge runs/full-1 runs/full-2 runs/full-3 runs/full-4 --out runs/full
    """
    console = Console()
    dialogues = shards.merge(folders, out)
    console.print(f"{out}: {len(dialogues)} dialogues of {len(folders)} shards", highlight=False, markup=False, soft_wrap=True)
    with open_run(out) as run:
        if "score" in run.config():
            report_run(run, console)
    if lost := sum(dialogue.lost for dialogue in dialogues):
        print(
            f"error: {lost} dialogues are missing because a server failed. Run the shards' command without --shard and with "
            f"--out {out} to ask only for those",
            file=sys.stderr,
        )
        raise typer.Exit(1)
