"""`esc-eval report` writes a run's report again from its records; `esc-eval merge` joins the shards of a run."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from core.errors import need_modules, say
from core.options import console
from core.paths import Reads, Writes
from core.tables import Table
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import (
    OUT_RUN,
    AgainstOption,
    InRun,
    InRuns,
    MaybeRun,
    OwnRubricOption,
    PeopleOption,
    WandbOption,
    refuse,
)
from evalsuite.commands.verdicts import judgements_of
from evalsuite.papers.reported.against import against
from evalsuite.report import content
from evalsuite.report.board import by_people, people_scores
from evalsuite.report.gates import Gates
from evalsuite.report.inspect_logs import write_inspect_logs
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run
from evalsuite.statistics.breakdowns import by_field
from evalsuite.statistics.leaderboard import Tally

TAG_FILES = ("judgements.jsonl", "judges/*/judgements.jsonl")


def report(
    folder: Annotated[InRun, typer.Argument(metavar="RUN", help="A run folder."), OUT_RUN],
    gold: PeopleOption = None,
    rubric: OwnRubricOption = None,
    versus: AgainstOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Also show scores by this field of the dialogues (version, week, country), with the difference if it has two "
            "values. Repeat for more.",
        ),
    ] = None,
    seekers: Annotated[
        list[Path] | None,
        typer.Option(
            "--seekers",
            help="Dialogues with people as seekers (JSONL records; `esc-data import` makes them of a corpus), to compare the "
            "simulated seekers with; or a folder with these and the run's own, tagged by a judge on rubric seeker_features. "
            "Repeat for more.",
        ),
        Reads("place", ("dialogues.jsonl", *TAG_FILES)),
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIMENSION=SCORE",
            help="For CI: exit with code 1 if a model's mean (0–100) is below this, as in average=60. Repeat for more.",
        ),
    ] = None,
    fail_if_worse: Annotated[
        MaybeRun,
        typer.Option(
            metavar="RUN", help="For CI: exit with code 1 if a model's average is significantly worse than in this run."
        ),
    ] = None,
    inspect: Annotated[
        Path | None,
        typer.Option("--inspect", metavar="DIR", help="Also write the run as Inspect logs: `inspect view --log-dir DIR`."),
        Writes(("*.eval",)),
    ] = None,
    wandb: WandbOption = False,
) -> None:
    """Write the report of a run folder again from its records: report.html, report.json, report.md and all tables as CSV.

    With --gold, the report has a second leaderboard by people's scores of the same dialogues (table 2 of ESC-Eval). With
    --seekers, it compares the simulated seekers with people: whether a classifier can tell them apart, how long their turns
    are, and when they reveal what. A later report without --gold, --seekers or --by leaves these tables out. Gates
    (--fail-under, --fail-if-worse) use the verdicts of the first judge; report.junit.xml has their outcome, too.
    """
    if wandb:
        need_modules("wandb", purpose="logging to wandb")
    refuse("is an option of --gold: give both, or leave it out", rubric=rubric and not gold)
    config = shards.whole(folder)
    first = config.scored
    judge = first.judge.name if first and first.judge else None
    gates = Gates.parse(fail_under or [], fail_if_worse, first.rubric, judge) if first else None

    def more(tally: Tally) -> Iterator[Table]:
        if gold:
            yield from by_people(tally.dialogues, *people_scores(gold, rubric or [], tally.dialogues), config.floors())
        if seekers:
            from evalsuite.checks.realism import realism_tables  # only this option needs it

            files = [path / "dialogues.jsonl" if path.is_dir() else path for path in seekers]
            simulated = {dialogue.id for dialogue in tally.dialogues}
            people = [dialogue for dialogue in read_dialogues(files) if dialogue.id not in simulated]
            tags = judgements_of(file for path in seekers for pattern in TAG_FILES for file in sorted(path.glob(pattern)))
            yield from realism_tables(people, tally.dialogues, tags)
        for field in by or ():
            yield from by_field(tally, field)

    with open_run(folder) as run:
        content.report_run(run, console, (), wandb, partial(against, name=versus), more)
        for path in write_inspect_logs(run, inspect) if inspect else ():
            console.print(str(path), soft_wrap=True)
    if gates and gates.failed(folder):
        raise typer.Exit(1)


def merge(
    folders: Annotated[InRuns, typer.Argument(metavar="RUN…", help="The run folders of all shards, in any order.")],
    out: Annotated[Path, typer.Option("--out", help="Run folder to make, as one unsharded run would have left it."), OUT_RUN],
) -> None:
    """Join the shards of one run (--shard I/N), and write its report.

    Records, config, usage and finished calls equal those of an unsharded run, byte for byte; seconds are added up. If a shard
    is missing, given twice, unfinished or of another config, nothing is written. Example:

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
