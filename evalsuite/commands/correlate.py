"""`esc-eval correlate`: judges and metrics against people (tables 3, 13, 14 and 15 of ESC-Eval)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from rich.console import Console

from data_prep.records import HumanScore, Judgement
from data_prep.scores.human import read_dialogues
from evalsuite.commands.output import deliver
from evalsuite.statistics.agreement import of_annotators, read_gold, read_judgements
from evalsuite.statistics.coefficients import LEVELS
from evalsuite.statistics.correlation import PairBy, Pairing, SampleBy, correlation_tables, correlations
from evalsuite.statistics.summary import Value, scorer_of
from serve.errors import UserError, near

console = Console()
T = TypeVar("T", bound=str)


def correlate(
    judgements: Annotated[
        list[Path], typer.Option(help="Judgement records (JSONL) of any judges or metrics. Repeat for more files.")
    ],
    gold: Annotated[
        list[Path],
        typer.Option(help="HumanScore records (JSONL, or CSV with its columns). Annotators are averaged. Repeatable."),
    ],
    dialogues: Annotated[
        list[Path], typer.Option(help="Dialogue records (JSONL) of everything scored: they say sample and system. Repeatable.")
    ],
    level: Annotated[
        str | None,
        typer.Option(
            help="sample: within each sample across its systems, then averaged. dataset: all pairs at once. Without it, both."
        ),
    ] = None,
    value: Annotated[
        str, typer.Option(help="The judge's figure: value, its verdict, or expected, the mean of its token probabilities.")
    ] = "value",
    pair_by: Annotated[
        str,
        typer.Option(
            help="dialogue: pair scores of the same dialogue. system: pair those of the same sample and system, also when "
            "people judged other dialogues than the judge did, as in tables 3 and 13 to 15."
        ),
    ] = "dialogue",
    sample: Annotated[
        str,
        typer.Option(
            help="What a sample is. card: a dialogue's card, else its profile, else its source_id. source: its source_id, "
            "which a situation shares with the dialogues simulated on the card made of it."
        ),
    ] = "card",
    annotator: Annotated[
        list[str] | None, typer.Option(help="Only the human scores that this annotator gave. Repeat for more.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, from -1 to 1.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for correlation.json and every table as CSV.")] = None,
) -> None:
    """Spearman, Pearson and Kendall (tau-b) of judges' scores with human ones, each dimension with each, with intervals.

    A coefficient that is not defined (equal scores, or one system only) is a dash, never 0, and is in no mean. Metrics come in
    as judgements too. Turns and repeats are averaged to their dialogue first.

    Tables 3 and 13 to 15 of ESC-Eval: import what people held and rated (`python -m data_prep import-held`), simulate and score
    on cards made of the same situations, have the supporters answer the situations' own dialogues (`esc-eval respond`, then
    `esc-eval metrics --judgements-out`), and give all of it here with --pair-by system --sample source.
    """
    levels = LEVELS if level is None else (_choice("--level", level, LEVELS),)
    figure: Value = _choice("--value", value, get_args(Value))
    by: PairBy = _choice("--pair-by", pair_by, get_args(PairBy))
    kind: SampleBy = _choice("--sample", sample, get_args(SampleBy))
    verdicts, scores = _read_judgements(judgements), _read_gold(gold, annotator or [])
    found = correlations(verdicts, scores, read_dialogues(dialogues), figure, Pairing(by, kind), levels)
    tables = correlation_tables(found)
    deliver("correlation", {"correlation": [each.row() for each in found]}, tables, out, as_json)


def _choice(option: str, given: str, known: tuple[T, ...]) -> T:
    for name in known:
        if given == name:
            return name
    raise UserError(f"{option}: unknown {option.removeprefix('--')} {given!r}: {near(given, known)}")


def _read_judgements(paths: Iterable[Path]) -> list[Judgement]:
    found = [(path, each) for path in paths for each in read_judgements(path)]
    _refuse_twice((path, j.dialogue_id, j.dimension, j.judge, scorer_of(j), j.rubric, j.turn, j.repeat) for path, j in found)
    return [each for _, each in found]


def _read_gold(paths: Iterable[Path], annotators: Sequence[str]) -> list[HumanScore]:
    found = [(path, each) for path in paths for each in read_gold(path)]
    _refuse_twice((path, s.dialogue_id, s.dimension, s.annotator, s.rubric, s.turn) for path, s in found)
    return of_annotators([each for _, each in found], annotators)


def _refuse_twice(given: Iterable[tuple[Any, ...]]) -> None:
    """Raise `UserError` for (file, dialogue, dimension, who, …) of which all but the file came before."""
    seen: dict[Hashable, Path] = {}
    for path, *rest in given:
        key = tuple(rest)
        if key in seen:
            raise UserError(f"{path}: {key[2]} scored dialogue {key[0]}, dimension {key[1]} twice (first in {seen[key]})")
        seen[key] = path
