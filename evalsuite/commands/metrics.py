"""`metrics` measures replies against reference replies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.errors import UserError
from core.files import write_jsonl
from core.paths import IN_FILE, OUT_FILE
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import JsonOption, TablesOption, out_tables
from evalsuite.commands.output import deliver
from evalsuite.statistics.text_figures import figures, figures_json, metric_tables
from evalsuite.statistics.text_metrics import Response, judgements, measure, paired, read_responses

console = Console()


def metrics(
    responses: Annotated[
        list[Path] | None,
        typer.Option("--responses", help="Replies (JSONL) as `respond` writes them. Repeat for more supporters."),
        IN_FILE,
    ] = None,
    dialogues: Annotated[
        list[Path] | None,
        typer.Option("--dialogues", help="Instead: whole dialogues (JSONL), compared with --references."),
        IN_FILE,
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option(
            "--references",
            help="Reference dialogues (JSONL) of the same id, else of the same card or source id: a supporter's k-th reply is "
            "compared with the reference's k-th.",
        ),
        IN_FILE,
    ] = None,
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("metrics")] = None,
    judgements_out: Annotated[
        Path | None,
        typer.Option(
            "--judgements-out", help="JSONL file for every reply's own values, which `correlate` takes as judgements."
        ),
        OUT_FILE,
    ] = None,
) -> None:
    """BLEU-1/2/4, ROUGE-1/2/L, METEOR and Distinct-1/2 of replies, per supporter, with n and intervals over dialogues.

    All figures are 0–100. English is counted in words, Chinese in characters and in jieba's words. How each was counted
    (tokenizer, smoothing, METEOR's matchers, versions) is printed below the tables.

    Example: esc-eval metrics --responses runs/replies/responses.jsonl --judgements-out metrics.jsonl
    """
    replies = _replies(responses or [], dialogues or [], references or [])
    samples = measure(replies)
    rows = figures(samples)
    tables = metric_tables(rows, replies)
    if judgements_out is not None:
        write_jsonl(judgements_out, judgements(samples))
    deliver("metrics", figures_json(rows), tables, out, as_json)


def _replies(responses: list[Path], dialogues: list[Path], references: list[Path]) -> list[Response]:
    if bool(responses) == bool(dialogues):
        raise UserError("give either --responses, or --dialogues with --references")
    if bool(dialogues) != bool(references):
        raise UserError("--dialogues and --references go together")
    replies = read_responses(responses) if responses else paired(read_dialogues(dialogues), read_dialogues(references))
    if all(response.lost for response in replies):
        raise UserError(f"{', '.join(map(str, responses or dialogues))}: no reply to measure")
    return replies
