"""How often 95 % intervals of a mean hold the true mean, on the scores that people and judges really gave, for few dialogues.

Each population is what one judge or annotator gave on one dimension of a corpus. Its mean is the truth; samples of n rows are
drawn from it, as a run draws its cards. Nothing is fitted. Samples of one population are columns of one array: the intervals
are made by the very functions that reports use.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from scipy import stats

from core.files import write_text
from core.grouping import group_by
from core.ledger import Build
from core.options import name_and_value
from core.rubrics import known_rubric
from core.statistics.bootstrap import POINTS, Floats, gap_levels, resampled_means, smoothed_means
from core.tables import Cell, Table, to_console, to_markdown
from data_prep.scores.corpora import import_corpus
from data_prep.scores.human import Imported
from evalsuite.statistics.contestants import scores_of_judges
from tests.bench.figures import OUT, Bench, OutOption

SIZES = (5, 12, 50)
FEWEST = 40  # rows of a population: fewer are no distribution
Bounds = tuple[Floats, Floats]
Interval = Callable[[Floats, Floats, Floats], Bounds]


@dataclass(frozen=True)
class Population:
    """What can be drawn: rows (dialogues, cards) with the sum of their observations and their number, [rows] each."""

    kind: str
    name: str
    sums: Floats
    counts: Floats
    levels: Floats

    @property
    def mean(self) -> float:
        """The mean that a sample estimates: of all observations."""
        return float(self.sums.sum() / self.counts.sum())


# Each interval takes sums and counts [rows, samples] and the levels of the scale, and gives low and high [samples].


def _percentiles(draws: Floats) -> Bounds:
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return low, high


def smoothed(sums: Floats, counts: Floats, levels: Floats) -> Bounds:
    """The project's own."""
    return _percentiles(smoothed_means(sums, counts, levels, sides=1 + bool(levels.min() < 0)))  # of differences, two sides


def percentile(sums: Floats, counts: Floats, levels: Floats) -> Bounds:
    """The plain bootstrap of rows."""
    return _percentiles(resampled_means(sums, counts))


def student(sums: Floats, counts: Floats, levels: Floats) -> Bounds:
    """Student's t with a cluster-robust error, cut at the ends of the scale."""
    n, total = len(sums), counts.sum(axis=0)
    mean = sums.sum(axis=0) / total
    error = np.sqrt(n / (n - 1) * (((sums - mean * counts) / total) ** 2).sum(axis=0))
    half = stats.t.ppf(0.975, n - 1) * error
    return np.maximum(mean - half, levels.min()), np.minimum(mean + half, levels.max())


INTERVALS: dict[str, Interval] = {
    "smoothed Bayesian bootstrap": smoothed,
    "percentile bootstrap": percentile,
    "Student's t": student,
}


@dataclass(frozen=True)
class Coverage:
    """The share of samples whose interval holds the truth, mean width (in the scale's unit), and the share without width."""

    held: float
    width: float
    points: float


def coverage(interval: Interval, population: Population, size: int, samples: int) -> Coverage:
    """Samples of `size` rows of a population, drawn by a seed that is made of its name."""
    rng = np.random.default_rng(zlib.crc32(f"{population.name} {size}".encode()))
    rows = rng.integers(len(population.sums), size=(size, samples))
    low, high = interval(population.sums[rows], population.counts[rows], population.levels)
    held = (low <= population.mean + 1e-9) & (population.mean <= high + 1e-9)
    return Coverage(float(held.mean()), float((high - low).mean()), float((high - low < 1e-9).mean()))


def populations(imported: Imported) -> list[Population]:
    """All of a corpus: the scores of each person and judge on each dimension, and differences of two of them."""
    scored: dict[tuple[str, str], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for score in (*imported.scores, *scores_of_judges(imported.judgements)):
        rubric_of = known_rubric(score.rubric)
        assert rubric_of is not None, "readers of corpora name rubrics of the project"
        scale = rubric_of.scale_of(score.dimension)
        points = (score.value - scale.min) * 100 / scale.span
        scored[score.rubric, score.annotator][score.dimension][score.dialogue_id] = points
    found = []
    for (rubric, who), dimensions in scored.items():
        for name, values in dimensions.items():
            found.append(_plain("scores", f"{rubric} {who} {name}", values.values(), POINTS))
    for (one, first), (other, second) in combinations(scored.items(), 2):
        for name in first.keys() & second.keys() if one[0] == other[0] else ():
            ids = sorted(first[name].keys() & second[name].keys())
            who = f"{one[0]} {one[1]} − {other[1]} {name}"
            found.append(_plain("differences", who, [first[name][i] - second[name][i] for i in ids], gap_levels(POINTS)))
    return [one for one in found if len(one.sums) >= FEWEST and one.sums.std() > 0]


def _plain(kind: str, name: str, values: Iterable[float], levels: Floats) -> Population:
    numbers = np.array(list(values), dtype=np.float64)
    return Population(kind, f"{kind} {name}", numbers, np.ones(len(numbers)), levels)


def tabulated(every: Sequence[Population], sizes: Sequence[int], samples: int) -> tuple[Table, Mapping[tuple[str, int], float]]:
    """A row a kind and interval: mean (and lowest) coverage over the populations, and the mean width, for each size. Also the
    mean coverage of the project's own by kind and size."""
    rows: list[tuple[Cell, ...]] = []
    own: dict[tuple[str, int], float] = {}
    for kind, members in group_by(every, lambda one: one.kind).items():
        for name, interval in INTERVALS.items():
            cells: list[Cell] = [f"{kind} ({len(members)})", name]
            for size in sizes:
                found = [coverage(interval, one, size, samples) for one in members]
                held, width, points = (float(np.mean([getattr(c, f) for c in found])) for f in ("held", "width", "points"))
                least = min(one.held for one in found)
                cells += [f"{100 * held:.1f} ({100 * least:.0f})", f"{width:.1f}", f"{100 * points:.0f}"]
                if interval is smoothed:
                    own[kind, size] = 100 * held
            rows.append(tuple(cells))
    heads = [f"n = {size}: {what}" for size in sizes for what in ("coverage %", "width", "without width %")]
    note = f"Coverage: mean over populations (the lowest of them), {samples} samples of each; widths in points of 0–100."
    return Table("coverage", "Coverage of 95 % intervals", ("of", "interval", *heads), tuple(rows), (note,)), own


def main(
    source: Annotated[list[str], typer.Option(metavar="NAME=PLACE", help="A corpus with scores and where it is. Repeat.")],
    samples: Annotated[int, typer.Option(min=1, help="Samples of each population and size.")] = 500,
    out: OutOption = OUT,
) -> None:
    """Coverage and width of intervals at n = 5, 12 and 50 on real scores: why tables use the interval that they use."""
    bench = Bench("coverage", "Coverage of the tables' 95 % interval, mean over populations, %", samples=samples)
    imported = Imported()
    for name, place in (name_and_value("--source", text, "NAME=PLACE") for text in source):
        imported.add(import_corpus(name, place, Build(out / "imported", "coverage"), Console(quiet=True)))
    table, own = tabulated(populations(imported), SIZES, samples)
    to_console(table, Console(width=200))
    write_text(out / "coverage.md", to_markdown(table))
    for (kind, size), held in own.items():
        bench.add(f"{kind}, n = {size}", held, at_least=93, aim="93 to 97")
    bench.deliver(out)
