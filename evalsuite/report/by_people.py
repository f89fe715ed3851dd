"""Leaderboards from people's scores (ESC-Eval's table 2), and the agreement of these people."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from core.errors import UserError
from core.records import Dialogue, HumanScore
from core.rubrics import Rubric, known_rubric, load_rubric
from core.tables import Table
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import RubricCheck, gold_scores_of
from evalsuite.statistics.leaderboard import Tally, leaderboard, pairwise_differences
from evalsuite.statistics.people import verdicts_of_people

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
    """For each rubric: a leaderboard per language, the differences between supporters, and people's agreement. `floors` are
    supporters that need no model."""
    for name, rubric in rubrics.items():
        of_rubric = [score for score in scores if score.rubric == name]
        tally = Tally(dialogues, verdicts_of_people(of_rubric), rubric, floors)
        several = f"-{name}" if len(rubrics) > 1 else ""
        for table in (*leaderboard(tally.boards, rubric), *pairwise_differences(tally.boards)):
            title = f"{table.title}, by people" + (f" ({name})" if several else "")
            yield replace(table, key=f"people-{table.key}{several}", title=title, section=SECTION)
    if agreed := agreement(scores, list(rubrics.values())):
        yield replace(agreement_table(agreed), key="people-agreement", section=SECTION)
