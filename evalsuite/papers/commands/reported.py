"""`esc-eval paper reported`: the papers' own tables, as printed and recomputed."""

from typing import Annotated

import typer

from core.paths import InName
from evalsuite.commands.output import deliver, plain
from evalsuite.papers.reported import load_reported
from evalsuite.papers.reported.against import as_printed, disagreement_table, listed, meant
from evalsuite.papers.reported.recomputation import check


def reported(
    table: Annotated[
        list[str] | None,
        typer.Argument(help="The table to print: its number in the paper (4, table4), or `text` for numbers in the text."),
    ] = None,
    paper: Annotated[
        InName, typer.Option("--paper", help="The paper: a name in configs/reported, or a folder of such files (with a /).")
    ] = "esc_eval",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON: without TABLE, a list of paper, table, row, column, printed, recomputed and slack.",
        ),
    ] = False,
) -> None:
    """Print a paper's table; without TABLE, list its tables and the printed figures that contradict others.

    Every figure that follows from others is recomputed, and those that disagree are listed; the exit code is 0 either way.

    Example: esc-eval paper reported 4
    """
    tables = load_reported(paper)
    if table:
        printed = as_printed(tables, meant(tables, " ".join(table)))
        deliver("reported", plain([printed]), [printed], None, as_json)
        return
    checked = check(tables)
    figures = [disagreement.record() for disagreement in checked.disagreements]
    deliver("reported", figures, [listed(tables), disagreement_table(tables, checked)], None, as_json)
