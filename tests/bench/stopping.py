"""What a decision costs: two models so many points apart, with a fixed number of cards and with `run --until decided`."""

from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from core.files import write_text
from core.tables import Table, to_console, to_markdown
from evalsuite.statistics.looks import Looks
from tests.bench.figures import OUT, OutOption
from tests.bench.truth_looks import draw, shift_of, stopped

CALLS = 2 * (2 * 5 + 1)  # per card: two models, five exchanges, a verdict each
DESIGNS = {
    "16 cards": Looks((16,)),
    "36 cards": Looks((36,)),
    "until decided, at most 36": Looks.plan([18, 18])[0],
    "100 cards": Looks((100,)),
    "until decided, at most 100": Looks.plan([50, 50])[0],
}
APART = (("middle", 5.0), ("middle", 10.0), ("middle", 25.0), ("high", 5.0), ("high", 10.0))


def main(
    samples: Annotated[int, typer.Option(min=10, help="Runs of each kind.")] = 300,
    seed: Annotated[int, typer.Option(help="Of all runs.")] = 11,
    out: OutOption = OUT,
) -> None:
    """Cards and calls to a decision, and how often there is one."""
    rows = []
    for shape, difference in APART:
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
