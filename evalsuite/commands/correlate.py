"""`esc-eval correlate`: judges and metrics against people (tables 3, 13, 14 and 15 of ESC-Eval)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from core.errors import UserError
from core.options import choice
from core.paths import IN_FILE
from core.rubrics import known_rubric, load_rubric
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import AgainstOption, JsonOption, TablesOption, ValueOption, out_tables, value_of
from evalsuite.commands.output import deliver
from evalsuite.commands.verdicts import IN_VERDICTS, VERDICTS, OnlyJudgeOption, of_judges, verdict_files
from evalsuite.reported.against import against
from evalsuite.statistics.agreement import gold_scores_of, judgements_of, of_annotators
from evalsuite.statistics.coefficients import LEVELS
from evalsuite.statistics.correlation import PairBy, Pairing, SampleBy, alignment_tables, correlation_tables, correlations

_FROM_DIALOGUES = ("system", "source", "sample")  # choices of options that need to know the dialogues
_WITHOUT = "without --dialogues, the sample level; intervals are over dialogues, each taken as a sample of its own"


def correlate(
    judgements: Annotated[list[Path], typer.Option(help=VERDICTS), IN_VERDICTS],
    gold: Annotated[
        list[Path],
        typer.Option(
            help="HumanScore records (JSONL, or CSV with its columns), or a run folder for its gold set. Annotators are "
            "averaged. Repeatable."
        ),
        IN_FILE,
    ],
    judge: OnlyJudgeOption = None,
    dialogues: Annotated[
        list[Path] | None,
        typer.Option(
            help="Dialogue records (JSONL) of everything scored: they say sample and system. Repeatable. Without them, scores "
            "of one dialogue_id are paired, and there is no sample level."
        ),
        IN_FILE,
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            help="sample: within each sample across its systems, then averaged. dataset: all pairs at once. Without it, both."
        ),
    ] = None,
    value: ValueOption = "value",
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
    rubric: Annotated[
        list[Path] | None,
        typer.Option(help="A rubric file of your own: dimensions with different scales are averaged on 0-100. Repeatable."),
        IN_FILE,
    ] = None,
    versus: AgainstOption = None,
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("correlation")] = None,
) -> None:
    """Spearman, Pearson and Kendall (tau-b) of judges' scores with human ones, each dimension with each, with intervals.

    A coefficient that is not defined (equal scores, or one system only) is a dash, never 0, and is in no mean. Metrics come in
    as judgements too. Turns and repeats are averaged to their dialogue first.

    Tables 3 and 13 to 15 of ESC-Eval: import what people held and rated (`python -m data_prep import-held`), simulate and score
    on cards made of the same situations, have the supporters answer the situations' own dialogues (`esc-eval respond`, then
    `esc-eval metrics --judgements-out`), and give all of it here with --pair-by system --sample source.
    """
    figure, levels = value_of(value), LEVELS if level is None else (choice("--level", level, LEVELS),)
    pairing = Pairing(choice("--pair-by", pair_by, get_args(PairBy)), choice("--sample", sample, get_args(SampleBy)))
    if not dialogues:
        for option, text in {"--pair-by": pair_by, "--sample": sample, "--level": level}.items():
            if text in _FROM_DIALOGUES:
                what = "what sample and system a dialogue belongs to is in the dialogues"
                raise UserError(f"{option} {text}: {what}: give --dialogues")
        levels = ("dataset",)
    verdicts, scores = (
        of_judges(judgements_of(verdict_files(judgements, gold)), judge),
        of_annotators(gold_scores_of(gold), annotator or []),
    )
    names = {verdict.rubric for verdict in verdicts} | {score.rubric for score in scores}
    rubrics = {name: known for name in sorted(names) if (known := known_rubric(name))}
    rubrics |= {loaded.name: loaded for loaded in map(load_rubric, map(str, rubric or []))}
    held = read_dialogues(dialogues) if dialogues else None
    rows, left_out = correlations(verdicts, scores, held, figure, pairing, levels, rubrics)
    for line in [*([] if dialogues else [_WITHOUT]), *left_out]:
        print(f"left out: {line}", file=sys.stderr)
    tables = against([*correlation_tables(rows), *alignment_tables(rows)], versus)
    deliver("correlation", {"correlation": [row.row() for row in rows]}, tables, out, as_json)
