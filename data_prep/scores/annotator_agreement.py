"""How well people agree on a rubric: Krippendorff's alpha, weighted kappa of every two of them, equal and near scores."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.records import HumanScore, Language
from data_prep.reliability import Counts, cohen_kappa, estimate, krippendorff_alpha, ratio
from data_prep.rubrics import Rubric
from data_prep.tables import Estimate, Table

RESAMPLES = 1000


@dataclass(frozen=True)
class Agreed:
    """Agreement on one dimension in one language, with 95 % percentile intervals of a bootstrap over dialogues.

    `n` of every figure is the number of dialogues that at least two people scored, `pairs` how many pairs of people share
    dialogues. `alpha` is Krippendorff's (ordinal, −1 to 1), `kappa` the mean of Cohen's over the pairs (quadratic weights, each
    pair as often as it shares dialogues; pairs without variation left out), `equal` and `near` the shares (0–1) of pairs of
    scores that are equal, or at most one point apart. What is not defined, because nothing varies, has mean None.
    """

    language: Language
    dimension: str
    n: int
    people: int
    pairs: int
    alpha: Estimate
    kappa: Estimate
    equal: Estimate
    near: Estimate


def agreement(
    scores: Sequence[HumanScore], rubric: Rubric, seed: int, resamples: int = RESAMPLES, halves: bool = False
) -> list[Agreed]:
    """A row a language and dimension, where any dialogue has scores of two people. Scores are on the scale and whole, or with
    `halves` whole or half."""
    rows, steps = [], 2 if halves else 1  # steps a point
    for language in rubric.languages:
        for dimension in rubric.dimensions:
            items: dict[str, dict[str, int]] = defaultdict(dict)
            for score in scores:
                if (score.language, score.dimension) == (language, dimension):
                    items[score.dialogue_id][score.annotator] = round(steps * (score.value - rubric.scale.min))
            # Sorted by dialogue: the draws are of places in this list, and must not depend on the order of the rows.
            shared = [by_name for _, by_name in sorted(items.items()) if len(by_name) > 1]
            if shared:
                rows.append(
                    _agreed(
                        language, dimension, shared, (rubric.scale.max - rubric.scale.min) * steps + 1, steps, seed, resamples
                    )
                )
    return rows


def _agreed(
    language: Language, dimension: str, items: Sequence[dict[str, int]], size: int, steps: int, seed: int, resamples: int
) -> Agreed:
    n = len(items)
    tables: dict[tuple[str, str], Counts] = defaultdict(lambda: np.zeros((n, size, size)))
    coincidences = np.zeros((n, size, size))
    for index, by_name in enumerate(items):
        for a, b in itertools.combinations(sorted(by_name), 2):
            tables[a, b][index, by_name[a], by_name[b]] += 1
            coincidences[index, by_name[a], by_name[b]] += 1 / (len(by_name) - 1)
            coincidences[index, by_name[b], by_name[a]] += 1 / (len(by_name) - 1)
    weights = np.ones((1, n))  # the data as they are, then the draws
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(float)
    every = np.concatenate([weights, drawn])

    def summed(cells: Counts) -> Counts:
        return (every @ cells.reshape(n, -1)).reshape(-1, size, size)

    away = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(float)
    by_pair = [summed(table) for _, table in sorted(tables.items())]
    pooled = np.sum(by_pair, axis=0)
    kappas = np.array([cohen_kappa(table, away**2) for table in by_pair])
    counts = np.where(np.isnan(kappas), 0.0, np.array([table.sum((1, 2)) for table in by_pair]))

    def both(figure: Counts) -> Estimate:
        return estimate(figure[:1], figure[1:], n)

    return Agreed(
        language,
        dimension,
        n,
        people=len({name for by_name in items for name in by_name}),
        pairs=len(tables),
        alpha=both(krippendorff_alpha(summed(coincidences), ordinal=True)),
        kappa=both(ratio((np.nan_to_num(kappas) * counts).sum(0), counts.sum(0))),
        equal=both(ratio(pooled[:, away == 0].sum(1), pooled.sum((1, 2)))),
        near=both(ratio(pooled[:, away <= steps].sum(1), pooled.sum((1, 2)))),
    )


def agreement_table(rows: Sequence[Agreed], resamples: int = RESAMPLES) -> Table:
    """The rows as one table."""
    return Table(
        key="annotators",
        title="Agreement of the annotators",
        columns=("Dimension", "Language", "People", "Pairs", "Krippendorff's alpha", "Weighted kappa", "Equal", "Within 1"),
        rows=tuple((r.dimension, r.language, r.people, r.pairs, r.alpha, r.kappa, r.equal, r.near) for r in rows),
        notes=(
            "Before any review. n: dialogues that two or more people scored. Alpha is ordinal; kappa has quadratic weights and "
            "is the mean over pairs of people who share dialogues. A dash: not defined, because nothing varies.",
            f"Intervals: 95 %, bootstrap over dialogues, {resamples:,} draws.",
        ),
        section="Annotators",
    )
