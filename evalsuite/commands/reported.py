"""`esc-eval reported`: the papers' own tables, as printed and recomputed."""

from __future__ import annotations

from typing import Annotated

import typer

from core.options import console
from core.paths import InName
from core.tables import to_console
from core.verbs import Verbs
from evalsuite.commands.output import print_json
from evalsuite.reported.against import as_printed, disagreement_table, listed, meant
from evalsuite.reported.recomputation import check as recompute
from evalsuite.reported.tables import load_reported

reported = Verbs(
    no_args_is_help=True,
    help="The papers' tables as numbers (configs/reported): print one, or recompute all averages, totals and shares in them.",
    epilog="Example: esc-eval reported show 4",
)


PaperOption = Annotated[
    InName, typer.Option("--paper", help="Whose tables: a name in configs/reported, or a folder of such files (with a /).")
]


@reported.command()
def check(
    paper: PaperOption = "esc_eval",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of paper, table, row, column, printed, recomputed and its slack.")
    ] = False,
) -> None:
    """Recompute every figure that follows from others and list those that disagree. The exit code is 0 either way."""
    tables = load_reported(paper)
    checked = recompute(tables)
    if as_json:
        print_json([one.record() for one in checked.disagreements])
        return
    to_console(disagreement_table(tables, checked), console)


@reported.command()
def show(
    table: Annotated[
        list[str] | None,
        typer.Argument(help="Which table: its number in the paper (4, table4), or `text` for numbers in its text."),
    ] = None,
    paper: PaperOption = "esc_eval",
) -> None:
    """Print a table as it is in the paper; the shares of table 4 with their n. Without a table, list all."""
    loaded = load_reported(paper)
    to_console(as_printed(loaded, meant(loaded, " ".join(table))) if table else listed(loaded), console)
