"""`python -m data_prep VERB`: build the data that training and evaluation use."""

from __future__ import annotations

from core.starting import interrupted  # noqa: F401 - before what takes long to load

from core.errors import run_cli
from core.verbs import program
from data_prep.commands import (
    annotate,
    annotate_dialogues,
    cards,
    check,
    corpora,
    imports,
    profiles,
    rank_sft,
    role_sft,
)

app = program("Build the data that training and evaluation use.")
app.command("fetch")(corpora.fetch)
app.command("read")(corpora.read)
app.command("import")(imports.import_)
cards.app.add_typer(annotate.app, name="annotate")
app.add_typer(cards.app, name="cards")
app.add_typer(profiles.app, name="profiles")
app.command("role-sft")(role_sft.role_sft)
app.command("check")(check.check)
app.add_typer(annotate_dialogues.app, name="annotate-dialogues")
app.add_typer(annotate_dialogues.rescore, name="rescore")
app.command("score-set")(rank_sft.score_set)
app.command("rank-sft")(rank_sft.rank_sft)


def main() -> None:
    """Entry point of the console script."""
    run_cli(app)


if __name__ == "__main__":
    main()
