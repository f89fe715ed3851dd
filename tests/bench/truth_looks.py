"""What runs that stop as soon as they are decided claim: false differences, and coverage of the intervals they stop at.

`python -m tests.bench stopping`: what a decision costs with a fixed number of cards and with `run --until decided`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from core.files import write_text
from core.statistics.bootstrap import Floats
from core.tables import Estimate, Table, to_console, to_markdown
from evalsuite.statistics import paired
from evalsuite.statistics.components import Looks
from tests.bench.claims import Claim, coverage, false_alarms, levels
from tests.bench.figures import OUT, OutOption

DIMENSIONS = 7
ALIKE = (
    *(("low and high", 3, 18), ("floor", 2, 18), ("floor", 3, 18), ("middle", 2, 18), ("middle", 3, 50)),
    *(("high", 10, 18), ("ceiling", 3, 18)),
)
APART = (
    *(("low and high", 10.0, 18), ("floor", 10.0, 18), ("middle", 5.0, 18), ("middle", 10.0, 50)),
    *(("high", 10.0, 18), ("ceiling", 5.0, 18)),
)
_LARGE = 20_000  # cards of which a population's means are taken


def draw(shape: str, rng: np.random.Generator, cards: int, supporters: int, shift: Floats | float = 0.0) -> Floats:
    """Points of 0–100, [cards, supporters, dimensions]. `low and high`: cards of two languages by turns."""
    parts = [levels(one, rng, cards, supporters, DIMENSIONS, shift) for one in shape.split(" and ")]
    points: Floats = 25 * np.where((np.arange(cards) % 2 == 0)[:, None, None], parts[0], parts[-1])
    return points


@dataclass(frozen=True)
class Stopped:
    """A run that was stopped: at how many cards, its differences there, each supporter's average, and whether all pairs were
    decided."""

    cards: int
    differences: list[paired.Difference]
    averages: list[Estimate]
    decided: bool


def stopped(points: Floats, looks: Looks) -> Stopped:
    """A run on points [cards, supporters, dimensions], half of the cards of each of two languages, looked at as planned."""
    pairs = list(combinations(range(points.shape[1]), 2))
    for cards, level in zip(looks.cards, looks.levels, strict=True):
        part, design = points[:cards], paired.Design(None, np.arange(cards) % 2)
        every = np.ones_like(part)
        found = paired.differences(part, every, pairs, average_only=True, design=design, level=level)
        if (decided := all(one.holds for one in found)) or cards == looks.cards[-1]:
            rows = paired.card_estimates(part, every, [cards] * points.shape[1], design=design, level=level)
            return Stopped(cards, found, [row[-1] for row in rows], decided)
    raise AssertionError("the last look is the end")


def shift_of(shape: str, difference: float) -> float:
    """How far a supporter's latent quality must lie above another's for its average to lie so many points above."""
    lower, upper = 0.0, 6.0
    for _ in range(25):
        shift = (lower + upper) / 2
        first, second = _means(shape, shift)
        lower, upper = (lower, shift) if first - second > difference else (shift, upper)
    return lower


def _means(shape: str, shift: float) -> Floats:
    means: Floats = draw(shape, np.random.default_rng(97), _LARGE, 2, np.array([shift, 0.0])).mean(axis=(0, 2))
    return means


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """False differences first, then coverage."""
    for shape, supporters, limit in ALIKE:
        looks, _ = Looks.plan([limit, limit])
        rng = np.random.default_rng((seed, supporters, limit, 5))
        found = [
            any(one.holds for one in stopped(draw(shape, rng, 2 * limit, supporters), looks).differences)
            for _ in range(studies)
        ]
        population = f"{shape}, {supporters} exchangeable supporters, {len(looks.cards)} looks"
        yield false_alarms("a run until decided finds a difference", population, 2 * limit, found)
    for shape, difference, limit in APART:
        looks, _ = Looks.plan([limit, limit])
        rng, shift = np.random.default_rng((seed, limit, 6)), shift_of(shape, difference)
        first, second = _means(shape, shift)
        runs = [stopped(draw(shape, rng, 2 * limit, 2, np.array([shift, 0.0])), looks) for _ in range(studies)]
        population = f"{shape}, {difference:g} points apart, {len(looks.cards)} looks"
        gaps = [one.differences[0].estimate for one in runs]
        yield coverage("interval of a difference where a run stops", population, 2 * limit, gaps, float(first - second))
        for truth, place in ((first, 0), (second, 1)):
            averages = [one.averages[place] for one in runs]
            yield coverage("interval of an average where a run stops", population, 2 * limit, averages, float(truth))


CALLS = 2 * (2 * 5 + 1)  # per card: two models, five exchanges, a verdict each
DESIGNS = {
    "16 cards": Looks((16,)),
    "36 cards": Looks((36,)),
    "until decided, at most 36": Looks.plan([18, 18])[0],
    "100 cards": Looks((100,)),
    "until decided, at most 100": Looks.plan([50, 50])[0],
}
COSTS = (("middle", 5.0), ("middle", 10.0), ("middle", 25.0), ("high", 5.0), ("high", 10.0))


def main(
    samples: Annotated[int, typer.Option(min=10, help="Runs of each kind.")] = 300,
    seed: Annotated[int, typer.Option(help="Of all runs.")] = 11,
    out: OutOption = OUT,
) -> None:
    """Cards and calls to a decision, and how often there is one."""
    rows = []
    for shape, difference in COSTS:
        shift = np.array([shift_of(shape, difference), 0.0])
        for name, looks in DESIGNS.items():
            rng = np.random.default_rng((seed, looks.cards[-1]))
            runs = [stopped(draw(shape, rng, looks.cards[-1], 2, shift), looks) for _ in range(samples)]
            cards, decided = float(np.mean([run.cards for run in runs])), 100 * float(np.mean([run.decided for run in runs]))
            rows.append((shape, difference, name, cards, round(cards * CALLS), decided))
    columns = ("scores", "points apart", "design", "cards", "calls", "decided %")
    note = f"Means of {samples} runs each (seed {seed}). A card is {CALLS} calls: two models, five exchanges, a verdict each."
    table = Table("stopping", "What a decision costs", columns, tuple(rows), (note,))
    to_console(table, Console(width=140))
    write_text(out / "stopping.md", to_markdown(table))
