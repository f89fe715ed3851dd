"""`esc-eval report` writes a run's report again from its records; `merge` joins the shards of a run; `leaderboard` makes a
board of several scored runs, of people's scores, or of two runs compared."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from core.errors import UserError, clean, need_modules, say
from core.files import read_object
from core.options import console
from core.paths import MaybeFiles, Reads, Writes
from core.rubrics import Rubric
from core.tables import Table
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import read_dialogues
from evalsuite.commands.agree import judgements_of
from evalsuite.commands.options import (
    OUT_RUN,
    AgainstOption,
    ClusterOption,
    InRun,
    InRuns,
    JsonOption,
    JudgedByOption,
    MaybeRun,
    MaybeRuns,
    OwnRubricOption,
    PeopleOption,
    refuse,
)
from evalsuite.commands.output import deliver_page, print_json, print_paths
from evalsuite.papers.reported.against import against
from evalsuite.report import content
from evalsuite.report.board import board, by_people, comparison_sheet, people_scores
from evalsuite.report.content import print_brief
from evalsuite.report.exports import write_inspect_logs
from evalsuite.report.gates import Gates
from evalsuite.report.report import ReportContent, write_report
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run
from evalsuite.runs.records import read_runs
from evalsuite.statistics import comparison as comparisons
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.contestants import verdicts_of_people
from evalsuite.statistics.leaderboard import Tally, by_field
from evalsuite.trust.powered_board import judge_and_people

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
    wandb: Annotated[
        bool, typer.Option("--wandb", help="Log the report's tables and plots to Weights & Biases (offline without a key).")
    ] = False,
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
            rubrics: list[Path | Rubric] = [*(rubric or []), *([first.rubric] if first else [])]
            yield from by_people(tally.dialogues, *people_scores(gold, rubrics, tally.dialogues), config.floors())
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


def leaderboard(
    runs: Annotated[MaybeRuns, typer.Argument(metavar="RUN…", help="Scored run folders.")] = None,
    judge: JudgedByOption = None,
    earlier: Annotated[
        MaybeRun, typer.Option("--against", metavar="RUN", help="Compare with this earlier run: what changed, what is better.")
    ] = None,
    gold: PeopleOption = None,
    people: Annotated[
        MaybeFiles,
        typer.Option(
            "--people",
            help="People's scores of some of the dialogues (as for --gold, or a study's export folder): shows boards by the "
            "judge, by people and by both, and how many labels the judge saves. Repeat for more.",
        ),
    ] = None,
    dialogues: Annotated[
        MaybeFiles,
        typer.Option("--dialogues", help="With --gold and no runs: the dialogues that people scored. Repeat for more."),
    ] = None,
    rubric: OwnRubricOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the page, the same as JSON and Markdown, and every table as CSV."),
        Writes(("leaderboard.*", "comparison.*", "tables/*")),
    ] = Path("runs/leaderboard"),
) -> None:
    """Rank the supporters of several runs on one board, or compare runs with an earlier one.

    Runs are comparable if framework, mode, seeker, prompts, exchanges, judge and rubric are the same. A run that differs from
    the first is left out, and the board says why. Only cards and trials that all runs have are counted.

    With --against, a supporter in both runs is compared with itself (with another prompt, judge or seeker), and supporters that
    only one run has with those that only the other has: paired differences, card by card. Changed prompts and long settings are
    shown as a text diff.

    With --gold, a second board is by people's scores of these dialogues; with --dialogues and --gold, the only board is by
    people (table 2 of ESC-Eval).

    With --people, people's scores of a random sample of the dialogues (or of those that `people suggest` chose, with its
    weights.csv next to the scores) correct the judge's scores of all dialogues, with intervals whose coverage was simulated.
    Examples:

    esc-eval leaderboard runs/esc_eval/model-a runs/esc_eval/model-b --out runs/board

    esc-eval leaderboard runs/after --against runs/before --out runs/before-after
    """
    if earlier:
        why = "--against compares judges' verdicts: leave it out"
        refuse(why, gold=gold, people=people, dialogues=dialogues, rubric=rubric)
        sheet = comparison_sheet(comparisons.compare(read_runs([earlier, *(runs or [])], judge=judge), cluster))
        deliver_page("comparison", sheet, out, as_json, printed=())
        return
    refuse("corrects a judge's scores: give run folders (or --gold for a board by people alone)", people=people and not runs)
    own = [] if people and not gold else rubric or []
    content = _board(runs or [], judge, gold or [], dialogues or [], own, cluster)
    if people:
        tally = content.tally
        more = judge_and_people(tally.dialogues, tally.verdicts, tally.rubric, people, rubric or [], tally.floors)
        content = replace(content, tables=[*more, *content.tables])
    paths = write_report(out, content, "leaderboard")
    if as_json:
        print_json(read_object(paths["json"], "a leaderboard"))
        return
    print_brief(content, console)
    for warning in content.cautions:
        console.print(Text(f"Caution: {clean(warning)}"))
    print_paths(paths)


def _board(
    runs: list[Path], judge: str | None, gold: list[Path], dialogues: list[Path], rubric: list[Path], cluster: str | None
) -> ReportContent:
    refuse("is an option of --gold: give both, or leave it out", rubric=rubric and not gold)
    refuse("the runs have their own dialogues: leave out --dialogues or the runs", dialogues=runs and dialogues)
    if runs:
        records = read_runs(runs, least=1, judge=judge)
        content = board(records, cluster)
        if not gold:
            return content
        by_id = {dialogue.id: dialogue for record in records for dialogue in record.dialogues}
        given: list[Path | Rubric] = [*rubric, *(record.rubric for record in records)]
        scores, rubrics = people_scores(gold, given, list(by_id.values()))
        shown = {dialogue.id for dialogue in content.tally.dialogues}
        scores = [score for score in scores if score.dialogue_id in shown]
        tables = by_people(content.tally.dialogues, scores, rubrics, content.tally.floors)
        return replace(content, tables=[*content.tables, *tables])
    if not gold or not dialogues or judge is not None:
        raise UserError("nothing to rank: give run folders, or --dialogues with --gold (and no --judge) for a board by people")
    scored = read_dialogues(dialogues)
    scores, rubrics = people_scores(gold, rubric, scored)
    if len(rubrics) > 1:
        raise UserError(f"--gold: scores on several rubrics ({', '.join(rubrics)}): give scores on one of them")
    (rules,) = rubrics.values()
    records = [RunRecords("people", dialogues[0].parent, {"score": {}}, rules, scored, verdicts_of_people(scores), {})]
    agreements = [agreement_table(rows)] if (rows := agreement(scores, [rules])) else []
    content = board(records, cluster)
    return replace(content, title="Leaderboard by people", agreements=None, tables=[*content.tables, *agreements])
