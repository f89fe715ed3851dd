"""Boards over several runs, with the reasons why others are not comparable, and boards from people's scores (table 2)."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from core.errors import UserError
from core.records import Dialogue, HumanScore
from core.rubrics import Rubric, known_rubric, load_rubric
from core.specs import EMBEDDED_PREFIX
from core.tables import Table
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import RubricCheck, gold_scores_of
from evalsuite.report import charts
from evalsuite.report.report import ReportContent
from evalsuite.runs.records import SharedCards, shared_cards
from evalsuite.statistics.comparison import RunRecords, agreements_of
from evalsuite.statistics.leaderboard import Tally, leaderboard, pairwise_differences
from evalsuite.statistics.people import verdicts_of_people
from evalsuite.statistics.summary import distributions

RUNS = "Runs"  # heading of the page
SETTINGS_SHOWN = 5  # the most of a run that is not comparable


def board(runs: Sequence[RunRecords], cluster: str | None = None) -> ReportContent:
    """The content of the page. Raises `UserError` if the runs share no card."""
    together = shared_cards(runs, cluster)
    tally, first = together.tally, together.runs[0].config
    scores_given = distributions(tally.verdicts, tally.rubric)
    return ReportContent(
        title="Leaderboard over " + (f"{len(together.runs)} runs" if len(together.runs) > 1 else "one run"),
        framework=first.get("simulate", {}).get("framework", "given dialogues"),
        mode=first["score"].get("mode", "native"),
        plumbing=any(f"'checkpoint': '{EMBEDDED_PREFIX}" in str(run.config) for run in together.runs),
        synthetic_gold=False,
        tally=tally,
        cards={},
        agreements=agreements_of(together.runs),
        tables=[*leaderboard(tally.boards, tally.rubric), *pairwise_differences(tally.boards), scores_given, *_runs(together)],
        charts=[*charts.distribution_charts(scores_given, tally.rubric)],
        generated=time.strftime("%Y-%m-%d %H:%M"),
        warnings=[*_warnings(together)],
    )


def _runs(together: SharedCards) -> Iterator[Table]:
    rows = [
        {"run": run.name, "folder": str(run.folder), "dialogues": len(run.dialogues)}
        | {"left out": together.left_out.get(run.name, 0)}
        for run in together.runs
    ]
    shared = ", ".join(f"{language} {count}" for language, count in together.shared.items())
    note = f"Cards (times trials) that all these runs have: {shared}. Only they count."
    yield Table.of("runs", "Runs on this board", rows, [note], RUNS)
    if together.apart:
        others = [{"run": run, "setting: first run's → its own": line} for run, of in together.apart.items() for line in of]
        yield Table.of("runs-apart", f"Runs that do not compare with {together.runs[0].name}", others, section=RUNS)


def _warnings(together: SharedCards) -> Iterator[str]:
    for run, lines in together.apart.items():
        more = f" and {len(lines) - SETTINGS_SHOWN} more" if len(lines) > SETTINGS_SHOWN else ""
        yield f"{run} is not on this board: it was made with other settings ({'; '.join(lines[:SETTINGS_SHOWN])}{more})."
    if left_out := {run: count for run, count in together.left_out.items() if count}:
        counts = ", ".join(f"{count:,} of {run}" for run, count in left_out.items())
        yield f"Left out are dialogues on cards that not all runs have: {counts}."


SECTION = "Scores by people"


def people_scores(
    paths: Sequence[Path], rubrics: Sequence[Path], dialogues: Sequence[Dialogue] | None
) -> tuple[list[HumanScore], dict[str, Rubric]]:
    """The scores in files, checked against their rubrics (the user's own first) and dialogues; and these rubrics by name."""
    scores = gold_scores_of(paths, RubricCheck(rubrics, dialogues))
    own = {rubric.name: rubric for rubric in (load_rubric(str(path)) for path in rubrics)}
    found: dict[str, Rubric] = {}
    for name in dict.fromkeys(score.rubric for score in scores):
        rubric = own.get(name) or known_rubric(name)
        if rubric is None:
            raise UserError(f"--gold: no rubric {name!r}: give its file with --rubric")
        found[name] = rubric
    return scores, found


def by_people(
    dialogues: Sequence[Dialogue],
    scores: Sequence[HumanScore],
    rubrics: Mapping[str, Rubric],
    floors: Collection[str],
) -> Iterator[Table]:
    """For each rubric: a leaderboard per language, the differences between supporters, and people's agreement."""
    for name, rubric in rubrics.items():
        of_rubric = [score for score in scores if score.rubric == name]
        tally = Tally(dialogues, verdicts_of_people(of_rubric), rubric, floors)
        several = f"-{name}" if len(rubrics) > 1 else ""
        for table in (*leaderboard(tally.boards, rubric), *pairwise_differences(tally.boards)):
            title = f"{table.title}, by people" + (f" ({name})" if several else "")
            yield replace(table, key=f"people-{table.key}{several}", title=title, section=SECTION)
    if agreed := agreement(scores, list(rubrics.values())):
        yield replace(agreement_table(agreed), key="people-agreement", section=SECTION)
