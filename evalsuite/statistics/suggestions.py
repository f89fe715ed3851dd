"""Which dialogues people should score next, so that few of them tell much (active inference, Zrnic and Candès 2024).

A dialogue is drawn with a chance that grows with how unsure the judge is of it: the spread of its probabilities, or of its
repeats. Half of all chances is the same for every dialogue, so that none is left out and no weight is large; where a judge gave
neither, all of it is. The weight is 1 / chance: with it the leaderboard by judge and people stays unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, Identifier, Judgement
from core.rows import RowModel, read_table
from core.rubrics import Rubric
from core.statistics.bootstrap import SEED, Floats
from data_prep.cards.sheets import write_csv

EVEN = 0.5  # the part of a chance that is the same for all dialogues


class Weight(RowModel):
    """A row of weights.csv."""

    dialogue_id: Identifier
    chance: float = Field(gt=0, le=1)
    weight: float = Field(ge=1)


@dataclass(frozen=True)
class Suggestion:
    """A drawn dialogue and its chance of being drawn."""

    dialogue: Dialogue
    chance: float


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
    total = chances.sum()
    mean = (scores * chances).sum() / total
    return float(np.sqrt(((scores - mean) ** 2 * chances).sum() / total))


def chances(errors: Floats, budget: int) -> Floats:
    """Chances that sum to the budget along the first axis of predicted errors [n, …]: a part the same for all, a part as the
    errors; none is above 1."""
    n = len(errors)
    if budget >= n:
        return np.ones_like(errors)
    total = errors.sum(axis=0)
    shares = np.divide(errors, total, out=np.full(errors.shape, 1 / n), where=total > 0)
    wanted = EVEN / n + (1 - EVEN) * shares
    low, high = np.zeros_like(total), n / wanted.min(axis=0)
    for _ in range(50):  # the factor at which the chances, cut at 1, sum to the budget
        middle = (low + high) / 2
        short = np.minimum(middle * wanted, 1).sum(axis=0) < budget
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.minimum(high * wanted, 1.0)


def drawn(chance: Floats, seed: int) -> NDArray[np.intp]:
    """Places of a systematic sample in random order: each is drawn with its own chance, their number is the chances' sum."""
    rng = np.random.default_rng((SEED, seed))
    order = rng.permutation(len(chance))
    passed = np.floor(np.cumsum(chance[order]) + rng.random() + 1e-9)
    return np.sort(order[np.diff(passed, prepend=0) > 0])


def suggest(
    dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric, budget: int, seed: int = 0
) -> list[Suggestion]:
    """A draw of about `budget` dialogues, in the order of the run. One without a spread counts as the mean of the others."""
    spread = uncertainty(judgements, rubric)
    usual = float(np.mean(list(spread.values()))) if spread else 1.0
    chance = chances(np.array([spread.get(dialogue.id, usual) for dialogue in dialogues]), budget)
    return [Suggestion(dialogues[place], float(chance[place])) for place in drawn(chance, seed)]


def write_weights(path: Path, suggestions: Sequence[Suggestion]) -> None:
    """weights.csv: dialogue, chance, weight."""
    names = ("dialogue_id", "chance", "weight")
    cells = ((one.dialogue.id, repr(one.chance), repr(1 / one.chance)) for one in suggestions)
    write_csv(path, names, [dict(zip(names, row, strict=True)) for row in cells])


def read_weights(path: Path) -> dict[str, float]:
    """Dialogue → weight. Raises `UserError` with file and line for what is malformed or there twice."""
    weights: dict[str, float] = {}
    for where, row in read_table(path, Weight, "weights"):
        if row.dialogue_id in weights:
            raise UserError(f"{where}: dialogue_id: {row.dialogue_id} is there twice")
        weights[row.dialogue_id] = row.weight
    return weights
