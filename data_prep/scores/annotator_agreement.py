"""Agreement of people: Krippendorff's alpha, weighted kappa of every pair of people, shares of equal and near scores.

The figures serve our sheets, existing scores, and (by `agreement_on`) choices between two systems.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.records import HumanScore, Language
from core.rubrics import Rubric
from core.statistics.accuracy import (
    AGREEMENT,
    ALPHA_FROM,
    Counts,
    cohen_kappa,
    jackknife,
    krippendorff_alpha,
    left_out,
    ratio,
)
from core.statistics.bootstrap import SHARES, SMOOTHED, estimate, smoothed_means
from core.tables import Cell, Estimate, Table

_SAME = 1e-9  # differences of thirds are not exact
_CELLS = 2**22  # of tables at a time: 32 MB an array


@dataclass(frozen=True)
class AnnotatorPair:
    """Two people on the `n` items that both scored; see `Figures`."""

    a: str
    b: str
    n: int
    kappa: Estimate
    equal: Estimate
    near: Estimate


@dataclass(frozen=True)
class Figures:
    """Agreement with 95 % intervals over clusters; None where nothing varies.

    `n`, also of every estimate, is the number of items that at least two people scored; `alone` items have one person's score
    and are in no figure. `pairs` of the `people` share items. `alpha` is Krippendorff's (ordinal, −1 to 1), `kappa` the mean of
    Cohen's over the pairs (quadratic weights), weighted by the items that they share. `equal` and `near` are the shares (0–1)
    of pairs of scores that are equal, or at most one point apart.
    """

    n: int
    alone: int
    people: int
    pairs: int
    alpha: Estimate
    kappa: Estimate
    equal: Estimate
    near: Estimate
    by_pair: tuple[AnnotatorPair, ...]


@dataclass(frozen=True)
class Agreed(Figures):
    """Agreement on a dimension of a rubric, for whole dialogues or for single turns. A dialogue's turns are drawn together."""

    language: Language
    rubric: str
    dimension: str
    scored: Literal["dialogue", "turn"]


class ScoredItem(NamedTuple):
    """A scored item. The parts of a `cluster` (the turns of a dialogue) are drawn together."""

    cluster: str
    part: int | None = None


def agreement(scores: Iterable[HumanScore], rubrics: Sequence[Rubric] = (), seed: int = 0) -> list[Agreed]:
    """A row per language, rubric and dimension with any dialogue (or turn) that two people scored. Scores may be any numbers,
    such as halves or thirds. Dimensions of the `rubrics` come in their order, others by name."""
    groups: dict[tuple[Language, str, str, bool], dict[ScoredItem, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for score in scores:
        key = (score.language, score.rubric, score.dimension, score.turn is not None)
        groups[key][ScoredItem(score.dialogue_id, score.turn)][score.annotator] = score.value
    order = {(rubric.name, key): place for rubric in rubrics for place, key in enumerate(rubric.dimensions)}
    rows = []
    for key in sorted(groups, key=lambda key: (key[0], key[1], order.get(key[1:3], len(order)), key)):
        language, rubric, dimension, of_turns = key
        if figures := agreement_on(groups[key], seed):
            scored: Literal["dialogue", "turn"] = "turn" if of_turns else "dialogue"
            rows.append(Agreed(**vars(figures), language=language, rubric=rubric, dimension=dimension, scored=scored))
    return rows


def agreement_on(items: Mapping[ScoredItem, Mapping[str, float]], seed: int = 0) -> Figures | None:
    """The figures of `items`, each with people's values by name, in any order; None if no item has two values."""
    order = sorted(items, key=lambda item: (item.cluster, -1 if item.part is None else item.part))
    shared = [(item, sorted(items[item].items())) for item in order if len(items[item]) > 1]
    if not shared:
        return None
    names, cluster = np.unique([item.cluster for item, _ in shared], return_inverse=True)
    without = left_out(len(names), seed)[:, cluster]  # an item counts as often as its cluster does
    by_pair: dict[tuple[str, str], list[tuple[int, float, float]]] = defaultdict(list)
    for row, (_, values) in enumerate(shared):
        for (a, first), (b, second) in itertools.combinations(values, 2):
            by_pair[a, b].append((row, first, second))

    kappas, shares = np.zeros((2, len(by_pair), len(without)))
    # For every pair of people, and for all in the last column: equal, near and all pairs of scores of a cluster.
    counts = np.zeros((3, len(names), len(by_pair) + 1))
    by_kappa: list[tuple[str, str, int, Estimate]] = []
    for number, ((a, b), scored) in enumerate(sorted(by_pair.items())):
        rows, x, y = (np.array(column) for column in zip(*scored, strict=True))
        gaps = np.abs(x - y)
        for count, of_scores in zip(counts, (gaps <= _SAME, gaps <= 1 + _SAME, gaps >= 0), strict=True):
            count[:, number] = np.bincount(cluster[rows], of_scores, len(names))
        kappas[number], shares[number] = _kappa(x, y, rows, without), without[:, rows].sum(1)
        # Leaving out a group without any item of this pair gives the same figure, so it is no draw of its jackknife.
        of_pair = np.concatenate([[True], (without[1:, rows] == 0).any(1)])
        by_kappa.append((a, b, len(rows), jackknife(kappas[number][of_pair], len(rows))))
    counts[:, :, -1] = counts.sum(2)
    sizes = [*(n for _, _, n, _ in by_kappa), len(shared)]
    *hits, totals = counts
    clusters = (totals > 0).sum(0).tolist()
    columns = []
    for hit in hits:
        draws, means = smoothed_means(hit, totals, SHARES, seed), ratio(hit.sum(0), totals.sum(0))
        columns.append([*map(estimate, means.round(6).tolist(), draws.T, sizes, clusters)])
    *of_pairs, (equal, near) = zip(*columns, strict=True)
    weighed = np.where(np.isnan(kappas), 0.0, shares)
    return Figures(
        len(shared),
        alone=len(items) - len(shared),
        people=len({name for _, values in shared for name, _ in values}),
        pairs=len(by_pair),
        alpha=jackknife(_alpha([[value for _, value in values] for _, values in shared], without), len(shared), ALPHA_FROM),
        kappa=jackknife(ratio((np.nan_to_num(kappas) * weighed).sum(0), weighed.sum(0)), len(shared)),
        equal=equal,
        near=near,
        by_pair=tuple(AnnotatorPair(*pair, *two) for pair, two in zip(by_kappa, of_pairs, strict=True)),
    )


def _kappa(x: Counts, y: Counts, rows: NDArray[np.intp], weights: Counts) -> Counts:
    """Cohen's kappa (quadratic weights) for each row of weights, from two people's values by item and the items' rows."""
    values, place = np.unique(np.concatenate([x, y]).round(9), return_inverse=True)
    first, second = np.split(place, 2)
    away = np.subtract.outer(values, values) ** 2
    return _on_tables(partial(cohen_kappa, weights=away), weights, rows, first, second, np.ones(len(rows)))


def _alpha(items: Sequence[Sequence[float]], weights: Counts) -> Counts:
    """Krippendorff's alpha (ordinal) for each row of weights; every item has at least two values."""
    sizes = np.array(list(map(len, items)))
    _, place = np.unique(np.concatenate([np.array(values, dtype=float) for values in items]).round(9), return_inverse=True)
    ends = itertools.pairwise([0, *np.cumsum(sizes)])
    cells = [(row, a, b) for row, (start, end) in enumerate(ends) for a, b in itertools.permutations(place[start:end], 2)]
    rows, first, second = (np.array(column) for column in zip(*cells, strict=True))
    return _on_tables(partial(krippendorff_alpha, ordinal=True), weights, rows, first, second, 1 / (sizes[rows] - 1))


def _on_tables(
    figure: Callable[[Counts], Counts],
    weights: Counts,
    rows: NDArray[np.intp],
    first: NDArray[np.intp],
    second: NDArray[np.intp],
    amounts: Counts,
) -> Counts:
    """`figure` of tables (rows of weights × values × values), in which each pair of values counts its amount times the weight
    of its item. Tables are made in batches that fit into memory."""
    from scipy.sparse import csr_array

    size = int(max(first.max(), second.max())) + 1
    cells = csr_array((amounts, (first * size + second, rows)), shape=(size**2, weights.shape[1]))
    step = max(1, _CELLS // size**2)
    parts = (weights[start : start + step] for start in range(0, len(weights), step))
    return np.concatenate([figure(np.asarray(cells @ part.T).T.reshape(-1, size, size)) for part in parts])


def agreement_table(rows: Sequence[Agreed]) -> Table:
    """The rows as one table."""
    alone = sum(row.alone for row in rows)
    notes = [
        "n: dialogues (or turns) that two or more people scored. Alpha is ordinal; kappa has quadratic weights and is the mean "
        "over pairs of people, weighted by how many dialogues (or turns) they share. Equal, within 1 (point): shares of pairs "
        "of scores. A dash: not defined, because nothing varies.",
        f"Intervals over dialogues: 95 % {AGREEMENT}; of shares: {SMOOTHED}.",
        *([f"{alone:,} items were scored by one person only and are in no figure."] if alone else []),
    ]
    body = [
        name | {"People": row.people, "Pairs": row.pairs, "Krippendorff's alpha": row.alpha} | _shown(row)
        for name, row in zip(_names(rows), rows, strict=True)
    ]
    return Table.of("annotators", "Agreement of the annotators", body, notes, "Annotators")


def pair_table(rows: Sequence[Agreed]) -> Table:
    """A table of every two people who share dialogues."""
    pairs = [
        name | {"Annotator": pair.a, "and": pair.b} | _shown(pair)
        for name, row in zip(_names(rows), rows, strict=True)
        for pair in row.by_pair
    ]
    notes = ["n: dialogues (or turns) that both scored. Kappa with quadratic weights. Intervals as above."]
    return Table.of("annotator_pairs", "Agreement of every two annotators", pairs, notes, "Annotators")


def _shown(figures: Figures | AnnotatorPair) -> dict[str, Cell]:
    return {"Weighted kappa": figures.kappa, "Equal": figures.equal, "Within 1": figures.near}


def _names(rows: Sequence[Agreed]) -> list[dict[str, Cell]]:
    """The columns that identify the rows; rubric, and dialogue or turn, only if they differ."""
    several = [head for head in ("Rubric", "Scored") if len({getattr(row, head.lower()) for row in rows}) > 1]
    return [{head: getattr(row, head.lower()) for head in ("Dimension", "Language", *several)} for row in rows]
