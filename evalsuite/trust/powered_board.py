"""Leaderboards from many verdicts of a judge and few scores of people: prediction-powered estimates.

The judge's mean over all dialogues is corrected by its mean error on the dialogues that people scored
(Angelopoulos et al. 2023, "Prediction-powered inference"; power tuning: Angelopoulos, Duchi and Zrnic 2023, "PPI++"):

    mean = λ · mean of the judge, all dialogues + mean of (people − λ · judge), scored dialogues

It is unbiased for people's mean over all dialogues if the scored ones are a random choice, or have the weight 1 / their chance
of being chosen. λ (0 to 1) minimises the variance: a judge that does not correlate with people gets 0, which leaves people's
mean. The authors' library has no clusters; here cards are clusters, in both terms together.

With few labels three things would inflate the error rate; each was measured (tests/bench/truth_people.py):

- A λ fitted to a supporter's own few labels mistakes chance for agreement. So all supporters of a board share one λ per
  dimension, and a card's contribution to the error is taken at the λ fitted without its own labels.
- The normal tail is too short. Intervals and p use Student's t, with degrees of freedom from the scored cards.
- Labels that are all alike, or equal to the judge's, show no error. So each mean has the error that an unseen half card would
  add: any level of the scale for people's scores, one level off for the judge's.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric
from core.statistics.bootstrap import LEVEL, POINTS, SMOOTHED, UNSEEN, Floats
from core.statistics.inference import contributions, holds, holm_of, student_p, welch
from core.tables import Cell, Estimate, Table
from data_prep.scores.annotation import read_weights, weights_beside
from evalsuite.report.board import people_scores
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import Contestant, card_of, contestants_of, verdicts_of_people
from evalsuite.statistics.leaderboard import FAMILIES, family
from evalsuite.statistics.summary import dimension_label

FEWEST = 5  # scored cards of a supporter: with fewer there is no interval, no test and no rank
FEWEST_SAVED = 24  # labels of a board: with fewer, the labels saved are overestimated
FACTOR = 3.0  # natural logarithm of the factor (20) within which they must be known
INTERVAL = "95 %, Student's t over cards, Welch's degrees of freedom of the scored ones"
_END = 1 - (1 - LEVEL) / 2

Sides = tuple[Floats, Floats]


@dataclass(frozen=True)
class Corrected:
    """Means [contestants, columns] in points of 0–100, by dimension and on average (last); NaN without scores by people. The
    error consists of each card's part, `parts` [cards, contestants, columns], and that of an unseen half card, `unseen`
    [contestants, columns]."""

    means: Floats
    parts: Floats
    unseen: Floats


@dataclass(frozen=True)
class Powered:
    """People's means alone and combined with the judge; λ (`tuning`) [dimensions]; which cards people `scored` [cards,
    contestants], and their effective number, `clusters` [contestants], which is smaller if weights are unequal."""

    people: Corrected
    both: Corrected
    tuning: Floats
    scored: NDArray[np.bool_]
    clusters: Floats


@dataclass(frozen=True)
class LabelledScores:
    """Sums over each card's dialogues, [cards, contestants, dimensions]: the judge's points and their number over all
    dialogues; and over the labelled ones, multiplied by weight, people's points, the judge's points, and the weights."""

    judge: Floats
    judged: Floats
    people: Floats
    judge_labelled: Floats
    weight: Floats


def powered(scored: LabelledScores, tuning: Floats | None = None, weights: Floats | None = None) -> Powered:
    """Estimates of a board's contestants, at the λ of `tuning` [dimensions] if given; `weights` [dimensions] of the average."""
    judge, judge_parts, _ = contributions(scored.judge, scored.judged)
    people, own, cards = contributions(scored.people, scored.weight)
    judge_labelled, labelled_parts, _ = contributions(scored.judge_labelled, scored.weight)
    totals = scored.weight.sum(axis=0)
    share = np.divide(scored.weight, totals, out=np.zeros(scored.weight.shape), where=totals > 0)
    clusters = 1 / np.maximum((share**2).sum(axis=0), 1 / len(share))  # Kish's effective number
    other = np.where(cards > 1, judge_parts - labelled_parts, 0.0)
    left_out = 1 / np.maximum(1 - share, 1e-9)  # how much larger a card's part is relative to the mean without it
    if tuning is None:
        free = np.maximum(cards - 1, 0).sum(axis=0)
        products = np.stack([own * other, other**2, own**2]).sum(axis=2)
        without = products.sum(axis=1, keepdims=True) - (np.stack([own * other, other**2, own**2]) * left_out).sum(axis=2)
        tuning, tuning_without = _tuning(products.sum(axis=1), free), _tuning(without, free - 1)
    else:
        tuning_without = np.broadcast_to(tuning, (len(own), len(tuning)))

    def at(used: Floats, of_card: Floats) -> Corrected:
        means = people + used * (judge - judge_labelled)
        parts = (own + of_card[:, None] * other) * np.sqrt(left_out) * (cards > 1)
        # Half a card more, of any level by people, and by the judge one level off.
        spread = (1 - used) ** 2 * np.square(POINTS - np.clip(means, 0, 100)[..., None]).mean(axis=-1) + (used * POINTS[1]) ** 2
        unseen = np.sqrt(UNSEEN * (UNSEEN + 1) / ((clusters + UNSEEN) * (clusters + UNSEEN + 1)) * spread)
        return Corrected(*(paired.with_average(part, weights) for part in (means, parts, unseen)))

    zeros = np.zeros(len(tuning))
    people_alone, both = at(zeros, np.zeros(own.shape[::2])), at(tuning, tuning_without)
    return Powered(people_alone, both, tuning, np.any(scored.weight > 0, axis=2), np.where(cards > 0, clusters, 0).min(axis=1))


def _tuning(products: Floats, free: Floats) -> Floats:
    """λ from the sums [3, …] of people's parts times the judge's, of the judge's squared, and of people's squared: it minimises
    the variance of people's part plus λ times the judge's, shrunk by its uncertainty as in the adjusted R²."""
    both, judge, people = products[0], np.maximum(products[1], 0), np.maximum(products[2], 0)
    best = np.divide(-both, judge, out=np.zeros(both.shape), where=judge > 1e-18)
    explained = np.divide(both**2, judge * people, out=np.zeros(both.shape), where=judge * people > 1e-36)
    unexplained = (1 - explained) / np.maximum(explained * (free - 1), 1e-9)
    tuned: Floats = np.clip(best, 0, 1) * np.clip(1 - unexplained, 0, 1)
    return tuned


def _error(parts: Floats, scored: Sequence[NDArray[np.bool_]], unseen: Sequence[Floats], clusters: Sequence[Floats]) -> Sides:
    """Standard errors and degrees of freedom (Welch's) of means with these parts [cards, …], over the cards scored on the first
    side, those scored on the second side only, and those that only the judge scored."""
    squares, (first, other) = parts**2, scored
    second, neither = other & ~first, ~(first | other)
    sides = [np.sqrt((squares * on).sum(axis=0) + more**2) for on, more in zip((first, second), unseen, strict=True)]
    error, free = welch(sides[0], sides[1], (clusters[0], clusters[1]))
    return welch(error, np.sqrt((squares * neither).sum(axis=0)), (free + 1, neither.sum(axis=0)))


def _estimate(mean: float, reach: float, n: int, low: float = 0.0) -> Estimate:
    """An estimate within the scale; without an interval if `reach` is NaN."""
    ends = mean, np.maximum(mean - reach, low), np.minimum(mean + reach, 100)
    middle, bottom, top = (None if np.isnan(end) else float(end) for end in ends)
    return Estimate(middle, bottom, top, n)


def estimates(board: Powered, side: Corrected, labels: Sequence[int]) -> list[list[Estimate]]:
    """Each contestant's means on every dimension and on average, with Student's t intervals if at least `FEWEST` of its cards
    were scored; n is its number of `labels`."""
    on, count = board.scored[:, :, None], board.clusters[:, None]
    error, free = _error(side.parts, (on, on), (side.unseen, np.zeros(1)), (count, count))
    reach = np.where(on.sum(axis=0) >= FEWEST, stdtrit(free, _END) * error, np.nan)
    rows = (zip(*row, strict=True) for row in zip(side.means, reach, strict=True))
    return [[_estimate(*cell, n) for cell in row] for row, n in zip(rows, labels, strict=True)]


def differences_of(
    board: Powered, side: Corrected, pairs: Sequence[tuple[int, int]], families: Sequence[Hashable] | None = None
) -> list[paired.Difference]:
    """The difference of each pair of contestants in the average, with Holm's correction within each family. Pairs whose family
    is None, or with fewer than `FEWEST` scored cards on a side, are not tested."""
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    means, unseen, cards = side.means[:, -1], side.unseen[:, -1], board.scored.sum(axis=0)
    gaps, fewest = means[first] - means[second], np.minimum(cards[first], cards[second])
    parts = side.parts[:, first, -1] - side.parts[:, second, -1]
    on, of_sides = (board.scored[:, first], board.scored[:, second]), (board.clusters[first], board.clusters[second])
    error, free = _error(parts, on, (unseen[first], unseen[second]), of_sides)
    reach = np.where(fewest < FEWEST, np.nan, stdtrit(free, _END) * error)
    tested = np.where(np.isnan(reach), np.nan, student_p(gaps, error, fewest, 100.0, free))
    untested = np.isnan(tested) | [families is not None and families[place] is None for place in range(len(pairs))]
    p = [None if skipped else float(value) for value, skipped in zip(tested, untested, strict=True)]
    result = []
    for (a, b), gap, width, n, value, corrected in zip(pairs, gaps, reach, fewest, p, holm_of(p, families), strict=True):
        own, other = (None if np.isnan(gap) else float(means[place]) for place in (a, b))
        cell = _estimate(gap, width, int(n), -100.0)
        result.append(paired.Difference(a, b, None, own, other, cell, value, corrected, holds(corrected)))
    return result


def saved(board: Powered, labels: int) -> Estimate:
    """How many scored dialogues beyond `labels` people alone would need for the variance that both have; n counts all labels.
    The ratio of variances of all averages is estimated without bias (each card's part is taken at the λ of the others), with
    Student's t on its logarithm; the error includes the sampling error of normal scores and an unseen half card."""
    usable = (board.scored.sum(axis=0) > 1) & ~np.isnan(board.both.means[:, -1])
    n = int(board.scored[:, usable].sum())
    people, both = (np.square(side.parts[:, usable, -1]).sum(axis=1) for side in (board.people, board.both))
    if n < FEWEST_SAVED or not (people.sum() > 0 and both.sum() > 0):
        return Estimate(None, None, None, n)
    cards = int(board.scored.any(axis=1).sum())
    ratio = np.log(people.sum() / both.sum())
    variance = cards / (cards - 1) * float(np.square(people / people.sum() - both / both.sum()).sum())
    variance += (2 / n) ** 2 + 4 * max(1 - np.exp(-ratio), 0) / n
    more = n / cards * POINTS.var() / board.clusters[usable].min() ** 2  # for the mean number of supporters per card
    variance += UNSEEN * (UNSEEN + 1) * float(more / both.sum()) ** 2
    reach = stdtrit(cards - 1, _END) * np.sqrt(variance)
    if reach > FACTOR:
        return Estimate(None, None, None, n)
    # The mean of exp of a normal exceeds exp of its mean by half the variance, which is subtracted.
    mean, low, high = (labels * max(float(np.expm1(end)), 0.0) for end in (ratio - variance / 2, ratio - reach, ratio + reach))
    return Estimate(mean, min(low, mean), high, n)


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
    """Tables of judge, people and both (`evalsuite.trust.powered_board`) for every language. Scores of other dialogues do
    not count; weights are read from next to the scores. `floors` are supporters that need no model, which have no rank. Raises
    `UserError` for scores on several rubrics, of single turns, or without a dimension of the judge's rubric."""
    scores, people_rubrics = people_scores(paths, [*rubrics, rubric], None)
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
    weights = rivals[0].design.weights
    board = powered(scored, weights=weights)
    people, both = (estimates(board, side, labels) for side in (board.people, board.both))
    dialogues = [int(count) for count in scored.judged.sum(axis=0).max(axis=1)]
    judge = paired.card_estimates(scored.judge, scored.judged, dialogues, design=paired.Design(weights=weights))
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
