"""Leaderboards from people's scores (ESC-Eval's table 2) and how far these people agree."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric, known_rubric, load_rubric
from core.statistics.bootstrap import SMOOTHED
from core.tables import Cell, Table
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import RubricCheck, gold_scores_of
from data_prep.scores.weights import read_weights, weights_beside
from evalsuite.statistics import paired
from evalsuite.statistics.leaderboard import FAMILIES, Tally, leaderboard, pairwise_differences
from evalsuite.statistics.people import verdicts_of_people
from evalsuite.statistics.prediction_powered import FEWEST, FEWEST_SAVED, INTERVAL, PoweredBoard, powered_boards
from evalsuite.statistics.summary import dimension_label

SECTION = "Scores by people"
TOGETHER = "Judge and people together"


def people_scores(
    paths: Sequence[Path], rubrics: Sequence[Path], dialogues: Sequence[Dialogue] | None
) -> tuple[list[HumanScore], dict[str, Rubric]]:
    """Scores of files, checked against their rubrics (files of one's own first) and dialogues; and these rubrics by name."""
    scores = gold_scores_of(paths, RubricCheck(rubrics, dialogues))
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
    floors: Collection[str] = (),
) -> list[Table]:
    """Judge, people and both side by side (`evalsuite.statistics.prediction_powered`). Scores of other dialogues do not count.
    Weights lie beside the scores. `floors` are supporters that need no model.
    Raises `UserError` for scores on several rubrics or single turns."""
    scores, found = people_scores(paths, rubrics, None)
    if len(found) != 1:
        raise UserError(f"--people: scores on several rubrics ({', '.join(found)}): give those on one")
    if turned := [score for score in scores if score.turn is not None]:
        raise UserError(f"--people: a score of turn {turned[0].turn} of {turned[0].dialogue_id}: only whole dialogues count")
    shown = {dialogue.id for dialogue in dialogues}
    kept = [score for score in scores if score.dialogue_id in shown]
    (people_rubric,) = found.values()
    weighed = read_weights(weights_beside(paths))
    boards = powered_boards(dialogues, judgements, rubric, kept, people_rubric, weighed, floors)
    first, *others = powered_tables(boards, rubric)
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


def powered_tables(boards: Sequence[PoweredBoard], rubric: Rubric) -> list[Table]:
    """For each language: judge, people and both side by side, the dimensions by both, and the differences."""
    tables = []
    for language, of_language in group_by(boards, lambda board: board.language).items():
        several = len(of_language) > 1
        rows: list[tuple[Cell, ...]] = []
        fine: list[tuple[Cell, ...]] = []
        gaps: list[tuple[Cell, ...]] = []
        for board in of_language:
            by = [board.judge] * several
            for one in board.places:
                figures = (one.judge, one.people, one.both, board.tuning, one.labels, one.saved)
                rows.append((paired.rank_text(one.rank), one.supporter, *by, *figures))
                fine.append((one.supporter, *by, *one.dimensions))
            for gap in board.differences:
                pair = (board.places[gap.first].supporter, board.places[gap.second].supporter)
                gaps.append((*pair, *by, *paired.cells(gap)))
        judged = ["judged by"] * several
        few = any(one.both.mean is not None and one.both.low is None for board in of_language for one in board.places)
        too_few = [f"Too few labels (fewer than {FEWEST} scored cards): no interval, no test and no rank."] * few
        tables += [
            Table(
                key=f"leaderboard-powered-{language}",
                title=f"Leaderboard, {language}: judge, people and both",
                columns=("rank", "supporter", *judged, "judge alone", "people alone", "both", "λ", "labels", "labels saved"),
                rows=tuple(rows),
                notes=(
                    f"Average on 0–100; n: dialogues judged, and dialogues that people scored. Judge alone [{SMOOTHED} over "
                    "cards]: people may think otherwise. Both: the judge's mean over all dialogues, corrected by people's "
                    "scores where there are any; unbiased where the scored dialogues are a random choice, or weighted. People "
                    f"alone and both [{INTERVAL}].",
                    "λ: how much of the judge is used (0: nothing, what is left is people's mean), the same for all. "
                    "Labels saved: scored dialogues more that people alone would need for an interval as narrow [95 %, "
                    f"Student's t]; n: labels of all. A dash: fewer than {FEWEST_SAVED}, weights that differ, or not known "
                    "within a factor of 20.",
                    paired.RANKS,
                    *too_few,
                    *([] if several else [f"Judged by {of_language[0].judge}."]),
                ),
                section=TOGETHER,
            ),
            Table(
                key=f"dimensions-powered-{language}",
                title=f"Dimensions, {language}, by judge and people together",
                columns=("supporter", *judged, *(dimension_label(rubric, name) for name in rubric.dimensions)),
                rows=tuple(fine),
                notes=(f"[{INTERVAL}].", *too_few),
                section=TOGETHER,
            ),
            Table(
                key=f"differences-powered-{language}",
                title=f"Differences in the average, {language}, by judge and people together",
                columns=("supporter", "against", *judged, *paired.COLUMNS),
                rows=tuple(gaps),
                notes=(
                    f"Points of 0–100, [{INTERVAL}], n: scored cards of the supporter that has fewer. {paired.HOLDS}.",
                    FAMILIES,
                    *too_few,
                ),
                section=TOGETHER,
            ),
        ]
    return [table for table in tables if table.rows]


def by_people(
    dialogues: Sequence[Dialogue],
    scores: Sequence[HumanScore],
    rubrics: Mapping[str, Rubric],
    floors: Collection[str],
) -> Iterator[Table]:
    """For each rubric: a leaderboard a language, the differences between supporters, and how far people agree. `floors` are
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
