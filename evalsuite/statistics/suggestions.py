"""Which dialogues people should score next, so that few distinguish supporters (active inference, Zrnic and Candès 2024).

The budget is split between supporters by what each adds to the variance of their difference. Within a supporter, a dialogue is
drawn with a chance that grows with how unsure the judge is of it: the spread of its probabilities, or of its repeats. Half of
all chances is the same for every dialogue, so that none is left out and no weight is large; where a judge gave neither, all of
it is. The weight is 1 / chance: with it the leaderboard by judge and people stays unbiased. What was scored before is not drawn
again, and then both rounds are weighed together (`weights_together`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import SEED, Floats
from core.statistics.means import exact_mean
from core.statistics.reliability import CORRELATION_FROM, jackknife, left_out
from core.tables import Estimate
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.coefficients import coefficients
from evalsuite.statistics.leaderboard import Board
from evalsuite.statistics.summary import supporter_of

EVEN = 0.5  # the part of a chance that is the same for all dialogues, and of a budget that does not go by uncertainty


@dataclass(frozen=True)
class Suggestion:
    """A drawn dialogue and its weight."""

    dialogue: Dialogue
    weight: float


def uncertainty(judgements: Sequence[Judgement], rubric: Rubric) -> dict[str, float]:
    """Dialogue → how unsure its judge is, in points of 0–100: the mean over dimensions of the standard deviation of the judge's
    probabilities, or of its repeats where it gave none; dialogues without either are not in it."""
    spreads: dict[str, list[float]] = {}
    for (id, dimension), verdicts in group_by(judgements, lambda one: (one.dialogue_id, one.dimension)).items():
        factor = 100 / rubric.scale_of(dimension).span
        spread = [_deviation(one.distribution) for one in verdicts if one.distribution]
        values = [one.value for one in verdicts if one.value is not None]
        if spread:
            spreads.setdefault(id, []).append(factor * float(np.mean(spread)))
        elif len(values) > 1:
            spreads.setdefault(id, []).append(factor * float(np.std(values, ddof=1)))
    return {id: float(np.mean(each)) for id, each in spreads.items()}


def _deviation(shares: Mapping[str, float]) -> float:
    scores, chances = np.array([float(score) for score in shares]), np.array(list(shares.values()))
    return float(np.sqrt(np.average((scores - np.average(scores, weights=chances)) ** 2, weights=chances)))


def spread_and_error(judgements: Sequence[Judgement], people: Sequence[HumanScore], rubric: Rubric) -> Estimate:
    """Spearman's correlation (−1 to 1) of how unsure a judge is of a dialogue with how far its average lies from people's, over
    the dialogues that people scored on this rubric (n); [jackknife on Fisher's scale]. A draw by spread saves
    labels only where it is above 0."""
    spread, errors = uncertainty(judgements, rubric), dict[str, list[float]]()
    given = group_by(people, lambda score: (score.dialogue_id, score.dimension))
    for (id, dimension), verdicts in group_by(judgements, lambda one: (one.dialogue_id, one.dimension)).items():
        values = [one.value for one in verdicts if one.value is not None]
        if id in spread and values and (scores := given.get((id, dimension))):
            gap = exact_mean(values) - exact_mean(score.value for score in scores)
            errors.setdefault(id, []).append(100 * gap / rubric.scale_of(dimension).span)
    return rank_correlation(
        np.array([spread[id] for id in errors]), np.array([abs(float(np.mean(each))) for each in errors.values()])
    )


def rank_correlation(x: Floats, y: Floats) -> Estimate:
    """Spearman's correlation of n pairs with its jackknife interval; none for fewer than three."""
    n = len(x)
    if n < 3:
        return Estimate(None, None, None, n)
    return jackknife(coefficients(x, y, np.arange(n), left_out(n))[:, 0], n, CORRELATION_FROM)


# --- whom to compare ----------------------------------------------------------------------------------------------------------


def closest(boards: Iterable[Board], floors: Container[str]) -> set[tuple[Language, str]]:
    """Language and name of the two supporters of each board that the judge distinguishes least: the smallest difference among
    those whose interval contains zero, or among all where none does. Floors are left out; a supporter without another stands
    alone."""
    found: set[tuple[Language, str]] = set()
    for board in boards:
        names = [one.supporter for one in board.contestants]
        gaps = [
            (low is not None and high is not None and not low <= 0 <= high, abs(mean), gap)
            for gap in board.differences
            for mean, low, high in [(gap.estimate.mean, gap.estimate.low, gap.estimate.high)]
            if mean is not None and names[gap.first] not in floors and names[gap.second] not in floors
        ]
        if gaps:
            _, _, gap = min(gaps, key=lambda one: one[:2])
            names = [names[gap.first], names[gap.second]]
        found.update((board.language, name) for name in names if name not in floors)
    return found


def split(errors: Sequence[Floats], budget: int, before: Sequence[int] | None = None) -> list[int]:
    """How many labels each supporter gets, by the predicted errors of its dialogues without one, beside those of `before`.

    All begin with two (one where the budget is short). Each further label goes where it takes most off the variance of the
    supporters' differences; half of that goes by their mean, so that a judge that is wrongly sure of one costs little.
    """
    adds = np.array([np.mean(each**2 / (len(each) * _shares(each))) for each in errors])
    adds = EVEN * adds.mean() + (1 - EVEN) * adds if adds.any() else np.ones(len(errors))
    sizes = np.array([len(each) for each in errors])
    labels, had = np.minimum(sizes, max(1, min(2, budget // len(errors)))), np.array(before or [0] * len(errors))
    while labels.sum() < min(budget, sizes.sum()):
        new = had + labels
        gains = np.where(labels < sizes, adds / (new * (new + 1)), -1.0)  # adds / new − adds / (new + 1)
        labels[gains.argmax()] += 1
    return [int(count) for count in labels]


# --- what is drawn ------------------------------------------------------------------------------------------------------------


def _shares(errors: Floats) -> Floats:
    """Chances that sum to 1 along the first axis of predicted errors [n, …]: a part the same for all, a part as the errors."""
    n, total = len(errors), errors.sum(axis=0)
    result: Floats = EVEN / n + (1 - EVEN) * np.divide(errors, total, out=np.full(errors.shape, 1 / n), where=total > 0)
    return result


def chances(errors: Floats, budget: int) -> Floats:
    """Chances that sum to the budget, in the ratio of `_shares`; none is above 1."""
    n = len(errors)
    if budget >= n:
        return np.ones_like(errors)
    wanted = _shares(errors)
    low, high = np.zeros(errors.shape[1:]), n / wanted.min(axis=0)
    for _ in range(50):  # the factor at which the chances, cut at 1, sum to the budget
        middle = (low + high) / 2
        short = np.minimum(middle * wanted, 1).sum(axis=0) < budget
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    result: Floats = np.minimum(high * wanted, 1.0)
    return result


def drawn(chance: Floats, *seed: int) -> NDArray[np.intp]:
    """Places of a systematic sample in random order: each is drawn with its own chance, their number is the chances' sum."""
    rng = np.random.default_rng((SEED, *seed))
    order = rng.permutation(len(chance))
    passed = np.floor(np.cumsum(chance[order]) + rng.random() + 1e-9)
    return np.sort(order[np.diff(passed, prepend=0) > 0])


def weights_together(before: Floats, chance: Floats, size: int) -> tuple[Floats, Floats]:
    """Weights, but for a factor, of what was scored before (by `before` weights) and of what was then drawn from the rest of
    `size` dialogues, each with its chance.

    The old weights make an unbiased mean. So does what was scored, each by 1, with what was drawn, each by 1 / chance, in the
    place of the rest. So does every mixture of the two, whatever the chances were; this one gives all the same weight, that of
    `before`, where both rounds are a random choice.
    """
    old, new = len(before), len(chance)
    if not old or not new:
        return before, 1 / chance
    share = old * (size - old - new) / ((size - old) * (old + new))
    scale = before.mean() * (old + new) / size
    return scale * (share * size * before / before.sum() + 1 - share), scale * (1 - share) / chance


def suggest(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    budget: int,
    seed: int = 0,
    evenly: bool = False,
    labelled: Mapping[str, float] | None = None,
) -> tuple[list[Suggestion], dict[str, float]]:
    """A draw of `budget` dialogues, some of each supporter and language, in the order of the run, from those that are not
    `labelled` (dialogue → weight); and the weights that the labelled ones have beside it. One without a spread counts
    as the mean of the others; `evenly`, all of a supporter have the same chance. Supporters are drawn from in one order of
    cards: where chances are alike, they are scored on the same cards.

    Raises `UserError` for a budget that leaves a supporter without a label, and where nothing is left to label.
    """
    had = labelled or {}
    spread = {} if evenly else uncertainty(judgements, rubric)
    usual = float(np.mean(list(spread.values()))) if spread else 1.0
    by_card = sorted(dialogues, key=lambda one: (card_of(one), one.trial))
    groups = group_by(by_card, lambda one: (one.language, supporter_of(one)))
    parts = {key: members for key, members in groups.items() if any(one.id not in had for one in members)}
    if not parts:
        raise UserError("all of these dialogues have scores by people: name others with --supporter")
    if budget < len(parts):
        names = ", ".join(f"{name} ({language})" for language, name in parts)
        raise UserError(f"--budget {budget}: too few for a label of each: {names}. Give more, or name two with --supporter")
    left = [np.array([spread.get(one.id, usual) for one in members if one.id not in had]) for members in parts.values()]
    sizes = split(left, budget, [len(members) - len(unsure) for members, unsure in zip(parts.values(), left, strict=True)])
    found: dict[str, float] = {}
    before = {one.id: had[one.id] for one in by_card if one.id in had}
    for members, unsure, labels in zip(parts.values(), left, sizes, strict=True):
        chance = np.zeros(len(members))
        chance[[one.id not in had for one in members]] = chances(unsure, labels)
        # What was scored before has no chance, but stays in the order; and the order is not that of the round before.
        places = drawn(chance, seed, *[len(had)] * bool(had))
        scored = [one.id for one in members if one.id in had]
        old, own = weights_together(np.array([had[id] for id in scored]), chance[places], len(members))
        found |= {members[place].id: float(weight) for place, weight in zip(places, own, strict=True)}
        before |= dict(zip(scored, old.tolist(), strict=True))
    return [Suggestion(one, found[one.id]) for one in dialogues if one.id in found], before
