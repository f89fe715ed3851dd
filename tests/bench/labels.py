"""Labels that a judge saves people: prediction-powered means on EmpathicComm's own judges, by which dialogues are drawn.

A population is what one of the three models gave on one dimension and the mean of the three experts there. Cards are drawn
from it with replacement, some of them get the experts' score, and the truth is the experts' mean over the whole population.

What `people suggest` saves is seen where a judge's spread is known: of the three models together by how far they lie apart,
and of a judge generated over the bundled synthetic score set.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from core.grouping import exact_mean, group_by
from core.ledger import Build
from core.rubrics import Scale, known_rubric
from core.statistics.bootstrap import Floats
from data_prep.scores.corpora import import_corpus
from data_prep.scores.human import Imported
from data_prep.scores.synthetic import build
from evalsuite.statistics.suggestions import chances, rank_correlation
from evalsuite.trust.powered_board import LabelledScores, estimates, powered
from tests.bench.claims import systematic
from tests.bench.figures import OUT, Bench, OutOption
from tests.evalsuite import ppi_oracle


@dataclass(frozen=True)
class Judged:
    """A judge's points and people's on the same dialogues [n]; `unsure` is what the judge is said to be unsure by."""

    name: str
    judge: Floats
    people: Floats
    unsure: Floats | None = None


@dataclass(frozen=True)
class Saved:
    """Of many samples: coverage (0–1) and mean width of people alone and of both, mean λ, labels saved by squared error."""

    people: float
    both: float
    people_width: float
    both_width: float
    tuning: float
    saved: float


def savings(population: Judged, cards: int, labels: int, samples: int) -> Saved:
    """`labels` of `cards` drawn cards get people's score: by the same chance, or as `population.unsure` has it."""
    rng = np.random.default_rng(zlib.crc32(population.name.encode()))
    rows = rng.integers(len(population.judge), size=(cards, samples))
    judge, people = population.judge[rows], population.people[rows]
    chance = np.full((cards, samples), labels / cards)
    if population.unsure is not None:
        chance = chances(population.unsure[rows], labels)
    weight = systematic(chance, rng) / chance
    parts = (judge, np.ones_like(judge), weight * people, weight * judge, weight)
    boards = [powered(LabelledScores(*(part[:, [sample], None] for part in parts))) for sample in range(samples)]
    truth = population.people.mean()
    held, widths, errors = [], [], []
    for sides in ([(one, one.people) for one in boards], [(one, one.both) for one in boards]):
        given = [(e.low, e.high) for one in sides for e in estimates(*one, [labels])[0][:1] if e.low is not None]
        ends = np.array(given, dtype=np.float64)
        held.append(float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()))
        widths.append(float((ends[:, 1] - ends[:, 0]).mean()))
        errors.append(float(np.mean([(side.means[0, 0] - truth) ** 2 for _, side in sides])))
    more, tuning = labels * (errors[0] / errors[1] - 1), float(np.mean([one.tuning for one in boards]))
    return Saved(held[0], held[1], widths[0], widths[1], tuning, more)


def needed(population: Judged, cards: int, labels: int, samples: int) -> tuple[float, float, int]:
    """Mean width of both with `labels` drawn by `population.unsure` and by one chance for all, and how many labels the latter
    needs to be as narrow (`cards` where all of them are not enough)."""
    plain = replace(population, unsure=None)
    wanted, evenly = (savings(one, cards, labels, samples).both_width for one in (population, plain))
    low, high = 5, cards
    while low < high:
        middle = (low + high) // 2
        if savings(plain, cards, middle, samples).both_width <= wanted:
            high = middle
        else:
            low = middle + 1
    return wanted, evenly, low


def judged(imported: Imported) -> Iterator[Judged]:
    """Every judge and dimension of EmpathicComm."""
    for (on, dimension), rows in sorted(_verdicts(imported).items()):
        for judge in sorted({judge for verdicts, _ in rows for judge in verdicts}):
            both = [(verdicts[judge], people) for verdicts, people in rows if judge in verdicts]
            yield Judged(f"{on} {dimension}, {judge}", *np.array(both).T)


def panels(imported: Imported) -> Iterator[Judged]:
    """The mean of EmpathicComm's judges on every dimension, as unsure as they lie apart."""
    for (on, dimension), rows in sorted(_verdicts(imported).items()):
        points = np.array([list(verdicts.values()) for verdicts, _ in rows if len(verdicts) == 3])
        people = np.array([people for verdicts, people in rows if len(verdicts) == 3])
        yield Judged(f"{on} {dimension}, mean of three", points.mean(axis=1), people, points.std(axis=1, ddof=1))


def _verdicts(imported: Imported) -> dict[tuple[str, str], list[tuple[dict[str, float], float]]]:
    """Rubric and dimension → of each dialogue the judges' points and the mean of the experts'."""
    experts: dict[tuple[str, str, str], list[float]] = {}
    for score in imported.scores:
        if score.annotator.startswith("expert"):
            experts.setdefault((score.rubric, score.dimension, score.dialogue_id), []).append(score.value)
    judges: dict[tuple[str, str, str], dict[str, float]] = {}
    for verdict in imported.judgements:
        key = (verdict.rubric, verdict.dimension, verdict.dialogue_id)
        if verdict.value is not None and key in experts and (rubric := known_rubric(verdict.rubric)) is not None:
            judges.setdefault(key, {})[verdict.judge] = _points(verdict.value, rubric.scale_of(verdict.dimension))
    found: dict[tuple[str, str], list[tuple[dict[str, float], float]]] = {}
    for (on, dimension, id), verdicts in judges.items():
        rubric = known_rubric(on)
        assert rubric is not None, "it had a scale above"
        people = _points(exact_mean(experts[on, dimension, id]), rubric.scale_of(dimension))
        found.setdefault((on, dimension), []).append((verdicts, people))
    return found


def _points(value: float, scale: Scale) -> float:
    return (value - scale.min) * 100 / scale.span


def generated(knows: bool) -> Iterator[Judged]:
    """A judge over the bundled synthetic score set, a dimension each: off by 5 points on three dialogues of four and by 40 on
    the fourth, and ten too kind. It `knows` where, or says the same spreads of other dialogues."""
    scores = group_by(build()[1], lambda score: score.dimension)
    for place, (dimension, given) in enumerate(scores.items()):
        rng = np.random.default_rng(place)
        people = np.array([25.0 * score.value for score in given])
        spread = rng.choice([5.0, 40.0], len(people), p=[0.75, 0.25])
        judge = np.clip(people + 10 + spread * rng.normal(0, 1, len(people)), 0, 100)
        yield Judged(f"synthetic {dimension}", judge, people, spread if knows else rng.permutation(spread))


LIBRARY = Path(ppi_oracle.__file__).with_name("ppi_python.json")  # ppi-python's figures of `ppi_oracle.CASES`


def beside_library(name: str) -> tuple[float, float, float]:
    """Of a case of ppi-python: our λ as the library counts it (unlabelled dialogues alone), our estimate, its width."""
    judge, people, labels = ppi_oracle.data(name)
    there = np.arange(len(judge)) < labels
    parts = (judge, np.ones(len(judge)), there * people, there * judge, there.astype(float))
    found = powered(LabelledScores(*(part.reshape(-1, 1, 1) for part in parts)))
    ((given, _),) = estimates(found, found.both, [labels])
    assert given.low is not None and given.high is not None
    return float(found.tuning[0]) * (1 - labels / len(judge)), float(found.both.means[0, 0]), given.high - given.low


def main(
    source: Annotated[str, typer.Option(help="EmpathicComm's folder.")],
    cards: Annotated[int, typer.Option(min=10, help="Cards of a sample.")] = 300,
    labels: Annotated[int, typer.Option(min=5, help="Cards of it that people score.")] = 50,
    samples: Annotated[int, typer.Option(min=10, help="Samples of each judge and dimension.")] = 500,
    out: OutOption = OUT,
) -> None:
    """Labels that EmpathicComm's three judges save, by dimension, with the coverage of the intervals."""
    bench = Bench("labels", f"Labels saved beside {labels} of {cards}", cards=cards, labels=labels, samples=samples)
    imported = import_corpus("empathic_comm", source, Build(out / "imported", "labels"), Console(quiet=True))
    for population in judged(imported):
        found = savings(population, cards, labels, samples)
        bench.add(f"{population.name}: labels saved", found.saved)
        bench.add(f"{population.name}: λ", found.tuning)
        bench.add(f"{population.name}: coverage of both, %", 100 * found.both, at_least=93, aim="93 to 97")
    for name, library in json.loads(LIBRARY.read_text(encoding="utf-8")).items():
        lam, mean, _ = beside_library(name)
        on_line = library["at_0"] + lam * (library["at_1"] - library["at_0"])
        bench.add(f"{name}: our estimate minus the library's at our λ", mean - on_line, at_most=1e-9, aim="0")
    few = min(samples, 100)  # a width is a mean: it needs fewer samples than a coverage
    for key, population in [
        *(("by how far the three lie apart", one) for one in panels(imported)),
        *(("by a spread that is right", one) for one in generated(knows=True)),
        *(("by a spread that is wrong", one) for one in generated(knows=False)),
    ]:
        drawn_so, evenly, enough = needed(population, cards, labels, few)
        bench.add(f"{population.name}: width, both, drawn {key}", drawn_so)
        bench.add(f"{population.name}: width, both, random choice", evenly)
        bench.add(f"{population.name}: labels of a random choice as narrow as {labels} drawn {key}", enough)
        assert population.unsure is not None, "these have a spread"
        told = rank_correlation(population.unsure, np.abs(population.people - population.judge))
        bench.add(f"{population.name}: Spearman's correlation of spread and error", told.mean or 0.0)
        bench.add(f"{population.name}: its lower bound, above 0 where a draw by spread is advised", told.low or 0.0)
    bench.deliver(out)
