"""`python -m data_prep VERB`: build the data that training and evaluation use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from data_prep import synthetic
from serve.errors import run_cli
from serve.files import write_json, write_jsonl

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@app.callback()
def verbs() -> None:
    """Build the data that training and evaluation use."""


@app.command("score-set")
def score_set(
    out: Annotated[Path, typer.Option(help="Folder for dialogues.jsonl and scores.jsonl.")],
    seed: Annotated[int, typer.Option(help="Another seed draws other degradations.")] = 0,
) -> None:
    """Write the synthetic score set: dialogues whose seven scores hold by construction, en and zh.

    Good hand-written dialogues and their controlled degradations; the rules are in data_prep/synthetic_rules.py.
    """
    dialogues, scores = synthetic.build(seed)
    write_jsonl(out / "dialogues.jsonl", dialogues)
    write_jsonl(out / "scores.jsonl", scores)
    rows = synthetic.describe(scores)
    console = Console()
    console.print(f"{len(dialogues)} dialogues, {len(scores)} scores in {out} (synthetic: scores hold by construction)")
    for row in rows:
        counts = "  ".join(f"{label}: {count}" for label, count in enumerate(row.counts))
        console.print(f"{row.language} {row.dimension:<12} {counts}  majority {100 * row.majority:.1f} %", highlight=False)
    manifest = {"seed": seed, "dialogues": len(dialogues), "scores": len(scores), "synthetic": True}
    write_json(out / "manifest.json", manifest)


if __name__ == "__main__":
    run_cli(app)
