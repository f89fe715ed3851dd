"""`python -m data_prep VERB`: build the data that training and evaluation use."""

from __future__ import annotations

import typer

from data_prep.commands import corpora, role_sft, score_set
from serve.errors import run_cli

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Build the data that training and evaluation use.")
app.command("sources")(corpora.sources)
app.command("read")(corpora.read)
app.command("role-sft")(role_sft.role_sft)
app.command("score-set")(score_set.score_set)

if __name__ == "__main__":
    run_cli(app)
