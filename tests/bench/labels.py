"""Labels that a judge saves people: prediction-powered means on EmpathicComm's own judges, and by which dialogues are drawn.

A population is what one of the three models gave on one dimension and the mean of the three experts there. Cards are drawn
from it with replacement, some of them get the experts' score, and the truth is the experts' mean over the whole population.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from core.ledger import Build
from core.rubrics import known_rubric
from core.statistics.bootstrap import Floats
from core.statistics.means import exact_mean
from data_prep.scores.corpora import import_corpus
from data_prep.scores.human import Imported
from evalsuite.statistics.prediction_powered import Scored, powered
from evalsuite.statistics.suggestions import chances
from tests.bench.figures import OUT, Bench, OutOption


@dataclass(frozen=True)
class Judged:
    """A judge's points and people's on the same dialogues [n]; `unsure` is what the judge is said to be unsure by."""

    name: str
    judge: Floats
    people: Floats
    unsure: Floats | None = None


@dataclass(frozen=True)
class Saved:
    """Of many samples: coverage (0–1) and mean width of people alone and of both, mean λ, and labels saved."""

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
    order = np.argsort(rng.random((cards, samples)), axis=0)
    passed = np.floor(np.cumsum(np.take_along_axis(chance, order, axis=0), axis=0) + rng.random(samples) + 1e-9)
    picked = np.zeros((cards, samples))
    np.put_along_axis(picked, order, (np.diff(passed, axis=0, prepend=0) > 0).astype(float), axis=0)
    weight = picked / chance
    parts = (judge, np.ones_like(judge), weight * people, weight * judge, weight)
    found = powered(Scored(*(part[:, :, None] for part in parts)))
    truth = population.people.mean()
    held, widths, spreads = [], [], []
    for _, draws in (found.people, found.both):
        low, high = np.percentile(draws[:, :, 0], [2.5, 97.5], axis=0)
        held.append(float(((low <= truth) & (truth <= high)).mean()))
        widths.append(float((high - low).mean()))
        spreads.append(draws[:, :, 0].var(axis=0))
    more = labels * (spreads[0] / spreads[1] - 1)
    return Saved(held[0], held[1], widths[0], widths[1], float(found.tuning.mean()), float(np.median(more)))


def judged(imported: Imported) -> Iterator[Judged]:
    """Every judge and dimension of EmpathicComm."""
    experts: dict[tuple[str, str, str], list[float]] = {}
    for score in imported.scores:
        if score.annotator.startswith("expert"):
            experts.setdefault((score.rubric, score.dimension, score.dialogue_id), []).append(score.value)
    pairs: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for verdict in imported.judgements:
        key = (verdict.rubric, verdict.dimension, verdict.dialogue_id)
        rubric = known_rubric(verdict.rubric)
        if verdict.value is not None and key in experts and rubric is not None:
            scale = rubric.scale_of(verdict.dimension)
            points = tuple((v - scale.min) * 100 / scale.span for v in (verdict.value, exact_mean(experts[key])))
            pairs.setdefault((verdict.rubric, verdict.dimension, verdict.judge), []).append((points[0], points[1]))
    for (on, dimension, judge), both in sorted(pairs.items()):
        judge_points, people_points = np.array(both).T
        yield Judged(f"{on} {dimension}, {judge}", judge_points, people_points)


def main(
    source: Annotated[str, typer.Option(help="EmpathicComm's folder.")],
    cards: Annotated[int, typer.Option(min=10, help="Cards of a sample.")] = 300,
    labels: Annotated[int, typer.Option(min=5, help="Cards of it that people score.")] = 50,
    samples: Annotated[int, typer.Option(min=10, help="Samples of each judge and dimension.")] = 500,
    out: OutOption = OUT,
) -> None:
    """Labels that EmpathicComm's three judges save, by dimension, with the coverage of the intervals."""
    bench = Bench("labels", f"Labels saved beside {labels} of {cards}", cards=cards, labels=labels, samples=samples)
    imported = import_corpus("empathic_comm", source, Build(out / "imported", "labels"), Console(quiet=True), False)
    for one in judged(imported):
        found = savings(one, cards, labels, samples)
        unsure = Judged(one.name, one.judge, one.people, np.abs(one.people - one.judge) + 1)
        active = savings(unsure, cards, labels, samples)
        bench.add(f"{one.name}: labels saved", found.saved)
        bench.add(f"{one.name}: λ", found.tuning)
        bench.add(f"{one.name}: coverage of both, %", 100 * found.both, at_least=93, aim="93 to 97")
        bench.add(f"{one.name}: width, people alone", found.people_width)
        bench.add(f"{one.name}: width, both", found.both_width)
        bench.add(f"{one.name}: width, both, drawn by the judge's true errors", active.both_width)
        bench.add(f"{one.name}: coverage, drawn so, %", 100 * active.both, at_least=93, aim="93 to 97")
    bench.deliver(out)
