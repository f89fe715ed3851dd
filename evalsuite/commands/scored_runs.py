"""Verbs that read scored run folders: several (leaderboard), and one (discriminate, trajectories)."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.text import Text

from core.errors import UserError, clean
from core.files import read_object
from core.options import console
from core.paths import MaybeFile, MaybeFiles, Writes
from core.records import Annotator, Number, System
from core.rows import RowModel, read_table
from core.statistics.bootstrap import Floats
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import (
    ClusterOption,
    HarbourOption,
    InRun,
    JsonOption,
    JudgedByOption,
    LabelsOption,
    MaybeRun,
    MaybeRuns,
    OwnRubricOption,
    PeopleOption,
    TablesOption,
    ValueOption,
    out_tables,
    value_of,
)
from evalsuite.commands.output import deliver, deliver_page, print_json, print_paths
from evalsuite.report.board import board
from evalsuite.report.by_people import by_people, judge_and_people, people_scores
from evalsuite.report.compare import comparison_sheet
from evalsuite.report.content import print_brief
from evalsuite.report.report import ReportContent, write_report
from evalsuite.reported.against import against
from evalsuite.runs.folder import USED
from evalsuite.runs.records import read_run, read_runs
from evalsuite.statistics import comparison as comparisons
from evalsuite.statistics import dialogue_costs, discrimination, survival, trends
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.draws import distinct
from evalsuite.statistics.leaderboard import contestants_of
from evalsuite.statistics.people import verdicts_of_people


def leaderboard(
    runs: Annotated[MaybeRuns, typer.Argument(metavar="RUN…", help="Scored run folders.")] = None,
    judge: JudgedByOption = None,
    earlier: Annotated[
        MaybeRun, typer.Option("--against", metavar="RUN", help="An earlier run: what is better now, and what changed.")
    ] = None,
    gold: PeopleOption = None,
    people: LabelsOption = None,
    dialogues: Annotated[
        MaybeFiles,
        typer.Option("--dialogues", help="With --gold and without runs: what people scored (JSONL). Repeat for more."),
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

    Runs compare where they were made alike: framework, mode, seeker, prompts, exchanges, judge and rubric. A run that differs
    from the first one is left out, and the board says why. Only cards and trials that all the others have count.

    With --against, a supporter that both runs have is compared with itself (another prompt, another judge, another seeker), and
    supporters that only one of them has with those that only the other has: paired differences, card by card. Prompts and long
    settings that changed are shown as a text diff.

    With --gold, people's scores of these dialogues make a board of their own below; with --dialogues and --gold there is
    a board by people alone (table 2 of ESC-Eval).

    With --people, people's scores of a random part of the dialogues (or of those that `people suggest` chose, whose weights.csv
    lies beside the scores) correct the judge's scores of all, with intervals whose coverage was simulated. Examples:

    esc-eval leaderboard runs/esc_eval/model-a runs/esc_eval/model-b --out runs/board

    esc-eval leaderboard runs/after --against runs/before --out runs/before-after
    """
    if earlier:
        if gold or people or dialogues or rubric:
            raise UserError("--against compares judges' verdicts: leave out --gold, --people, --dialogues and --rubric")
        sheet = comparison_sheet(comparisons.compare(read_runs([earlier, *(runs or [])], judge=judge), "value", cluster))
        deliver_page("comparison", sheet, out, as_json, printed=())
        return
    if people and not runs:
        raise UserError("--people: it corrects a judge's scores: give run folders (or --gold for a board by people alone)")
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
    if rubric and not gold:
        raise UserError("--rubric: it is for --gold: give both or leave it out")
    if runs and dialogues:
        raise UserError("--dialogues: the runs hold their own dialogues: leave it out, or the runs")
    if runs:
        records = read_runs(runs, least=1, judge=judge)
        content = board(records, cluster)
        if not gold:
            return content
        known = {dialogue.id: dialogue for record in records for dialogue in record.dialogues}
        given, rubrics = people_scores(gold, rubric, list(known.values()))
        shown = {dialogue.id for dialogue in content.tally.dialogues}
        kept = [score for score in given if score.dialogue_id in shown]
        by_them = by_people(content.tally.dialogues, kept, rubrics, content.tally.floors)
        return replace(content, tables=[*content.tables, *by_them])
    if not gold or not dialogues or judge is not None:
        raise UserError("what to show: give run folders, or --dialogues with --gold (and no --judge) for a board by people")
    spoken = read_dialogues(dialogues)
    given, rubrics = people_scores(gold, rubric, spoken)
    if len(rubrics) > 1:
        raise UserError(f"--gold: scores on several rubrics ({', '.join(rubrics)}): a board is on one")
    (rules,) = rubrics.values()
    alone = RunRecords("people", dialogues[0].parent, {"score": {}}, rules, spoken, verdicts_of_people(given), {})
    agreed = [agreement_table(rows)] if (rows := agreement(given, [rules])) else []
    content = board([alone], cluster)
    return replace(content, title="Leaderboard by people", agreements=None, tables=[*content.tables, *agreed])


def discriminate(
    scores: Annotated[
        MaybeFile,
        typer.Option(help="CSV or JSONL of user, model, score: one row a user and model; an empty score (null) is unreadable."),
    ] = None,
    run: Annotated[
        MaybeRun,
        typer.Argument(
            metavar="RUN", help="Scored run folder: its cards or profiles are the users, its supporters the models."
        ),
    ] = None,
    scale: Annotated[
        tuple[float, float] | None,
        typer.Option("--scale", metavar="LOW HIGH", help="Lowest and highest score of --scores: for intervals of differences."),
    ] = None,
    judge: JudgedByOption = None,
    value: ValueOption = "value",
    versus: HarbourOption = None,
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("discriminate")] = None,
) -> None:
    """How well scores tell models apart: MSR, MAC, analysis of variance, and which pairs of models differ.

    MSR is the variance of the models' means by the mean variance of a model's scores among users, MAC = MSR / (1 + MSR). F
    comes three times: as the paper's formula 13 has it (f_paper), as one-way analysis of variance has it (f), and as repeated
    measures have it (f_blocked), whose p is printed, since the same users rate all models. Pairs are tested by Student's t over
    the users of both, with Holm's correction; without --scale differences of --scores have no interval.

    What is undefined (one model, one user, no variance) is a dash with the reason below, in JSON null with the reason under
    `undefined`. Missing scores: a model's mean and variance are over its own users, a pair is tested over the users of both.

    JSON of --scores: msr, mac, anova {f_paper, f, p, df …}, pairwise {p: {"A vs B": corrected p}, test, correction, proportion,
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
        discriminated = discrimination.discriminate(*read_ratings(scores, scale), scale)
        deliver("discriminate", discriminated.figures(), against(discrimination.tables(discriminated), versus), out, as_json)
        return
    assert run is not None
    if scale is not None:
        raise UserError("--scale: belongs to --scores; a run has the scale of its rubric")
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


class _Rating(RowModel):
    user: Annotator
    model: System
    score: Number | None


def read_ratings(path: Path, scale: tuple[float, float] | None = None) -> tuple[Floats, list[str]]:
    """Ratings [users, models] and the models' names from a CSV file (or JSON lines) of user, model and score; sorted by name.

    An empty score is a verdict that could not be read: a missing rating. Raises `UserError` with file, line and column, also
    for a user and model that come twice (average trials first: which of them counts is not for us to guess), and for a score
    outside the `scale`.
    """
    if scale and not scale[0] < scale[1]:
        raise UserError(f"--scale {scale[0]:g} {scale[1]:g}: give the lowest score first, then the highest")
    scores: dict[tuple[str, str], float] = {}

    def each(where: str, row: _Rating) -> None:
        if (row.user, row.model) in scores:
            raise UserError(f"{where}: score: a second one of user {row.user!r} for model {row.model!r}: average repeats first")
        if scale and row.score is not None and not scale[0] <= row.score <= scale[1]:
            raise UserError(f"{where}: score: {row.score:g} is outside --scale {scale[0]:g} {scale[1]:g}")
        scores[row.user, row.model] = nan if row.score is None else row.score

    read_table(path, _Rating, "scores", each)
    users, models = (sorted({key[side] for key in scores}) for side in (0, 1))
    return np.array([[scores.get((user, model), nan) for model in models] for user in users]), models


def trajectories(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Scored run folder.")],
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
    drawn = distinct(records.dialogues)
    curves, tests = survival.curves(drawn), survival.log_ranks(drawn)
    judgements = [*records.judgements, *records.turn_judgements]
    by_round = trends.trends(records.dialogues, judgements, records.rubric, value_of(value))
    usage, timing = (
        read_object(path, f"a run's {name}") if (path := run / f"{name}.json").exists() else {} for name in ("usage", "timing")
    )
    costs = dialogue_costs.dialogue_costs(records.dialogues, USED.validate_python(usage), timing, records.stage)
    tables = [*survival.tables(curves, tests), *trends.tables(by_round, records.rubric), dialogue_costs.table(costs)]
    figures = {
        "survival": survival.as_json(curves, tests),
        "trends": [*trends.as_json(by_round)],
        "costs": [cost._asdict() for cost in costs],
    }
    deliver("trajectories", figures, against(tables, versus), out, as_json)
