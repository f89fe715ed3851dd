"""`esc-eval export`: a run in the forms of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.options import console
from core.paths import Writes
from evalsuite.commands.options import InRun
from evalsuite.report.inspect_logs import write_inspect_logs
from evalsuite.runs.folder import open_run


def export(
    folder: Annotated[InRun, typer.Argument(metavar="RUN", help="Scored run folder.")],
    inspect: Annotated[
        Path, typer.Option("--inspect", metavar="DIR", help="Folder for logs of Inspect, one a supporter."), Writes(("*.eval",))
    ],
) -> None:
    """A run as logs of Inspect: dialogues with their scores, usage and models by role, for `inspect view --log-dir DIR`.

    A sample is a dialogue as its supporter saw it, an epoch is a trial, and every judge is a scorer with a value a dimension.
    The other way, ESC-Eval with Inspect's own models, is `inspect eval evalsuite/inspect_task.py`.

    Example: esc-eval export runs/quick --inspect runs/quick/inspect
    """
    with open_run(folder) as run:
        for path in write_inspect_logs(run, inspect):
            console.print(str(path), soft_wrap=True)
