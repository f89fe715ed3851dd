"""`esc-eval trajectories`: what happens along a run's dialogues, and what one costs (EmoHarbor, figures 6 to 10, table 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.files import read_object
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
from evalsuite.statistics import dialogue_costs, survival, trends


def trajectories(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Scored run folder."), IN_RUN],
    judge: JudgedByOption = None,
    value: ValueOption = "value",
    versus: HarbourOption = None,
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("trajectories")] = None,
) -> None:
    """When seekers leave, how scores change from round to round, and what a dialogue costs.

    A round is a reply of the supporter and what the seeker makes of it. Survival is by Kaplan-Meier: a dialogue in which the
    seeker ends it counts as left, one that ran out of rounds or was stopped by anything else as watched so far; supporters are
    compared by log-rank tests, Holm's correction over pairs. Scores by round need verdicts on single turns (a config with
    per-turn judging); without them those tables are left out.

    Example: esc-eval trajectories runs/emoharbor --out runs/emoharbor/trajectories
    """
    records = read_run(run.name, run, judge)
    curves, tests = survival.curves(records.dialogues), survival.log_ranks(records.dialogues)
    judgements = [*records.judgements, *records.turn_judgements]
    by_round = trends.trends(records.dialogues, judgements, records.rubric, value_of(value))
    usage, timing = (
        read_object(path, f"a run's {name}") if (path := run / f"{name}.json").exists() else {} for name in ("usage", "timing")
    )
    costs = dialogue_costs.dialogue_costs(records.dialogues, usage, timing, records.stage)
    tables = [*survival.tables(curves, tests), *trends.tables(by_round, records.rubric), dialogue_costs.table(costs)]
    figures = {
        "survival": survival.as_json(curves, tests),
        "trends": trends.as_json(by_round),
        "costs": [cost._asdict() for cost in costs],
    }
    deliver("trajectories", figures, against(tables, versus), out, as_json)
