"""Which dialogues people should score next, so that few scores distinguish supporters (active inference, Zrnic and Candès
2024).

The budget is split between supporters by what each adds to the variance of their difference. Within a supporter, the chance of
drawing a dialogue grows with the judge's uncertainty about it; half of every chance is the same for all dialogues, so that none
is excluded and no weight is large. The weight is 1 / chance, which keeps the leaderboard by judge and people unbiased. Scored
dialogues are not drawn again; both rounds are then weighted together (`weights_together`).
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError
from core.grouping import exact_mean, group_by
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.statistics.accuracy import CORRELATION_FROM, jackknife, left_out
from core.statistics.bootstrap import SEED, Floats
from core.tables import Estimate
from evalsuite.statistics.contestants import card_of
from evalsuite.statistics.correlation import coefficients
from evalsuite.statistics.leaderboard import Board
from evalsuite.statistics.summary import supporter_of

EVEN = 0.5  # the part of a chance that is the same for all dialogues, and of a budget that ignores uncertainty


@dataclass(frozen=True)
class Suggestion:
    """A drawn dialogue and its weight."""

    dialogue: Dialogue
    weight: float


def uncertainty(judgements: Sequence[Judgement], rubric: Rubric) -> dict[str, float]:
    """Dialogue → its judge's uncertainty in points of 0–100: the mean over dimensions of the standard deviation of the judge's
    probabilities, else of its repeats; dialogues with neither are left out."""
    spreads: dict[str, list[float]] = {}
    for (id, dimension), verdicts in group_by(judgements, lambda verdict: (verdict.dialogue_id, verdict.dimension)).items():
        factor = 100 / rubric.scale_of(dimension).span
        spread = []
        for shares in (verdict.distribution for verdict in verdicts if verdict.distribution):
            scores, likely = np.array([*map(float, shares)]), np.array([*shares.values()])
            spread.append(np.sqrt(np.average((scores - np.average(scores, weights=likely)) ** 2, weights=likely)))
        values = [verdict.value for verdict in verdicts if verdict.value is not None]
        if spread:
            spreads.setdefault(id, []).append(factor * float(np.mean(spread)))
        elif len(values) > 1:
            spreads.setdefault(id, []).append(factor * float(np.std(values, ddof=1)))
    return {id: float(np.mean(each)) for id, each in spreads.items()}


def spread_and_error(judgements: Sequence[Judgement], people: Sequence[HumanScore], rubric: Rubric) -> Estimate:
    """Spearman's correlation (−1 to 1) of the judge's `uncertainty` about a dialogue with the distance of its average from
    people's, over the n dialogues that people scored. Drawing by uncertainty saves labels only if it is above 0."""
    spread, errors = uncertainty(judgements, rubric), dict[str, list[float]]()
    people_scores = group_by(people, lambda score: (score.dialogue_id, score.dimension))
    for (id, dimension), verdicts in group_by(judgements, lambda verdict: (verdict.dialogue_id, verdict.dimension)).items():
        values = [verdict.value for verdict in verdicts if verdict.value is not None]
        if id in spread and values and (scores := people_scores.get((id, dimension))):
            gap = exact_mean(values) - exact_mean(score.value for score in scores)
            errors.setdefault(id, []).append(100 * gap / rubric.scale_of(dimension).span)
    distances = np.array([abs(float(np.mean(gaps))) for gaps in errors.values()])
    return rank_correlation(np.array([spread[id] for id in errors]), distances)


def rank_correlation(x: Floats, y: Floats) -> Estimate:
    """Spearman's correlation of n pairs with its jackknife interval; none for fewer than three."""
    n = len(x)
    if n < 3:
        return Estimate(None, None, None, n)
    return jackknife(coefficients(x, y, np.arange(n), left_out(n))[:, 0], n, CORRELATION_FROM)


# --- whom to compare ----------------------------------------------------------------------------------------------------------


def closest(boards: Iterable[Board], floors: Container[str]) -> set[tuple[Language, str]]:
    """Language and name of the two supporters (not floors) of each board that the judge distinguishes least: the smallest
    difference among those whose interval contains zero, else among all. A single supporter stands alone."""
    pairs: set[tuple[Language, str]] = set()
    for board in boards:
        names = [contestant.supporter for contestant in board.contestants]
        gaps = [
            (low is not None and high is not None and not low <= 0 <= high, abs(mean), gap)
            for gap in board.differences
            for mean, low, high in [(gap.estimate.mean, gap.estimate.low, gap.estimate.high)]
            if mean is not None and names[gap.first] not in floors and names[gap.second] not in floors
        ]
        if gaps:
            _, _, gap = min(gaps, key=itemgetter(0, 1))
            names = [names[gap.first], names[gap.second]]
        pairs.update((board.language, name) for name in names if name not in floors)
    return pairs


def split(errors: Sequence[Floats], budget: int, before: Sequence[int] | None = None) -> list[int]:
    """The number of new labels for each supporter, given the predicted errors of its unlabelled dialogues and its labels
    `before`. Each starts with two (one if the budget is short); every further label goes where it reduces the variance of
    differences most. Half of that is taken at the mean of all supporters: a judge that is wrongly sure about one costs
    little."""
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
    """Chances that sum to 1 along the first axis of predicted errors [n, …]: one part even, the other proportional to them."""
    n, total = len(errors), errors.sum(axis=0)
    result: Floats = EVEN / n + (1 - EVEN) * np.divide(errors, total, out=np.full(errors.shape, 1 / n), where=total > 0)
    return result


def chances(errors: Floats, budget: int) -> Floats:
    """Chances proportional to `_shares` that sum to the budget; none is above 1."""
    n = len(errors)
    if budget >= n:
        return np.ones_like(errors)
    shares = _shares(errors)
    low, high = np.zeros(errors.shape[1:]), n / shares.min(axis=0)
    for _ in range(50):  # bisect for the factor at which the chances, cut at 1, sum to the budget
        middle = (low + high) / 2
        short = np.minimum(middle * shares, 1).sum(axis=0) < budget
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    result: Floats = np.minimum(high * shares, 1.0)
    return result


def drawn(chance: Floats, *seed: int) -> NDArray[np.intp]:
    """Places of a systematic sample in random order: each is drawn with its own chance, and their number is the sum."""
    rng = np.random.default_rng((SEED, *seed))
    order = rng.permutation(len(chance))
    passed = np.floor(np.cumsum(chance[order]) + rng.random() + 1e-9)
    return np.sort(order[np.diff(passed, prepend=0) > 0])


def weights_together(before: Floats, chance: Floats, size: int) -> tuple[Floats, Floats]:
    """Weights, up to a factor, of the dialogues scored before (with weights `before`) and of those then drawn, with `chance`,
    from the remainder of `size` dialogues.

    The old weights give an unbiased mean, and so do weights of 1 for the old dialogues with the new ones at 1 / chance, and any
    mixture of both; this one gives all the same weight if both rounds are random choices."""
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
    `labelled` (dialogue → weight); and the new weights of the labelled ones. A dialogue of unknown uncertainty counts as the
    mean of the others; `evenly` gives all of a supporter the same chance. All supporters are drawn from in the same order of
    cards, so that similar chances mean the same cards. Raises `UserError` for a budget that leaves a supporter without a label,
    and if nothing is left to label."""
    before = labelled or {}
    spread = {} if evenly else uncertainty(judgements, rubric)
    usual = float(np.mean(list(spread.values()))) if spread else 1.0
    by_card = sorted(dialogues, key=lambda dialogue: (card_of(dialogue), dialogue.trial))
    groups = group_by(by_card, lambda dialogue: (dialogue.language, supporter_of(dialogue)))
    parts = {key: members for key, members in groups.items() if any(dialogue.id not in before for dialogue in members)}
    if not parts:
        raise UserError("all of these dialogues have scores by people: name others with --supporter")
    if budget < len(parts):
        names = ", ".join(f"{name} ({language})" for language, name in parts)
        raise UserError(f"--budget {budget}: too few for a label each: {names}. Give more, or name two with --supporter")
    new = [[dialogue.id not in before for dialogue in members] for members in parts.values()]
    pools = (compress(members, flags) for members, flags in zip(parts.values(), new, strict=True))
    errors = [np.array([spread.get(dialogue.id, usual) for dialogue in pool]) for pool in pools]
    sizes = split(errors, budget, [flags.count(False) for flags in new])
    weights: dict[str, float] = {}
    reweighted = {dialogue.id: before[dialogue.id] for dialogue in by_card if dialogue.id in before}
    for members, flags, unsure, labels in zip(parts.values(), new, errors, sizes, strict=True):
        chance = np.zeros(len(members))
        chance[flags] = chances(unsure, labels)
        # Scored dialogues have no chance but keep their place, and the order differs from that of the first round.
        places = drawn(chance, seed, *[len(before)] * bool(before))
        scored = [dialogue.id for dialogue in members if dialogue.id in before]
        old, own = weights_together(np.array([before[id] for id in scored]), chance[places], len(members))
        weights |= {members[place].id: float(weight) for place, weight in zip(places, own, strict=True)}
        reweighted |= dict(zip(scored, old.tolist(), strict=True))
    return [Suggestion(dialogue, weights[dialogue.id]) for dialogue in dialogues if dialogue.id in weights], reweighted
