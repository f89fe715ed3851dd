"""Boards by judge and people on supporters of known means: how often the interval of a difference holds the true one, and how
often a rank puts one supporter below another that is not better.

A card is easier or harder for all supporters, a dialogue on it adds luck of its own. The judge is too kind to two supporters,
and people score some of the dialogues.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from core.statistics.bootstrap import Floats
from evalsuite.statistics.paired import rank_ranges
from evalsuite.statistics.suggestions import chances
from evalsuite.trust.powered_board import LabelledScores, differences_of, powered

QUALITY = (58.0, 50.0, 50.0)  # of three supporters; the judge adds `BIAS` of its own
BIAS = (0.0, 10.0, 4.0)
RATERS_SPREAD, JUDGES_SPREAD, CARD, LUCK = 6.0, 12.0, 12.0, 14.0


@dataclass(frozen=True)
class Shape:
    """Cards of a run, dialogues of a supporter on each, and labels by people of a supporter. `unsure`: drawn as `suggest` does,
    more often where the judge is less sure, and so weighted; else a random choice."""

    cards: int
    each: int
    labels: int
    unsure: bool = False


@dataclass(frozen=True)
class Held:
    """Of many boards: the share of differences whose interval holds the truth, their mean width, the share of boards with a
    wrong rank, and the share of pairs that truly differ which are told apart."""

    differences: float
    width: float
    wrong: float
    apart: float


def boards(shape: Shape, samples: int, seed: int = 0) -> Held:
    """So many boards of new cards, dialogues, verdicts and labels; scores are whole levels of 0–4, as points."""
    rng = np.random.default_rng((seed, shape.cards, shape.each, shape.labels))
    size = (shape.cards, shape.each, len(QUALITY), samples)
    card = rng.normal(0, CARD, (shape.cards, 1, 1, samples))
    quality = np.array(QUALITY)[:, None] + card + rng.normal(0, LUCK, size)
    spread = JUDGES_SPREAD * (rng.choice([0.3, 2.0], size, p=[0.75, 0.25]) if shape.unsure else np.ones(size))
    people = _levels(quality + rng.normal(0, RATERS_SPREAD, size))
    judge = _levels(quality + np.array(BIAS)[:, None] + rng.normal(0, 1, size) * spread)
    flat = (shape.cards * shape.each, len(QUALITY) * samples)
    chance = chances(spread.reshape(flat), shape.labels)
    weight = (systematic(chance, rng, len(QUALITY) if shape.unsure else 1) / chance).reshape(size)
    parts = (judge, np.ones(size), weight * people, weight * judge, weight)
    scored = LabelledScores(*(np.sum(part, axis=1) for part in parts))  # a card's dialogues together
    truth = _true_means()
    held, widths, wrong, apart = [], [], [], []
    for sample in range(samples):
        found = powered(LabelledScores(*(part[:, :, [sample]] for part in vars(scored).values())))
        gaps = differences_of(found, found.both, list(combinations(range(len(QUALITY)), 2)))
        for one in gaps:
            gap, low, high = truth[one.first] - truth[one.second], one.estimate.low, one.estimate.high
            assert low is not None and high is not None
            held.append(low <= gap <= high)
            widths.append(high - low)
            if abs(gap) > 1:
                apart.append(bool(one.holds))
        ranks = rank_ranges(gaps, len(QUALITY))
        best, rest = ranks[0], ranks[1:]
        # The first is truly the best, the others are alike: together they have the ranks 2 and 3.
        wrong.append(best is None or best[0] > 1 or any(rank is None or rank[0] > 2 or rank[1] < 3 for rank in rest))
    return Held(*(float(np.mean(each)) for each in (held, widths, wrong, apart)))


def _levels(points: Floats) -> Floats:
    return 25.0 * np.clip(np.round(points / 25), 0, 4)


def _true_means() -> Floats:
    """The supporters' mean scores by people: the chance of each level of a normal quality."""
    from scipy.stats import norm

    deviation = np.sqrt(CARD**2 + LUCK**2 + RATERS_SPREAD**2)
    steps = np.array([12.5, 37.5, 62.5, 87.5])[:, None]
    above: Floats = np.asarray(norm.sf(steps, loc=np.array(QUALITY), scale=deviation))
    means: Floats = 25.0 * above.sum(axis=0)
    return means


def systematic(chance: Floats, rng: np.random.Generator, alike: int = 1) -> Floats:
    """A systematic sample in random order of each column: 1 where drawn. So many blocks of columns are drawn in one order and
    from one start, as `suggest` draws from supporters."""
    rows, columns = chance.shape
    order = np.argsort(np.tile(rng.random((rows, columns // alike)), alike), axis=0)
    start = np.tile(rng.random(columns // alike), alike)
    passed = np.floor(np.cumsum(np.take_along_axis(chance, order, axis=0), axis=0) + start + 1e-9)
    picked = np.zeros(chance.shape)
    np.put_along_axis(picked, order, (np.diff(passed, axis=0, prepend=0) > 0).astype(float), axis=0)
    return picked


SHAPES = {
    "60 cards, 20 labels": Shape(60, 1, 20),
    "60 cards, 12 labels": Shape(60, 1, 12),
    "150 cards, 50 labels": Shape(150, 1, 50),
    "40 cards × 3 dialogues, 40 labels": Shape(40, 3, 40),
    "60 cards, 20 labels, drawn as suggest does": Shape(60, 1, 20, unsure=True),
    "40 cards × 3 dialogues, 40 labels, drawn as suggest does": Shape(40, 3, 40, unsure=True),
}
