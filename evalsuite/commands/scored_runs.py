"""`esc-eval leaderboard`: a board of several scored runs, of people's scores, or of two runs compared."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from core.errors import UserError, clean
from core.files import read_object
from core.options import console
from core.paths import MaybeFiles, Writes
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import (
    ClusterOption,
    JsonOption,
    JudgedByOption,
    LabelsOption,
    MaybeRun,
    MaybeRuns,
    OwnRubricOption,
    PeopleOption,
    refuse,
)
from evalsuite.commands.output import deliver_page, print_json, print_paths
from evalsuite.report.board import board, by_people, people_scores
from evalsuite.report.compare import comparison_sheet
from evalsuite.report.content import print_brief
from evalsuite.report.report import ReportContent, write_report
from evalsuite.runs.records import read_runs
from evalsuite.statistics import comparison as comparisons
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.people import verdicts_of_people
from evalsuite.trust.powered_board import judge_and_people


def leaderboard(
    runs: Annotated[MaybeRuns, typer.Argument(metavar="RUN…", help="Scored run folders.")] = None,
    judge: JudgedByOption = None,
    earlier: Annotated[
        MaybeRun, typer.Option("--against", metavar="RUN", help="Compare with this earlier run: what changed, what is better.")
    ] = None,
    gold: PeopleOption = None,
    people: LabelsOption = None,
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
        scores, rubrics = people_scores(gold, rubric, list(by_id.values()))
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
