"""Judge and people together: people's scores of some dialogues correct a judge's scores of all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric
from core.statistics.bootstrap import SMOOTHED
from core.tables import Cell, Table
from data_prep.scores.weights import read_weights, weights_beside
from evalsuite.report.by_people import people_scores
from evalsuite.statistics import paired
from evalsuite.statistics.leaderboard import FAMILIES
from evalsuite.statistics.summary import dimension_label
from evalsuite.trust.prediction_powered import FEWEST, FEWEST_SAVED, INTERVAL, PoweredBoard, powered_boards

TOGETHER = "Judge and people together"


def judge_and_people(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    paths: Sequence[Path],
    rubrics: Sequence[Path],
    floors: Collection[str] = (),
) -> list[Table]:
    """Tables of judge, people and both (`evalsuite.trust.prediction_powered`). Scores of other dialogues do not count; weights
    are read from next to the scores. `floors` are supporters that need no model. Raises `UserError` for scores on several
    rubrics or single turns."""
    scores, people_rubrics = people_scores(paths, rubrics, None)
    if len(people_rubrics) != 1:
        raise UserError(f"--people: scores on several rubrics ({', '.join(people_rubrics)}): give those on one")
    if turned := [score for score in scores if score.turn is not None]:
        raise UserError(f"--people: a score of turn {turned[0].turn} of {turned[0].dialogue_id}: only whole dialogues count")
    ids = {dialogue.id for dialogue in dialogues}
    kept = [score for score in scores if score.dialogue_id in ids]
    (people_rubric,) = people_rubrics.values()
    weighed = read_weights(weights_beside(paths))
    boards = powered_boards(dialogues, judgements, rubric, kept, people_rubric, weighed, floors)
    first, *others = powered_tables(boards, rubric)
    return [replace(first, notes=(*first.notes, *_weight_notes(weighed.keys() & ids, kept))), *others]


def _weight_notes(drawn: Set[str], scores: Sequence[HumanScore]) -> Iterator[str]:
    """Notes on the weights of a board."""
    if not drawn:
        return
    scored = {score.dialogue_id for score in scores}
    yield f"Weighted: {len(drawn & scored)} dialogues by 1 / the chance with which `people suggest` drew them."
    if unscored := len(drawn - scored):
        yield f"{unscored} drawn dialogues have no score: unless they are missing at random, the estimates are biased."
    if undrawn := len(scored - drawn):
        yield f"{undrawn} scored dialogues were not drawn and have weight 1: leave them out."


def powered_tables(boards: Sequence[PoweredBoard], rubric: Rubric) -> list[Table]:
    """For each language: judge, people and both, the dimensions by both, and the differences."""
    tables: list[Table] = []
    for language, of_language in group_by(boards, lambda board: board.language).items():
        several = len(of_language) > 1
        rows: list[dict[str, Cell]] = []
        fine: list[dict[str, Cell]] = []
        gaps: list[dict[str, Cell]] = []
        for board in of_language:
            judged_by: dict[str, Cell] = {"judged by": board.judge} if several else {}
            for place in board.places:
                row: dict[str, Cell] = {"rank": paired.rank_text(place.rank), "supporter": place.supporter} | judged_by
                row |= {"judge alone": place.judge, "people alone": place.people, "both": place.both, "λ": board.tuning}
                rows.append(row | {"labels": place.labels, "labels saved": place.saved})
                named = zip((dimension_label(rubric, name) for name in rubric.dimensions), place.dimensions, strict=True)
                fine.append({"supporter": place.supporter, **judged_by, **dict(named)})
            for gap in board.differences:
                first, second = (board.places[place].supporter for place in (gap.first, gap.second))
                gaps.append({"supporter": first, "against": second, **judged_by, **paired.by_column(gap)})
        few = any(place.both.mean is not None and place.both.low is None for board in of_language for place in board.places)
        too_few = [f"Too few labels (fewer than {FEWEST} scored cards): no interval, no test and no rank."] * few
        board_notes = (
            f"Average on 0–100; n: dialogues judged, and dialogues that people scored. Judge alone [{SMOOTHED} over cards]: "
            "people may disagree with it. Both: the judge's mean over all dialogues, corrected by people's scores; unbiased if "
            f"the scored dialogues are a random choice, or weighted. People alone and both [{INTERVAL}].",
            "λ: the weight of the judge (0: people's mean alone), the same for all. Labels saved: scored dialogues that people "
            "alone would need in addition for an interval as narrow [95 %, Student's t]; n: labels of all. A dash: fewer than "
            f"{FEWEST_SAVED}, unequal weights, or not known within a factor of 20.",
            paired.RANKS,
            *too_few,
            *([] if several else [f"Judged by {of_language[0].judge}."]),
        )
        gap_note = f"Points of 0–100, [{INTERVAL}], n: scored cards of the supporter that has fewer. {paired.HOLDS}."
        by_both = f"{language}, by judge and people together"
        for key, title, body, notes in (
            ("leaderboard", f"Leaderboard, {language}: judge, people and both", rows, board_notes),
            ("dimensions", f"Dimensions, {by_both}", fine, (f"[{INTERVAL}].", *too_few)),
            ("differences", f"Differences in the average, {by_both}", gaps, (gap_note, FAMILIES, *too_few)),
        ):
            tables += [Table.of(f"{key}-powered-{language}", title, body, notes, TOGETHER)] * bool(body)
    return tables
