"""`esc-eval discriminate`: how well scores tell models apart (EmoHarbor, table 2 and appendix E)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError
from core.paths import IN_FILE
from evalsuite.commands.options import (
    IN_RUN,
    HarbourOption,
    JsonOption,
    JudgedByOption,
    TablesOption,
    ValueOption,
    out_tables,
    value_of,
)
from evalsuite.commands.output import deliver
from evalsuite.reported.against import against
from evalsuite.runs.records import read_run
from evalsuite.statistics import discrimination
from evalsuite.statistics.leaderboard import contestants_of


def discriminate(
    scores: Annotated[
        Path | None,
        typer.Option(help="CSV or JSONL of user, model, score: one row a user and model; an empty score (null) is unreadable."),
        IN_FILE,
    ] = None,
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="Scored run folder: its cards or profiles are the users, its supporters the models."
        ),
        IN_RUN,
    ] = None,
    judge: JudgedByOption = None,
    value: ValueOption = "value",
    versus: HarbourOption = None,
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("discriminate")] = None,
) -> None:
    """How well scores tell models apart: MSR, MAC, analysis of variance, and which pairs of models differ.

    MSR is the variance of the models' means by the mean variance of a model's scores among users, MAC = MSR / (1 + MSR). F
    comes twice: as the paper's formula 13 has it (f_paper) and as one-way analysis of variance has it, whose p is printed.
    Pairs are tested by a paired sign-flip permutation test over the users of both, with Holm's correction. With fewer than six
    users no pair can reach 0.05, whatever the scores.

    What is undefined (one model, one user, no variance) is a dash with the reason below, in JSON null with the reason under
    `undefined`. Missing scores: a model's mean and variance are over its own users, a pair is tested over the users of both.

    JSON of --scores: msr, mac, anova {f_paper, f, p, df}, pairwise {p: {"A vs B": corrected p}, test, correction, proportion,
    pairs …}, intervals and counts. JSON of a run: a list of the same for every language, judge and dimension, and their
    average.

    Example: esc-eval discriminate --scores scores.csv --json
    """
    if (scores is None) == (run is None):
        raise UserError("what to look at: give either a run folder or --scores FILE")
    if scores is not None:
        for option, given in {"--value": value != "value", "--judge": judge is not None}.items():
            if given:
                raise UserError(f"{option}: belongs to a run folder; a sheet of scores has one score a row")
        discriminated = discrimination.discriminate(*discrimination.read_ratings(scores))
        deliver("discriminate", discriminated.figures(), against(discrimination.tables(discriminated), versus), out, as_json)
        return
    assert run is not None
    records = read_run(run.name, run, judge=judge)
    whole = [judgement for judgement in records.judgements if judgement.turn is None]
    contestants = contestants_of(records.dialogues, whole, records.rubric, value_of(value))
    if not contestants:
        raise UserError(
            f"no verdict on a whole dialogue on rubric {records.rubric.name}: there is nothing to tell supporters apart by"
        )
    rows = discrimination.of_run(contestants, records.rubric)
    tables = against(discrimination.run_tables(rows, records.rubric), versus)
    deliver("discriminate", {"discrimination": [row.row() for row in rows]}, tables, out, as_json)
