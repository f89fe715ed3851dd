"""Leaderboards from many verdicts of a judge and few scores of people: prediction-powered estimates.

The judge's mean over all dialogues is corrected by what people say of the judge on the dialogues that they scored
(Angelopoulos et al. 2023, "Prediction-powered inference"; power tuning: Angelopoulos, Duchi and Zrnic 2023, "PPI++"):

    mean = λ · mean of the judge, all dialogues + mean of (people − λ · judge), scored dialogues

It is unbiased for people's mean over all dialogues if those that people scored are a random choice, or each has the weight
1 / its chance of being chosen. λ (0 to 1) makes the variance least: a judge that does not go with people gets 0, and what is
left is people's mean. The authors' library knows no clusters; here cards are clusters in both terms together.

With few labels three things would find differences that are not there, and each was measured (tests/bench/truth_people.py):

- A λ that is fitted to a supporter's own few labels takes chance for agreement. So all supporters of a board share one λ a
  dimension, and what a card adds to the error is taken at the λ that its own labels had no part in.
- The normal tail is too short. Intervals and p are Student's t, on degrees of freedom that come from the scored cards.
- Labels that are all alike, or equal to the judge's, show no error. So each mean has the error that half a card would add that
  nobody has seen: any level of the scale by people's scores, one level off by the judge's.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric
from core.statistics.bootstrap import LEVEL, POINTS, UNSEEN, Floats
from core.statistics.inference import contributions, holds, holm_of, student_p, welch
from core.tables import Estimate
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.contestants import Contestant, contestants_of
from evalsuite.statistics.leaderboard import family
from evalsuite.statistics.people import verdicts_of_people

FEWEST = 5  # scored cards of a supporter: with fewer there is no interval, no test and no rank
FEWEST_SAVED = 24  # labels of a board, from which on the labels saved are not above the truth
FACTOR = 3.0  # natural logarithm of the factor (20) within which they must be known
INTERVAL = "95 %, Student's t over cards, Welch's degrees of freedom of the scored ones"
_END = 1 - (1 - LEVEL) / 2

Sides = tuple[Floats, Floats]


@dataclass(frozen=True)
class Corrected:
    """Means [contestants, columns] in points of 0–100, columns being the dimensions and last their average; NaN where nobody
    scored. `parts` [cards, contestants, columns] is what each card adds to the error, `unseen` [contestants, columns] what half
    a card would that nobody has seen."""

    means: Floats
    parts: Floats
    unseen: Floats


@dataclass(frozen=True)
class Powered:
    """People's means alone and corrected by the judge, λ [dimensions], which cards [cards, contestants] people scored, and how
    many these count for [contestants]: fewer than they are where they have unequal weights."""

    people: Corrected
    both: Corrected
    tuning: Floats
    scored: NDArray[np.bool_]
    clusters: Floats


@dataclass(frozen=True)
class LabelledScores:
    """Sums over the dialogues of each card, [cards, contestants, dimensions]: the judge's points and their number over all
    dialogues; and over those that people scored, each times its weight, people's points, the judge's, and the weights."""

    judge: Floats
    judged: Floats
    people: Floats
    judge_there: Floats
    weight: Floats


def powered(scored: LabelledScores, tuning: Floats | None = None, weights: Floats | None = None) -> Powered:
    """Estimates of a board's contestants, at the λ of `tuning` [dimensions] where it is given. `weights` [dimensions] are those
    of the average."""
    judge, judge_parts, _ = contributions(scored.judge, scored.judged)
    people, own, cards = contributions(scored.people, scored.weight)
    there, there_parts, _ = contributions(scored.judge_there, scored.weight)
    totals = scored.weight.sum(axis=0)
    share = np.divide(scored.weight, totals, out=np.zeros(scored.weight.shape), where=totals > 0)
    clusters = 1 / np.maximum((share**2).sum(axis=0), 1 / len(share))  # Kish's effective number
    other = np.where(cards > 1, judge_parts - there_parts, 0.0)
    left_out = 1 / np.maximum(1 - share, 1e-9)  # how much larger a card's part is in the mean without it
    if tuning is None:
        free = np.maximum(cards - 1, 0).sum(axis=0)
        products = np.stack([own * other, other**2, own**2]).sum(axis=2)
        without = products.sum(axis=1, keepdims=True) - (np.stack([own * other, other**2, own**2]) * left_out).sum(axis=2)
        tuning, apart = _tuning(products.sum(axis=1), free), _tuning(without, free - 1)
    else:
        apart = np.broadcast_to(tuning, (len(own), len(tuning)))

    def at(used: Floats, of_card: Floats) -> Corrected:
        means = people + used * (judge - there)
        parts = (own + of_card[:, None] * other) * np.sqrt(left_out) * (cards > 1)
        # Half a card more, of any level by people, and by the judge one level off.
        spread = (1 - used) ** 2 * np.square(POINTS - np.clip(means, 0, 100)[..., None]).mean(axis=-1) + (used * POINTS[1]) ** 2
        unseen = np.sqrt(UNSEEN * (UNSEEN + 1) / ((clusters + UNSEEN) * (clusters + UNSEEN + 1)) * spread)
        return Corrected(*(paired.with_average(part, weights) for part in (means, parts, unseen)))

    none = np.zeros(len(tuning))
    alone, both = at(none, np.zeros(own.shape[::2])), at(tuning, apart)
    return Powered(alone, both, tuning, np.any(scored.weight > 0, axis=2), np.where(cards > 0, clusters, 0).min(axis=1))


def _tuning(products: Floats, free: Floats) -> Floats:
    """λ from sums of products [3, …] of people's parts and the judge's, the judge's squares and people's: the least variance of
    people's part plus λ times the judge's, shrunk by how well that is known (as the adjusted R² is)."""
    both, judge, people = products[0], np.maximum(products[1], 0), np.maximum(products[2], 0)
    best = np.divide(-both, judge, out=np.zeros(both.shape), where=judge > 1e-18)
    explained = np.divide(both**2, judge * people, out=np.zeros(both.shape), where=judge * people > 1e-36)
    left = (1 - explained) / np.maximum(explained * (free - 1), 1e-9)
    tuned: Floats = np.clip(best, 0, 1) * np.clip(1 - left, 0, 1)
    return tuned


def _error(parts: Floats, scored: Sequence[NDArray[np.bool_]], unseen: Sequence[Floats], clusters: Sequence[Floats]) -> Sides:
    """Standard errors and degrees of freedom of means with these parts [cards, …]: Welch's, over the cards that were scored of
    one side, those scored of the other alone, and all others, of which only the judge says something."""
    squares, (first, other) = parts**2, scored
    second, rest = other & ~first, ~(first | other)
    sides = [np.sqrt((squares * on).sum(axis=0) + more**2) for on, more in zip((first, second), unseen, strict=True)]
    error, free = welch(sides[0], sides[1], (clusters[0], clusters[1]))
    return welch(error, np.sqrt((squares * rest).sum(axis=0)), (free + 1, rest.sum(axis=0)))


def _estimate(mean: float, reach: float, n: int, low: float = 0.0) -> Estimate:
    """Within the scale; without an interval where its reach is NaN."""
    ends = mean, np.maximum(mean - reach, low), np.minimum(mean + reach, 100)
    middle, bottom, top = (None if np.isnan(end) else float(end) for end in ends)
    return Estimate(middle, bottom, top, n)


def estimates(found: Powered, side: Corrected, labels: Sequence[int]) -> list[list[Estimate]]:
    """Of each contestant, which has so many labels, the means on every dimension and their average with Student's t interval;
    without one where fewer than `FEWEST` cards were scored."""
    on, count = found.scored[:, :, None], found.clusters[:, None]
    error, free = _error(side.parts, (on, on), (side.unseen, np.zeros(1)), (count, count))
    reach = np.where(on.sum(axis=0) >= FEWEST, stdtrit(free, _END) * error, np.nan)
    return [
        [_estimate(mean, width, n) for mean, width in zip(means, widths, strict=True)]
        for means, widths, n in zip(side.means, reach, labels, strict=True)
    ]


def differences_of(
    found: Powered, side: Corrected, pairs: Sequence[tuple[int, int]], families: Sequence[Hashable] | None = None
) -> list[paired.Difference]:
    """The difference of each pair of contestants in the average, with Holm's correction within each family; one whose family is
    None, or with fewer than `FEWEST` scored cards on a side, is not tested."""
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    means, unseen, cards = side.means[:, -1], side.unseen[:, -1], found.scored.sum(axis=0)
    gaps, fewest = means[first] - means[second], np.minimum(cards[first], cards[second])
    parts = side.parts[:, first, -1] - side.parts[:, second, -1]
    on, of_sides = (found.scored[:, first], found.scored[:, second]), (found.clusters[first], found.clusters[second])
    error, free = _error(parts, on, (unseen[first], unseen[second]), of_sides)
    reach = np.where(fewest < FEWEST, np.nan, stdtrit(free, _END) * error)
    tested = np.where(np.isnan(reach), np.nan, student_p(gaps, error, fewest, 100.0, free))
    untested = np.isnan(tested) | [families is not None and families[place] is None for place in range(len(pairs))]
    p = [None if left else float(one) for one, left in zip(tested, untested, strict=True)]
    return [
        paired.Difference(
            first=one,
            second=other,
            dimension=None,
            first_mean=None if np.isnan(gaps[place]) else float(means[one]),
            second_mean=None if np.isnan(gaps[place]) else float(means[other]),
            estimate=_estimate(gaps[place], reach[place], int(fewest[place]), -100.0),
            p=p[place],
            holm=corrected,
            holds=holds(corrected),
        )
        for place, ((one, other), corrected) in enumerate(zip(pairs, holm_of(p, families), strict=True))
    ]


def saved(found: Powered, labels: int) -> Estimate:
    """How many scored dialogues more than `labels` people alone would need for the variance that both have, from the variances
    of all contestants' averages together; n counts these labels. The ratio of variances is estimated without bias (what each
    card adds is taken at the λ of the others), with Student's t on the logarithm; the error holds what scores that are normal
    would add, and half a card that nobody has seen."""
    usable = (found.scored.sum(axis=0) > 1) & ~np.isnan(found.both.means[:, -1])
    n = int(found.scored[:, usable].sum())
    alone, both = (np.square(side.parts[:, usable, -1]).sum(axis=1) for side in (found.people, found.both))
    if n < FEWEST_SAVED or not (alone.sum() > 0 and both.sum() > 0):
        return Estimate(None, None, None, n)
    cards = int(found.scored.any(axis=1).sum())
    ratio = np.log(alone.sum() / both.sum())
    variance = cards / (cards - 1) * float(np.square(alone / alone.sum() - both / both.sum()).sum())
    variance += (2 / n) ** 2 + 4 * max(1 - np.exp(-ratio), 0) / n
    more = n / cards * POINTS.var() / found.clusters[usable].min() ** 2  # of as many supporters as a card has
    variance += UNSEEN * (UNSEEN + 1) * float(more / both.sum()) ** 2
    reach = stdtrit(cards - 1, _END) * np.sqrt(variance)
    if reach > FACTOR:
        return Estimate(None, None, None, n)
    # The mean of exp of a normal is above exp of its mean: so the variance comes off.
    mean, low, high = (labels * max(float(np.expm1(end)), 0.0) for end in (ratio - variance / 2, ratio - reach, ratio + reach))
    return Estimate(mean, min(low, mean), high, n)


# --- boards -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SupporterPlace:
    """A supporter on such a board: averages over dimensions. `labels` are the dialogues that people scored, `saved` how many
    more of them people alone would need for an interval as narrow as both have."""

    supporter: str
    rank: tuple[int, int] | None
    judge: Estimate
    people: Estimate
    both: Estimate
    dimensions: list[Estimate]
    labels: int
    saved: Estimate


@dataclass(frozen=True)
class PoweredBoard:
    """One language and judge: places by falling average, every two supporters' difference (`Difference.first` and `second`
    are places), and the mean λ of the dimensions."""

    language: str
    judge: str
    places: list[SupporterPlace]
    differences: list[paired.Difference]
    tuning: float


def powered_boards(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    scores: Sequence[HumanScore],
    people_rubric: Rubric,
    weights: Mapping[str, float] | None = None,
    floors: Collection[str] = (),
) -> list[PoweredBoard]:
    """A board for every language and judge. `weights` (dialogue → 1 / chance) are 1 for a dialogue that has none; `floors` name
    supporters that need no model, which are ranked with none.

    Raises `UserError` where people did not score a dimension of the judge's rubric.
    """
    if lacking := [name for name in rubric.dimensions if name not in people_rubric.dimensions]:
        raise UserError(f"--people: scores on rubric {people_rubric.name} lack {', '.join(lacking)} of rubric {rubric.name}")
    named = {dialogue.id: dialogue for dialogue in dialogues}
    wanted = [score for score in scores if score.dimension in rubric.dimensions]
    places = [list(people_rubric.dimensions).index(name) for name in rubric.dimensions]
    of_people = {
        (one.language, one.supporter): {id: row[:, places] for id, row in one.cards.items()}
        for one in contestants_of(dialogues, verdicts_of_people(wanted), people_rubric, card_of=lambda dialogue: dialogue.id)
    }
    judged = contestants_of(dialogues, judgements, rubric, card_of=lambda dialogue: dialogue.id)
    boards = []
    for (language, _), rivals in group_by(judged, lambda one: (one.language, one.scorer)).items():
        given = [of_people.get((one.language, one.supporter), {}) for one in rivals]
        if not any(given):
            continue
        scored, labels, evenly = _scored(rivals, given, named, weights or {})
        boards.append(_board(language, rivals, scored, labels, evenly, floors))
    if not boards:
        raise UserError("--people: none of the scored dialogues is in these runs")
    return boards


def _scored(
    rivals: Sequence[Contestant],
    given: Sequence[Mapping[str, Floats]],
    dialogues: Mapping[str, Dialogue],
    weights: Mapping[str, float],
) -> tuple[LabelledScores, list[int], bool]:
    """Sums by card, how many dialogues people scored of each contestant, and whether all of one have the same weight."""
    names = sorted({card_of(dialogues[id]) for one in rivals for id in one.cards})
    row_of = {name: row for row, name in enumerate(names)}
    width = next(iter(rivals[0].cards.values())).shape[1]
    judge, judged, people, there, weight = np.zeros((5, len(names), len(rivals), width))
    labels = [0] * len(rivals)
    pairs = list(zip(rivals, given, strict=True))
    for column, (one, of_people) in enumerate(pairs):
        for id, (points, counts) in one.cards.items():
            row = row_of[card_of(dialogues[id])]
            judge[row, column] += points
            judged[row, column] += counts
            if id in of_people:
                sums, there_are = of_people[id]
                share = weights.get(id, 1.0) * (counts > 0) * (there_are > 0)
                people[row, column] += share * sums
                there[row, column] += share * points
                weight[row, column] += share
                labels[column] += bool(share.any())
    evenly = all(len({weights.get(id, 1.0) for id in of_people.keys() & one.cards.keys()}) < 2 for one, of_people in pairs)
    return LabelledScores(judge, judged, people, there, weight), labels, evenly


def _board(
    language: str,
    rivals: Sequence[Contestant],
    scored: LabelledScores,
    labels: Sequence[int],
    evenly: bool,
    floors: Collection[str],
) -> PoweredBoard:
    found = powered(scored, weights=rivals[0].weights)
    people, both = (estimates(found, side, labels) for side in (found.people, found.both))
    dialogues = [int(count) for count in scored.judged.sum(axis=0).max(axis=1)]
    judge = paired.card_estimates(scored.judge, scored.judged, dialogues, design=paired.Design(weights=rivals[0].weights))
    order = sorted(range(len(rivals)), key=lambda place: -np.nan_to_num(found.both.means[place, -1], nan=-1.0))
    pairs = list(combinations(order, 2))
    families = [family(rivals[one], rivals[other], floors) for one, other in pairs]
    new = {place: row for row, place in enumerate(order)}
    differences = [
        replace(gap, first=new[gap.first], second=new[gap.second]) for gap in differences_of(found, found.both, pairs, families)
    ]
    models = [row for row, place in enumerate(order) if rivals[place].supporter not in floors]
    ranks = paired.rank_ranges(differences, len(order), models)
    places = [
        SupporterPlace(
            supporter=rivals[place].supporter,
            rank=ranks[new[place]],
            judge=judge[place][-1],
            people=people[place][-1],
            both=both[place][-1],
            dimensions=both[place][:-1],
            labels=labels[place],
            saved=saved(found, labels[place]) if evenly else Estimate(None, None, None, sum(labels)),
        )
        for place in order
    ]
    return PoweredBoard(language, rivals[0].scorer.name, places, differences, float(found.tuning.mean()))
