"""Judge and people together: people's scores of some dialogues correct a judge's scores of all."""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric
from core.statistics.bootstrap import SMOOTHED, Floats
from core.tables import Cell, Estimate, Table
from data_prep.scores.weights import read_weights, weights_beside
from evalsuite.report.board import people_scores
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.contestants import Contestant, contestants_of
from evalsuite.statistics.leaderboard import FAMILIES, family
from evalsuite.statistics.people import verdicts_of_people
from evalsuite.statistics.summary import dimension_label
from evalsuite.trust.prediction_powered import (
    FEWEST,
    FEWEST_SAVED,
    INTERVAL,
    LabelledScores,
    differences_of,
    estimates,
    powered,
    saved,
)

TOGETHER = "Judge and people together"
Rows = list[dict[str, Cell]]


def judge_and_people(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    paths: Sequence[Path],
    rubrics: Sequence[Path],
    floors: Collection[str] = (),
) -> list[Table]:
    """Tables of judge, people and both (`evalsuite.trust.prediction_powered`) for every language. Scores of other dialogues do
    not count; weights are read from next to the scores. `floors` are supporters that need no model, which have no rank. Raises
    `UserError` for scores on several rubrics, of single turns, or without a dimension of the judge's rubric."""
    scores, people_rubrics = people_scores(paths, rubrics, None)
    if len(people_rubrics) != 1:
        raise UserError(f"--people: scores on several rubrics ({', '.join(people_rubrics)}): give those on one")
    if turned := [score for score in scores if score.turn is not None]:
        raise UserError(f"--people: a score of turn {turned[0].turn} of {turned[0].dialogue_id}: only whole dialogues count")
    (by_people,) = people_rubrics.values()
    if lacking := [name for name in rubric.dimensions if name not in by_people.dimensions]:
        raise UserError(f"--people: scores on rubric {by_people.name} lack {', '.join(lacking)} of rubric {rubric.name}")
    ids = {dialogue.id: dialogue for dialogue in dialogues}
    kept = [score for score in scores if score.dialogue_id in ids]
    weights = read_weights(weights_beside(paths))
    verdicts = verdicts_of_people([score for score in kept if score.dimension in rubric.dimensions])
    columns = [list(by_people.dimensions).index(name) for name in rubric.dimensions]
    of_people = {
        (c.language, c.supporter): {id: row[:, columns] for id, row in c.dialogues.items()}
        for c in contestants_of(dialogues, verdicts, by_people)
    }
    judged = contestants_of(dialogues, judgements, rubric, card_of=lambda dialogue: dialogue.id)
    tables: list[Table] = []
    for language, contestants in group_by(judged, lambda contestant: contestant.language).items():
        fields = []
        for rivals in group_by(contestants, lambda contestant: contestant.scorer).values():
            labels = [of_people.get((language, rival.supporter), {}) for rival in rivals]
            if any(labels):
                fields.append((rivals, labels))
        boards = []
        for rivals, labels in fields:
            judge: dict[str, Cell] = {"judged by": rivals[0].scorer.name} if len(fields) > 1 else {}
            boards.append(_board(rivals, *_scored(rivals, labels, ids, weights), rubric, floors, judge))
        if boards:
            judged_by = [f"Judged by {fields[0][0][0].scorer.name}."] if len(fields) == 1 else []
            tables += _tables(language, boards, judged_by)
    if not tables:
        raise UserError("--people: none of the scored dialogues is in these runs")
    notes = (*tables[0].notes, *_weight_notes(weights.keys() & ids.keys(), kept))
    return [replace(tables[0], notes=notes), *tables[1:]]


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


def _scored(
    rivals: Sequence[Contestant],
    people_of: Sequence[Mapping[str, Floats]],
    dialogues: Mapping[str, Dialogue],
    weights: Mapping[str, float],
) -> tuple[LabelledScores, list[int], bool]:
    """Sums by card, the number of each contestant's dialogues that people scored, and whether these have equal weights."""
    names = sorted({card_of(dialogues[id]) for rival in rivals for id in rival.dialogues})
    row_of = {name: row for row, name in enumerate(names)}
    width = next(iter(rivals[0].cards.values())).shape[1]
    judge, judged, people, judge_labelled, weight = np.zeros((5, len(names), len(rivals), width))
    labels = [0] * len(rivals)
    pairs = list(zip(rivals, people_of, strict=True))
    for column, (rival, of_people) in enumerate(pairs):
        for id, (points, counts) in rival.dialogues.items():
            row = row_of[card_of(dialogues[id])]
            judge[row, column] += points
            judged[row, column] += counts
            if id in of_people:
                sums, people_counts = of_people[id]
                share = weights.get(id, 1.0) * (counts > 0) * (people_counts > 0)
                people[row, column] += share * sums
                judge_labelled[row, column] += share * points
                weight[row, column] += share
                labels[column] += bool(share.any())
    evenly = all(len({weights.get(id, 1.0) for id in scores.keys() & rival.dialogues}) < 2 for rival, scores in pairs)
    return LabelledScores(judge, judged, people, judge_labelled, weight), labels, evenly


def _board(
    rivals: Sequence[Contestant],
    scored: LabelledScores,
    labels: Sequence[int],
    evenly: bool,
    rubric: Rubric,
    floors: Collection[str],
    judged_by: Mapping[str, Cell],
) -> tuple[Rows, Rows, Rows]:
    """Rows of one language and judge: supporters by falling average, with how many more labels people alone would need for an
    interval as narrow as that of both; their dimensions by both; and the differences between every two."""
    board = powered(scored, weights=rivals[0].weights)
    people, both = (estimates(board, side, labels) for side in (board.people, board.both))
    dialogues = [int(count) for count in scored.judged.sum(axis=0).max(axis=1)]
    judge = paired.card_estimates(scored.judge, scored.judged, dialogues, design=paired.Design(weights=rivals[0].weights))
    order = sorted(range(len(rivals)), key=lambda place: -np.nan_to_num(board.both.means[place, -1], nan=-1.0))
    names = [rivals[place].supporter for place in order]
    pairs = list(combinations(order, 2))
    families = [family(rivals[first], rivals[second], floors) for first, second in pairs]
    new = {place: row for row, place in enumerate(order)}
    gaps = differences_of(board, board.both, pairs, families)
    differences = [replace(gap, first=new[gap.first], second=new[gap.second]) for gap in gaps]
    ranks = paired.rank_ranges(differences, len(order), [row for row, name in enumerate(names) if name not in floors])
    rows: Rows = []
    fine: Rows = []
    for place, name, rank in zip(order, names, ranks, strict=True):
        *dimensions, average = both[place]
        more = saved(board, labels[place]) if evenly else Estimate(None, None, None, sum(labels))
        averages = {"judge alone": judge[place][-1], "people alone": people[place][-1], "both": average}
        rows.append({"rank": paired.rank_text(rank), "supporter": name, **judged_by, **averages})
        rows[-1] |= {"λ": float(board.tuning.mean()), "labels": labels[place], "labels saved": more}
        labelled = zip((dimension_label(rubric, key) for key in rubric.dimensions), dimensions, strict=True)
        fine.append({"supporter": name, **judged_by, **dict(labelled)})
    compared: Rows = []
    for gap in differences:
        compared.append({"supporter": names[gap.first], "against": names[gap.second], **judged_by, **paired.by_column(gap)})
    return rows, fine, compared


def _tables(language: str, boards: Sequence[tuple[Rows, Rows, Rows]], judged_by: Sequence[str]) -> Iterator[Table]:
    """The boards of a language, one per judge, as tables; `judged_by` is a note."""
    cells = [row["both"] for rows, *_ in boards for row in rows]
    few = any(isinstance(cell, Estimate) and cell.mean is not None and cell.low is None for cell in cells)
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
        *judged_by,
    )
    gap_note = f"Points of 0–100, [{INTERVAL}], n: scored cards of the supporter that has fewer. {paired.HOLDS}."
    by_both = f"{language}, by judge and people together"
    for place, (key, title, notes) in enumerate(
        (
            ("leaderboard", f"Leaderboard, {language}: judge, people and both", board_notes),
            ("dimensions", f"Dimensions, {by_both}", (f"[{INTERVAL}].", *too_few)),
            ("differences", f"Differences in the average, {by_both}", (gap_note, FAMILIES, *too_few)),
        )
    ):
        body = [row for rows in boards for row in rows[place]]
        if body:
            yield Table.of(f"{key}-powered-{language}", title, body, notes, TOGETHER)
