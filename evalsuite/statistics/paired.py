"""Paired statistics over cards: intervals of means and differences, tests, and the ranks that these leave open.

Scores of two contestants on one card are correlated. So cards are drawn whole, and differences are taken card by card. Arrays
are [cards, contestants, dimensions]; a contestant is a supporter as scored by one scorer.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.grouping import exact_mean
from core.statistics.accuracy import ratio
from core.statistics.bootstrap import LEVEL, POINTS, SEED, SHARES, SMOOTHED, Floats, estimates, gap_levels, smoothed_means
from core.statistics.inference import (
    ALPHA,
    TEST,
    beside_interval,
    cluster_error,
    contributions,
    holds,
    holm_of,
    p_text,
    student_p,
    welch,
)
from core.tables import Cell, Estimate

COLUMNS = ("difference", "p", "p (Holm)", "significant")
HOLDS = (
    f"p: {TEST}, two-sided, and above {ALPHA:g} wherever the interval contains 0. A difference is significant where p after "
    f"Holm's correction is at most {ALPHA:g}; the averages are corrected together, and separately the dimensions"
)
NOTE = (
    f"Difference in points of 0–100, [{SMOOTHED} over cards], n = shared cards: those on which both sides have a readable "
    f"verdict. {HOLDS}. A dash: not tested (two floors, the same dialogues, fewer than two cards)."
)
UNPAIRED = "Sides that share no card are compared unpaired: n counts the cards of both, p is Welch's."


@dataclass(frozen=True)
class Difference:
    """First minus second contestant (places on the second axis) on one dimension, or on the average (`dimension` is None).

    Means are over the shared cards, those on which both have a readable verdict: the n of `estimate`. If they share none, each
    is over its own cards, n counts both, and the test is `unpaired`. `holm` is p after Holm's correction over its family, and
    `holds` whether it is significant; all three are None if nothing was tested."""

    first: int
    second: int
    dimension: int | None
    first_mean: float | None
    second_mean: float | None
    estimate: Estimate
    p: float | None
    holm: float | None
    holds: bool | None
    unpaired: bool = False


Clusters = NDArray[np.intp] | None  # the cluster of each card, from 0; None if every card is its own


class Design(NamedTuple):
    """How cards were drawn: the cluster and the stratum (language) of each card, both from 0; None if every card is a cluster,
    and for a single stratum. `weights` [dimensions] are those of the average, None if all count the same. `levels` replaces a
    function's own: the scores that an unseen card may have."""

    clusters: Clusters = None
    strata: NDArray[np.intp] | None = None
    weights: Floats | None = None
    levels: Floats | None = None


PLAIN = Design()


def within_strata(sums: Floats, counts: Floats, strata: NDArray[np.intp] | None) -> tuple[Floats, NDArray[np.intp]]:
    """Sums [cards, …] as if every stratum had the mean of all cards, and the number of strata of each column […].

    Its number of cards is fixed by design, so differences between strata are no error of the mean (Cochran 1977, section 5.3).
    Removing them leaves the mean as it is. The remainder is stretched by √((n − 1) / (n − strata)), since each stratum's mean
    was estimated. Columns in which a stratum has one card are left as they are, which is conservative."""
    cards = (counts > 0).sum(axis=0)
    if strata is None or not strata.any():
        return sums, np.minimum(cards, 1)
    parts = [_together(part, strata) for part in (sums, counts, (counts > 0).astype(np.float64))]
    number = (parts[2] > 0).sum(axis=0)
    separable = (parts[2] != 1).all(axis=0) & (number > 1)
    own, mean = ratio(parts[0], parts[1]), ratio(sums.sum(axis=0), counts.sum(axis=0))
    stretch = np.sqrt(np.divide(cards - 1, cards - number, out=np.ones(cards.shape), where=separable))
    inside = counts * np.nan_to_num(mean) + stretch * (sums - counts * np.nan_to_num(own)[strata])
    return np.where(separable, inside, sums), np.where(separable, number, np.minimum(cards, 1))


def card_estimates(
    sums: Floats, counts: Floats, readable: Sequence[int], levels: Floats = POINTS, design: Design = PLAIN, level: float = LEVEL
) -> list[list[Estimate]]:
    """Mean and interval (`smoothed_means`) of every contestant on every dimension, and of the average as its last column.

    `sums` and `counts` are of a card's observations (dialogues); `readable` counts each contestant's observations on any
    dimension: the n of its average. A dimension without observations has mean None, and one with a single card no interval; nor
    does the average over it."""
    levels = levels if design.levels is None else design.levels
    sums, _ = within_strata(sums, counts, design.strata)
    sums, counts = _together(sums, design.clusters), _together(counts, design.clusters)
    cards, contestants, dimensions = sums.shape
    flat = smoothed_means(sums.reshape(cards, -1), counts.reshape(cards, -1), levels)
    draws = with_average(flat.reshape(-1, contestants, dimensions), design.weights)
    totals = counts.sum(axis=0)
    means = with_average(ratio(sums.sum(axis=0), totals), design.weights)
    sizes = np.concatenate([totals, np.asarray(readable)[:, None]], axis=1)
    on_cards = _with_fewest((counts > 0).sum(axis=0), design.weights)
    cells = estimates(means.ravel(), draws.reshape(len(draws), -1), sizes.ravel(), on_cards.ravel(), level)
    return [cells[row * (dimensions + 1) :][: dimensions + 1] for row in range(contestants)]


def by_card(values: Floats, cards: Sequence[str]) -> tuple[Floats, Floats]:
    """Sums and counts [cards, …] of values [dialogues, …] (NaN: missing), which are on these cards."""
    clusters = np.unique(cards, return_inverse=True)[1]
    return _together(np.nan_to_num(values), clusters), _together((~np.isnan(values)).astype(np.float64), clusters)


def over_cards(values: Floats, cards: Sequence[str], levels: Floats = POINTS, weights: Floats | None = None) -> list[Estimate]:
    """`card_estimates` of values [dialogues, columns] (NaN: missing) on these cards; n counts dialogues."""
    readable = int((~np.isnan(values)).any(axis=1).sum())
    return card_estimates(*by_card(values[:, None], cards), [readable], levels, Design(weights=weights))[0]


def share(flags: Iterable[tuple[str, bool]]) -> Estimate:
    """The share, in per cent, of flags (cluster, flag) that are set; its interval draws clusters whole."""
    clustered = [*flags]
    if not clustered:
        return Estimate(None, None, None, 0)
    hits = 100 * np.array([hit for _, hit in clustered], dtype=np.float64)
    return over_cards(hits[:, None], [cluster for cluster, _ in clustered], 100 * SHARES)[0]


def differences(
    sums: Floats,
    counts: Floats,
    pairs: Sequence[tuple[int, int]],
    average_only: bool = False,
    levels: Floats = POINTS,
    families: Sequence[Hashable] | None = None,
    design: Design = PLAIN,
    level: float = LEVEL,
) -> list[Difference]:
    """Every pair's difference on every dimension and on the average (with `average_only`, on that alone), in order of pairs.

    A card counts once: a contestant's observations on it are averaged first. The average's difference is the mean of the
    dimensions', each over its own shared cards. Intervals: `smoothed_means` over clusters; each side may have any of `levels`
    on an unseen card. p: `student_p`, `beside_interval`. Holm's correction runs over the averages of the pairs of one of
    `families` (default: all pairs are one family), and separately over the dimensions; pairs whose family is None are not
    tested."""
    if not pairs:
        return []
    levels = levels if design.levels is None else design.levels
    values = ratio(sums, counts)
    first, second = (values[:, [pair[side] for pair in pairs]] for side in (0, 1))
    shared = ~np.isnan(first - second)  # [cards, pairs, dimensions]: a card counts where both sides have a value on it
    _, size, dimensions = shared.shape
    shared_counts = shared.astype(np.float64)
    inside, number = within_strata(np.where(shared, first - second, 0.0), shared_counts, design.strata)
    # From here on rows are clusters, the only independent units.
    gaps, present = _together(inside, design.clusters), _together(shared_counts, design.clusters)
    flat = smoothed_means(gaps.reshape(len(gaps), -1), present.reshape(len(gaps), -1), gap_levels(levels), sides=2)
    columns = [dimensions] if average_only else list(range(dimensions + 1))
    draws = with_average(flat.reshape(-1, size, dimensions), design.weights)[..., columns]
    means, parts, n = contributions(gaps, present)
    own_means = (contributions(np.where(shared, side, 0.0), shared_counts)[0] for side in (first, second))
    first_means, second_means, means, parts = (with_average(part, design.weights) for part in (*own_means, means, parts))
    counted = np.concatenate([shared.sum(axis=0), shared.any(axis=2).sum(axis=0)[:, None]], axis=1)
    on_cards = _with_fewest(n, design.weights)
    strata = np.concatenate([number, number.max(axis=-1, keepdims=True)], axis=-1)
    errors, degrees = cluster_error(parts, on_cards), on_cards - strata.astype(np.float64)
    # Pairs that share no card are compared as two independent samples (Welch).
    unpaired = np.logical_not(shared.any(axis=(0, 2)))
    for row in np.flatnonzero(unpaired):
        sides = [_alone(values[:, place], levels, SEED + side, design) for side, place in enumerate(pairs[row])]
        (first_means[row], own, cards_own, drawn), (second_means[row], other, cards_other, drawn_other) = sides
        means[row], draws[:, row] = first_means[row] - second_means[row], (drawn - drawn_other)[..., columns]
        errors[row], degrees[row] = welch(own, other, (cards_own, cards_other))
        defined = ~np.isnan(means[row])
        counted[row], on_cards[row] = (cards_own + cards_other) * defined, np.minimum(cards_own, cards_other)
    largest = float(gap_levels(levels).max())
    # Tested on all columns, corrected on those shown: with `average_only` the dimensions form no family.
    p = student_p(means, errors, on_cards, largest, degrees)[:, columns]
    means, first_means, second_means = (part[:, columns].ravel() for part in (means, first_means, second_means))
    draws = draws.reshape(len(draws), -1)
    p = beside_interval(p.ravel(), draws, level).reshape(p.shape)
    if families is not None:
        p[[family is None for family in families]] = np.nan
    tested = [_none(value) for value in p.ravel()]
    places = [(row, column) for row in range(size) for column in columns]
    corrected = holm_of(tested, [(families[row] if families else 0, column == dimensions) for row, column in places])
    cells = estimates(means, draws, counted[:, columns].ravel(), on_cards[:, columns].ravel(), level)
    result = []
    for place, (row, column) in enumerate(places):
        on, both = column if column < dimensions else None, (_none(first_means[place]), _none(second_means[place]))
        alone, p_holm = bool(unpaired[row]) and not np.isnan(means[place]), corrected[place]
        result.append(Difference(*pairs[row], on, *both, cells[place], tested[place], p_holm, holds(p_holm, level), alone))
    return result


def _alone(values: Floats, levels: Floats, seed: int, design: Design) -> tuple[Floats, Floats, NDArray[np.intp], Floats]:
    """Means, errors, clusters and draws of a single contestant's values [cards, dimensions], the average last."""
    present = ~np.isnan(values)
    sums, counts = (_together(part, design.clusters) for part in (np.nan_to_num(values), present.astype(np.float64)))
    kept = counts.any(axis=1)
    if not kept.any():
        undefined = np.full(values.shape[1] + 1, np.nan)
        return undefined, undefined, np.zeros(len(undefined), dtype=np.intp), undefined
    means, parts, n = contributions(sums[kept], counts[kept])
    drawn, weights = _with_fewest(n, design.weights), design.weights
    draws = with_average(smoothed_means(sums[kept], counts[kept], levels, seed), weights)
    return with_average(means, weights), cluster_error(with_average(parts, weights), drawn), drawn, draws


def _together(values: Floats, clusters: Clusters) -> Floats:
    """Sums of values [cards, …] over the cards of each cluster."""
    if clusters is None:
        return values
    sums = np.zeros((int(clusters.max(initial=-1)) + 1, *values.shape[1:]))
    np.add.at(sums, clusters, values)
    return sums


# --- ranks ------------------------------------------------------------------------------------------------------------------

RANKS = (
    "Rank: the places that the differences leave open, from 1 + the number of models that are significantly better to the "
    "number of models minus those that are significantly worse; at 95 % all true ranks lie in these ranges."
)


def rank_ranges(
    differences: Sequence[Difference], count: int, ranked: Collection[int] | None = None
) -> list[tuple[int, int] | None]:
    """The best and worst rank that differences in the average leave open to each of `count` contestants (Mogstad, Romano,
    Shaikh and Wilhelm 2024, "Inference for ranks"); None for those not in `ranked` (default: all) or tested against no
    other."""
    places = set(range(count) if ranked is None else ranked)
    averages = (gap for gap in differences if gap.dimension is None and gap.holds is not None)
    gaps = [gap for gap in averages if {gap.first, gap.second} <= places]
    tested = {place for gap in gaps for place in (gap.first, gap.second)}
    better, worse = [0] * count, [0] * count
    for gap in gaps:
        if gap.holds:
            winner, loser = (gap.first, gap.second) if (gap.estimate.mean or 0) > 0 else (gap.second, gap.first)
            better[loser] += 1
            worse[winner] += 1
    return [(1 + better[place], len(tested) - worse[place]) if place in tested else None for place in range(count)]


def rank_text(rank: tuple[int, int] | None) -> str | None:
    """`2`, or `1–3`; None for None."""
    return None if rank is None else str(rank[0]) if rank[0] == rank[1] else f"{rank[0]}–{rank[1]}"


def average_of(values: Floats, weights: Floats | None = None) -> Floats:
    """The mean of the last axis; NaN if a value with weight is missing, since averages over fewer are not comparable."""
    if weights is None:
        return np.asarray(values.mean(axis=-1))
    return np.asarray(values[..., weights > 0] @ (weights[weights > 0] / weights.sum()))


def with_average(values: Floats, weights: Floats | None = None) -> Floats:
    """Append `average_of` to the last axis."""
    return np.concatenate([values, average_of(values, weights)[..., None]], axis=-1)


def _with_fewest(cards: NDArray[np.intp], weights: Floats | None) -> NDArray[np.intp]:
    """Append the minimum of the last axis: the cards of the average's dimension with the fewest."""
    counted = cards if weights is None else cards[..., weights > 0]
    return np.concatenate([cards, counted.min(axis=-1, keepdims=True)], axis=-1)


def _none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def by_column(gap: Difference, name: str = COLUMNS[0]) -> dict[str, Cell]:
    """A difference as table cells by heading (`COLUMNS`), its estimate under `name`."""
    cells = gap.estimate, p_text(gap.p), p_text(gap.holm), yes_or_no(gap.holds)
    return dict(zip((name, *COLUMNS[1:]), cells, strict=True))


def yes_or_no(significant: bool | None) -> str | None:
    """`yes` or `no` for tables; None (not tested) for None."""
    return None if significant is None else "yes" if significant else "no"


def one_sided_clusters(scores: Mapping[str, Mapping[Any, float]]) -> dict[str, int]:
    """Contestant → its cluster from 1, by falling mean of its scores by item: a contestant significantly worse than one in the
    last cluster (paired t over shared items, one-sided, `ALPHA`, uncorrected) starts the next. As in MindEval's
    significance_testing.py, after the practice in machine translation."""
    from scipy import stats  # heavy: loaded for this alone

    def better(first: str, second: str) -> bool:
        shared = [item for item in scores[first] if item in scores[second]]
        a, b = ([scores[name][item] for item in shared] for name in (first, second))
        return len(shared) > 1 and a != b and bool(stats.ttest_rel(a, b, alternative="greater").pvalue < ALPHA)

    places: dict[str, int] = {}
    for name in sorted(scores, key=lambda name: -exact_mean(scores[name].values())):
        last = max(places.values(), default=1)
        places[name] = last + any(better(above, name) for above, place in places.items() if place == last)
    return places
