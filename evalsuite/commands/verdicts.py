"""Judges' verdicts that `agree` and `correlate` are given: in files of any judges, or in run folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.paths import IN_RUNS, Reads
from core.records import Judgement
from evalsuite.runs import shards
from evalsuite.runs.judgement_sets import sets_of

IN_VERDICTS = Reads(
    "place", ("judgements.jsonl", "gold_judgements.jsonl", "judges/*/judgements.jsonl", "judges/*/gold_judgements.jsonl")
)
MaybeVerdicts = Annotated[list[Path] | None, IN_VERDICTS]
VERDICTS = "Verdicts of any judges: Judgement records (JSONL, or CSV with their columns), or a run folder. Repeat for more."
OnlyJudgeOption = Annotated[
    list[str] | None, typer.Option("--judge", help="Only the verdicts of this judge. Repeat for more; without it, all.")
]


def verdict_files(places: Sequence[Path], gold: Sequence[Path]) -> Iterator[Path]:
    """The files of verdicts, those of all judges where a run folder is given: on its dialogues, or on its gold set where
    `gold` is that. Raises `UserError` for a folder without any."""
    golden = {path.parent.resolve() for path in gold if path.name == IN_RUNS["--gold"]}
    for place in places:
        if not place.is_dir():
            yield place
            continue
        name = "gold_judgements.jsonl" if place.resolve() in golden else "judgements.jsonl"
        folders = [one.folder for one in sets_of(place, shards.whole(place))] or [place]
        found = [folder / name for folder in folders if (folder / name).exists()]
        if not found:
            raise UserError(f"--judgements {place}: no {name} in it: run `esc-eval score {place} --config CONFIG` first")
        yield from found


def of_judges(verdicts: Sequence[Judgement], judges: Sequence[str] | None) -> list[Judgement]:
    """The verdicts of these judges (all where none is named); `UserError` for one that gave none."""
    known = {verdict.judge for verdict in verdicts}
    for name in judges or []:
        if name not in known:
            raise UserError(f"--judge {name}: gave none of the verdicts: {near(name, known)}")
    return [verdict for verdict in verdicts if not judges or verdict.judge in judges]
