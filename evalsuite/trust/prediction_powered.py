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

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from core.statistics.bootstrap import LEVEL, POINTS, UNSEEN, Floats
from core.statistics.inference import contributions, holds, holm_of, student_p, welch
from core.tables import Estimate
from evalsuite.statistics import paired

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
