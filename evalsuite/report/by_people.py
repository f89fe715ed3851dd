"""Leaderboards from people's scores (ESC-Eval's table 2) and how far these people agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from core.errors import UserError
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric, known_rubric, load_rubric
from core.tables import Table
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import Check
from evalsuite.statistics.agreement import gold_scores_of
from evalsuite.statistics.leaderboard import Tally, leaderboard, pairwise_differences
from evalsuite.statistics.people import verdicts_of_people
from evalsuite.statistics.prediction_powered import powered_boards, powered_tables
from evalsuite.statistics.suggestions import read_weights, weights_beside

SECTION = "Scores by people"


def people_scores(
    paths: Sequence[Path], rubrics: Sequence[Path], dialogues: Sequence[Dialogue] | None
) -> tuple[list[HumanScore], dict[str, Rubric]]:
    """Scores of files, checked against their rubrics (files of one's own first) and dialogues; and these rubrics by name."""
    scores = gold_scores_of(paths, Check(rubrics, dialogues))
    own = {rubric.name: rubric for rubric in (load_rubric(str(path)) for path in rubrics)}
    found: dict[str, Rubric] = {}
    for name in dict.fromkeys(score.rubric for score in scores):
        rubric = own.get(name) or known_rubric(name)
        if rubric is None:
            raise UserError(f"--gold: no rubric {name!r}: give its file with --rubric")
        found[name] = rubric
    return scores, found


def judge_and_people(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    paths: Sequence[Path],
    rubrics: Sequence[Path],
    weights: Path | None,
) -> list[Table]:
    """Judge, people and both side by side (`evalsuite.statistics.prediction_powered`). Scores of other dialogues do not count.
    Weights are those of `weights`, or else lie beside the scores.
    Raises `UserError` for scores on several rubrics or single turns."""
    scores, found = people_scores(paths, rubrics, None)
    if len(found) != 1:
        raise UserError(f"--people: scores on several rubrics ({', '.join(found)}): give those on one")
    if turned := [score for score in scores if score.turn is not None]:
        raise UserError(f"--people: a score of turn {turned[0].turn} of {turned[0].dialogue_id}: only whole dialogues count")
    shown = {dialogue.id for dialogue in dialogues}
    kept = [score for score in scores if score.dialogue_id in shown]
    (people_rubric,) = found.values()
    weighed = read_weights(weights_beside(paths) if weights is None else [weights])
    first, *others = powered_tables(powered_boards(dialogues, judgements, rubric, kept, people_rubric, weighed), rubric)
    return [replace(first, notes=(*first.notes, *_of_the_draw(weighed.keys() & shown, kept))), *others]


def _of_the_draw(drawn: Set[str], scores: Sequence[HumanScore]) -> Iterator[str]:
    """What a board says of its weights."""
    if not drawn:
        return
    scored = {score.dialogue_id for score in scores}
    yield f"Weighted: {len(drawn & scored)} dialogues by 1 / the chance with which `people suggest` drew them."
    if left := len(drawn - scored):
        yield f"{left} drawn dialogues have no score: unless they lack it by chance, the estimates are biased."
    if more := len(scored - drawn):
        yield f"{more} scored dialogues were not drawn and have weight 1: leave them out."


def by_people(
    dialogues: Sequence[Dialogue],
    scores: Sequence[HumanScore],
    rubrics: Mapping[str, Rubric],
    groups: Mapping[str, str] | None = None,
) -> Iterator[Table]:
    """For each rubric: a leaderboard a language, the differences between supporters, and how far people agree."""
    for name, rubric in rubrics.items():
        of_rubric = [score for score in scores if score.rubric == name]
        tally = Tally(dialogues, verdicts_of_people(of_rubric), rubric)
        several = f"-{name}" if len(rubrics) > 1 else ""
        for table in (*leaderboard(tally.boards, rubric, groups=groups), *pairwise_differences(tally.boards)):
            title = f"{table.title}, by people" + (f" ({name})" if several else "")
            yield replace(table, key=f"people-{table.key}{several}", title=title, section=SECTION)
    if agreed := agreement(scores, list(rubrics.values())):
        yield replace(agreement_table(agreed), key="people-agreement", section=SECTION)
