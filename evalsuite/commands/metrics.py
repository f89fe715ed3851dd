"""`metrics` measures replies against reference replies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from data_prep.scores.human import read_dialogues
from data_prep.tables import Table, to_console, to_csv
from evalsuite.respond import Response, paired, read_responses
from evalsuite.text_figures import Figure, figures, figures_json, metric_tables
from evalsuite.text_metrics import judgements, measure
from serve.errors import UserError
from serve.files import write_json, write_jsonl, write_text

console = Console()


def metrics(
    responses: Annotated[
        list[Path] | None,
        typer.Option("--responses", help="Replies (JSONL) as `respond` writes them. Repeat for more supporters."),
    ] = None,
    dialogues: Annotated[
        list[Path] | None, typer.Option("--dialogues", help="Instead: whole dialogues (JSONL), compared with --references.")
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option(
            "--references",
            help="Reference dialogues (JSONL) of the same id, else of the same card or source id: a supporter's k-th reply is "
            "compared with the reference's k-th.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures and their signatures as JSON.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for metrics.json and a CSV file of each table.")] = None,
    judgements_out: Annotated[
        Path | None,
        typer.Option(
            "--judgements-out", help="JSONL file for every reply's own values, which `correlate` takes as judgements."
        ),
    ] = None,
) -> None:
    """BLEU-1/2/4, ROUGE-L, METEOR and Distinct-1/2 of replies, per supporter, with n and intervals over dialogues.

    All figures are 0–100. English is counted in words, Chinese in characters and in jieba's words. How each was counted
    (tokenizer, smoothing, METEOR's matchers, versions) is printed below the tables.

    Example: esc-eval metrics --responses runs/replies/responses.jsonl --judgements-out metrics.jsonl
    """
    given = _given(responses or [], dialogues or [], references or [])
    samples = measure(given)
    found = figures(samples)
    tables = metric_tables(found, given)
    if out is not None:
        write_figures(out, found, tables)
    if judgements_out is not None:
        write_jsonl(judgements_out, judgements(samples))
    if as_json:
        sys.stdout.write(orjson.dumps(figures_json(found), option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    for table in tables:
        to_console(table, console)


def write_figures(folder: Path, found: Sequence[Figure], tables: Sequence[Table]) -> None:
    """FOLDER/metrics.json with figures and signatures, and each table as KEY.csv."""
    write_json(folder / "metrics.json", figures_json(found))
    for table in tables:
        write_text(folder / f"{table.key}.csv", to_csv(table))


def _given(responses: list[Path], dialogues: list[Path], references: list[Path]) -> list[Response]:
    if bool(responses) == bool(dialogues):
        raise UserError("give either --responses, or --dialogues with --references")
    if bool(dialogues) != bool(references):
        raise UserError("--dialogues and --references go together")
    given = read_responses(responses) if responses else paired(read_dialogues(dialogues), read_dialogues(references))
    if all(response.termination == "infrastructure" for response in given):
        raise UserError(f"{', '.join(map(str, responses or dialogues))}: no reply to measure")
    return given
