"""`import-held` turns dialogues that people held with supporters, and their ratings, into a score set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.ledger import Build
from core.options import OutOption, console, writes
from core.paths import IN_FILE
from data_prep.commands.scores import Rubrics
from data_prep.scores.held import read_held, read_ratings, references
from data_prep.scores.human import Check, Imported


def import_held(
    dialogues: Annotated[
        list[Path],
        typer.Option(
            "--dialogues",
            help="JSONL with one dialogue a line (situation, supporter, language, turns of role and text), or CSV with one "
            "utterance a row (situation, supporter, language, role, text); role is seeker or supporter. Optional: trial, from "
            "0, for several dialogues on one situation with one supporter. Repeat for more files.",
        ),
        IN_FILE,
    ],
    scores: Annotated[
        list[Path],
        typer.Option(
            "--gold",
            help="CSV or JSONL with one rating a row: situation, supporter, annotator, rubric, dimension, value and, where the "
            "dialogues have it, trial. Repeat for more files.",
        ),
        IN_FILE,
    ],
    out: Annotated[OutOption, writes("dialogues.jsonl", "scores.jsonl", "references.jsonl")],
    reference: Annotated[
        list[Path] | None,
        typer.Option(
            "--references",
            help="JSONL file with the corpus's own dialogues of the situations (Dialogue records whose source_id is the "
            "situation, as import-scores writes ESConv's). Those needed are written to references.jsonl.",
        ),
        IN_FILE,
    ] = None,
    rubric: Rubrics = None,
) -> None:
    """Dialogues that people held with supporters, with their ratings: OUT/dialogues.jsonl and OUT/scores.jsonl.

    Each situation was talked over with every supporter, as in section 3.3 of ESC-Eval. Every row must be right. A dialogue that
    nobody rated is left out and counted. `esc-eval correlate --pair-by system --sample source` pairs these ratings with scores
    of simulated dialogues on cards made of the same situations, and with metrics of replies on references.jsonl.
    """
    build = Build(out, "import-held")
    held = read_held(dialogues)
    ratings = read_ratings(scores, held, Check(rubric or []))
    texts = references(reference, held) if reference else []
    for path in (*dialogues, *scores, *(reference or []), *(rubric or [])):
        build.input(path)
    Imported(dialogues=list(held.values()), scores=ratings).write(build)
    if reference:
        build.write("references.jsonl", texts)
    situations, supporters = {talk.situation for talk in held}, {talk.supporter for talk in held}
    console.print(f"{len(situations)} situations × {len(supporters)} supporters: {len(held)} dialogues")
    build.finish(console)
