"""Populations in the style of real human scores: whole levels of 0–4, skewed, at the floor or the ceiling, clustered by card.

A score is a latent quality cut at fixed thresholds. What a card shares, what a dialogue shares and what a dimension has of its
own add up to the quality, so scores of one card go together as people's do. The shapes follow what people gave: EPITOME's
mechanisms lie at the floor, ESConv's surveys at the ceiling, EmpathicComm's experts in the middle.
"""

import numpy as np

from core.statistics.bootstrap import Floats

SHAPES: dict[str, tuple[float, float, float, float]] = {
    "floor": (1.0, 1.6, 2.2, 2.8),
    "low": (0.3, 1.0, 1.6, 2.2),
    "middle": (-1.2, -0.4, 0.4, 1.2),
    "high": (-2.2, -1.6, -1.0, -0.3),
    "ceiling": (-2.8, -2.2, -1.6, -1.0),
}
CARD, DIALOGUE, OWN = 0.6, 0.5, 0.6  # standard deviations of what a card, a dialogue and a score have of their own


def levels(
    shape: str, rng: np.random.Generator, cards: int, supporters: int, dimensions: int, shift: float | Floats = 0.0
) -> Floats:
    """Whole levels of 0–4, [cards, supporters, dimensions]: one dialogue a supporter and card. `shift` [supporters] moves the
    latent quality, so that supporters differ; without it they are exchangeable."""
    quality = (
        rng.normal(0, CARD, (cards, 1, 1))
        + rng.normal(0, DIALOGUE, (cards, supporters, 1))
        + rng.normal(0, OWN, (cards, supporters, dimensions))
        + np.broadcast_to(np.asarray(shift, dtype=np.float64), (supporters,))[:, None]
    )
    return (quality[..., None] > np.array(SHAPES[shape])).sum(axis=-1).astype(np.float64)


def judged(gold: Floats, rng: np.random.Generator, agreement: float = 0.6, bias: float = 0.0, sticky: float = 0.5) -> Floats:
    """A judge's verdicts on gold levels [cards, …]: right with this chance, else a neighbour, upwards more often by `bias`.
    Of errors, the share `sticky` is the same for a whole card: what a judge gets wrong of a card, it gets wrong again."""
    shape = (gold.shape[0], *[1] * (gold.ndim - 1))
    shared = rng.random(gold.shape) < sticky
    draw = np.where(shared, rng.random(shape), rng.random(gold.shape))
    step = np.where(np.where(shared, rng.random(shape), rng.random(gold.shape)) < 0.5 + bias, 1.0, -1.0)
    return np.clip(np.where(draw < agreement, gold, gold + step), 0, 4)
