"""Stopping as soon as the differences are decided, without inflating the error rate (`esc-eval run --until decided`).

Stopping as soon as something is significant finds a difference between equal models in far more than 5 of 100 runs. So the
looks are planned, and the 5 % are spent on them in proportion to the cards (Lan and DeMets 1983, with the linear spending
function of Kim and DeMets 1987). The joint distribution of one difference at all looks turns what a look may spend into the
level of its tests and intervals; levels for normal statistics also serve for Student's t (Jennison and Turnbull 2000, section
3.8). Within a look, Holm's correction runs over all pairs. Intervals at these levels cover the truth at all looks together in
95 of 100 runs, wherever the run stops (`python -m tests.bench known-truth --only looks`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from core.statistics.bootstrap import LEVEL
from core.statistics.inference import ALPHA
from evalsuite.statistics.components import FEWEST_PLANNED

GROWTH = 1.5  # ratio of the cards of a look to those of the previous one
_REACH, _STEPS = 8.0, 8001  # the grid of the statistic: range in final standard errors, and points


@dataclass(frozen=True)
class Looks:
    """The numbers of cards, over all languages, at which a run is looked at; the last is all cards."""

    cards: tuple[int, ...]

    @classmethod
    def plan(cls, available: Sequence[int]) -> tuple[Looks, list[int]]:
        """The looks for the `available` cards of each language, and the limit of cards per language at each look. The first has
        `FEWEST_PLANNED` cards, below which nothing is decided; each later one has `GROWTH` times the cards per language."""
        maximum = max(available)
        limit = next((n for n in range(1, maximum) if sum(min(n, own) for own in available) >= FEWEST_PLANNED), maximum)
        limits = [limit]
        while limits[-1] < maximum:
            limits.append(min(math.ceil(limits[-1] * GROWTH), maximum))
        return cls(tuple(sum(min(n, own) for own in available) for n in limits)), limits

    @cached_property
    def levels(self) -> list[float]:
        """The level of tests and intervals at each look: 1 minus the error rate of a single test.

        With B a Brownian motion and t the share of the cards, P(|B(t)| / √t exceeds the bound of this look, but of no earlier
        one) is 5 % of the share of new cards. The density of B within all bounds is carried from look to look on a grid.
        """
        shares = np.array(self.cards) / self.cards[-1]
        grid = np.linspace(-_REACH, _REACH, _STEPS)
        step, levels = grid[1] - grid[0], []
        density, before = np.zeros(_STEPS), 0.0
        for share in shares:
            spread = np.sqrt(share - before)
            moved = np.exp(-((grid / spread) ** 2) / 2) / (spread * np.sqrt(2 * np.pi))
            density = np.convolve(density, moved, "same") * step if before else moved
            tails = (np.cumsum(density[::-1])[::-1] - density / 2) * step * 2  # beyond a point, on both sides
            upper = slice(_STEPS // 2, None)
            bound = float(np.interp(-ALPHA * (share - before), -tails[upper], grid[upper]))
            density[np.abs(grid) > bound] = 0
            levels.append(1 - 2 * float(ndtr(-bound / np.sqrt(share))))
            before = share
        return levels

    def level_at(self, cards: int) -> float:
        """The level at the look that so many cards belong to."""
        return next((level for limit, level in zip(self.cards, self.levels, strict=True) if cards <= limit), LEVEL)
