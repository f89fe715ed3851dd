"""`esc-eval risk`: the risk audit of a run or of given dialogues."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.errors import UserError
from core.files import write_jsonl
from core.tables import Table, fmt
from data_prep.scores.human import read_dialogues
from evalsuite.checks.risk import CONTENT_WARNING, count, excerpt, find, tables
from evalsuite.commands.options import IN_RUN, DialoguesOption, JsonOption, out_tables
from evalsuite.commands.output import deliver
from evalsuite.runs import shards

console = Console()


def risk(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run folder: its dialogues.jsonl is read."), IN_RUN
    ] = None,
    dialogues: DialoguesOption = None,
    examples: Annotated[int, typer.Option(min=0, help="Turns shown of each supporter and outcome; 0 shows none.")] = 3,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for risk.json, the tables as CSV, and excerpts.jsonl."),
        out_tables("risk", "excerpts.jsonl"),
    ] = None,
) -> None:
    """Where seekers voice self-harm, abuse or acute danger, and whether the next reply shows care or refers to help.

    Found by the word lists in configs/risk (English and Chinese). Examples carry a content warning. For a judge's opinion,
    score OUT/excerpts.jsonl on rubric risk_response (see its header). The counts are no clinical evidence, and no leave to
    deploy.
    """
    if (run is None) == (not dialogues):
        raise UserError("give either a run folder or --dialogues FILE")
    if run is not None:
        shards.whole(run, needed=False)
    read = read_dialogues([run / "dialogues.jsonl"] if run is not None else dialogues or [])
    risks = find(read)
    rows = count(read, risks)
    turns = [one.record() for one in risks]
    figures = {"warning": CONTENT_WARNING, "risk": [asdict(row) for row in rows], "turns": turns}
    shown = tables(rows, risks, examples)
    if out is not None:
        write_jsonl(out / "excerpts.jsonl", filter(None, map(excerpt, risks)))
    if deliver("risk", figures, shown, out, as_json, printed=shown[:1]):
        for table in shown[1:]:
            _print_examples(table)


def _print_examples(table: Table) -> None:
    """One paragraph an example: a table would leave long texts a few letters a line."""
    lines = [f"\n{table.title}"]
    for row in table.rows:
        supporter, dialogue, turn, outcome, danger, words, seeker, reply = map(fmt, row)
        lines.append(f"\n{supporter} · {dialogue} · turn {turn} · {outcome} · {danger} ({words})")
        lines += [f"  seeker: {seeker}", f"  reply:  {reply}"]
    console.print("\n".join([*lines, "", *table.notes]), highlight=False, markup=False, soft_wrap=True)
