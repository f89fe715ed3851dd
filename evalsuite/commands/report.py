"""Reports of finished runs: one written again from its records, and that of shards put together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, say
from core.options import console
from core.paths import MaybeFiles, Writes
from core.tables import Table
from core.wandb_offline import need_wandb
from data_prep.scores.human import read_dialogues
from evalsuite.checks.realism import realism_tables
from evalsuite.commands.options import (
    OUT_RUN,
    AgainstOption,
    InRun,
    InRuns,
    MaybeRun,
    OwnRubricOption,
    PeopleOption,
    WandbOption,
)
from evalsuite.papers.reported.against import against
from evalsuite.report import content
from evalsuite.report.by_people import by_people, people_scores
from evalsuite.report.gates import Gates
from evalsuite.report.inspect_logs import write_inspect_logs
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run
from evalsuite.statistics.by_field import by_field
from evalsuite.statistics.leaderboard import Tally


def report(
    folder: Annotated[InRun, typer.Argument(metavar="RUN", help="A run folder."), OUT_RUN],
    gold: PeopleOption = None,
    rubric: OwnRubricOption = None,
    versus: AgainstOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Scores by what dialogues have in a field (version, week, country); of two values, the difference. Repeat "
            "for more.",
        ),
    ] = None,
    seekers: Annotated[
        MaybeFiles,
        typer.Option(
            "--seekers",
            help="Dialogues that people had as seekers (records, JSONL; a corpus by `esc-data import`): how far the "
            "run's seekers are from people. Repeat for more.",
        ),
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIMENSION=SCORE",
            help="For CI: exit code 1 where a model's mean on 0–100 is below this: average=60. Repeat for more.",
        ),
    ] = None,
    fail_if_worse: Annotated[
        MaybeRun,
        typer.Option(
            metavar="RUN", help="For CI: exit code 1 where a model's average is significantly worse than in this run."
        ),
    ] = None,
    inspect: Annotated[
        Path | None,
        typer.Option("--inspect", metavar="DIR", help="Write the run as logs of Inspect, too: `inspect view --log-dir DIR`."),
        Writes(("*.eval",)),
    ] = None,
    wandb: WandbOption = False,
) -> None:
    """Write report.html, report.json, report.md and every table as CSV (tables/) of a run folder again, from its records.

    With --gold, people's scores of these dialogues too, as a leaderboard of their own (table 2 of ESC-Eval). With --seekers,
    the simulated seekers against people: can a classifier tell their lines apart, how long they are, when they tell what. A
    later report without --gold, --seekers or --by leaves their tables out. Gates (--fail-under, --fail-if-worse) are for the
    verdicts of the first judge; their outcome is also in report.junit.xml.
    """
    if wandb:
        need_wandb()
    if rubric and not gold:
        raise UserError("--rubric: it is for --gold: give both or leave it out")
    config = shards.whole(folder)
    first = config.scored
    judge = first.judge.name if first and first.judge else None
    gates = Gates.parse(fail_under or [], fail_if_worse, first.rubric, judge) if first else None

    def more(tally: Tally) -> Iterator[Table]:
        if gold:
            yield from by_people(tally.dialogues, *people_scores(gold, rubric or [], tally.dialogues), config.floors())
        if seekers:
            yield from realism_tables(read_dialogues(seekers), tally.dialogues)
        for field in by or ():
            yield from by_field(tally, field)

    with open_run(folder) as opened:
        content.report_run(opened, console, (), wandb, partial(against, name=versus), more)
        for path in write_inspect_logs(opened, inspect) if inspect else ():
            console.print(str(path), soft_wrap=True)
    if gates and gates.failed(folder):
        raise typer.Exit(1)


def merge(
    folders: Annotated[InRuns, typer.Argument(metavar="RUN…", help="The run folders of all shards, in any order.")],
    out: Annotated[Path, typer.Option("--out", help="Run folder to make: what one unsharded run would have left."), OUT_RUN],
) -> None:
    """Put the shards of one run (--shard I/N) together, and write its report.

    Records, config, usage and finished calls are those of one run, byte for byte; seconds are added up. A shard that is
    missing, doubled, unfinished or of another config is refused, before anything is written. Example:

    esc-eval merge runs/full-1 runs/full-2 runs/full-3 runs/full-4 --out runs/full
    """
    dialogues = shards.merge(folders, out)
    console.print(f"{out}: {len(dialogues)} dialogues of {len(folders)} shards", soft_wrap=True)
    with open_run(out) as run:
        if "score" in run.config():
            content.report_run(run, console)
    if lost := sum(dialogue.lost for dialogue in dialogues):
        say(
            f"error: {lost} dialogues are missing because a server failed. Run the shards' command without --shard and with "
            f"--out {out} to ask only for those",
            err=True,
        )
        raise typer.Exit(1)
