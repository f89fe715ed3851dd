"""Paired statistics over cards: intervals, differences with sign-flip tests and Holm's correction.

What two contestants did on one card belongs together. So cards are drawn whole, and a difference is taken
card by card. Arrays are [cards, contestants, dimensions]; a contestant is a supporter as one scorer sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.statistics.bootstrap import POINTS, SEED, SMOOTHED, Floats, estimate, gap_levels, smoothed_means
from core.tables import Cell, Estimate

FLIPS = 9_999
ALPHA = 0.05
COLUMNS = ("difference", "p", "p (Holm)", "holds")
NOTE = (
    f"Difference in points of 0–100, [{SMOOTHED} over cards], n = shared cards: those on which both "
    "sides have a readable verdict. p: paired sign-flip permutation test over the shared cards, two-sided. It holds where p "
    f"after Holm's correction over this table is at most {ALPHA:g}. A dash: no shared cards, so nothing to pair."
)
_BATCH = 500  # sign patterns at a time: bounds memory


@dataclass(frozen=True)
class Difference:
    """First minus second contestant (places on the second axis) on one dimension, or on the average (`dimension` is None).

    `first_mean` and `second_mean` are over the shared cards only, those on which both have a readable verdict: the n of
    `estimate`. All figures are None where they share none. `holm` is p after Holm's correction over all comparisons that were
    made together, and `holds` says whether it is at most `ALPHA`.
    """

    first: int
    second: int
    dimension: int | None
    first_mean: float | None
    second_mean: float | None
    estimate: Estimate
    p: float | None
    holm: float | None
    holds: bool | None


def card_estimates(sums: Floats, counts: Floats, readable: Sequence[int], levels: Floats = POINTS) -> list[list[Estimate]]:
    """Mean and 95 % interval (`smoothed_means`) of every contestant on every dimension, and of the average as its last column.

    `sums` and `counts` hold the sum of a card's observations (dialogues) and their number, zero where there is none; `readable`
    is how many observations each contestant has on any dimension: the n of its average. Cards are drawn whole, so the interval
    of the average keeps the correlation between dimensions. A dimension without observations has mean None, and so has the
    average then. Observations on one card alone have no interval (low and high None), nor has an average over a dimension that
    rests on one card.
    """
    cards, contestants, dimensions = sums.shape
    flat = smoothed_means(sums.reshape(cards, -1), counts.reshape(cards, -1), levels)
    draws = _with_average(flat.reshape(-1, contestants, dimensions))
    totals = counts.sum(axis=0)
    means = _with_average(_over(sums.sum(axis=0), totals))
    sizes = np.concatenate([totals, np.asarray(readable)[:, None]], axis=1)
    on_cards = _with_fewest((counts > 0).sum(axis=0))
    return [
        [
            estimate(means[row, column], draws[:, row, column], int(sizes[row, column]), int(on_cards[row, column]))
            for column in range(dimensions + 1)
        ]
        for row in range(contestants)
    ]


def by_card(values: Floats, cards: Sequence[str]) -> tuple[Floats, Floats]:
    """Sums and counts [cards, …] of values [dialogues, …], NaN where there is none: cards are drawn whole."""
    names = {name: place for place, name in enumerate(sorted(set(cards)))}
    sums, counts = np.zeros((2, len(names), *values.shape[1:]))
    for card, row in zip(cards, values, strict=True):
        sums[names[card]] += np.where(np.isnan(row), 0.0, row)
        counts[names[card]] += ~np.isnan(row)
    return sums, counts


def over_cards(values: Floats, cards: Sequence[str], levels: Floats = POINTS) -> list[Estimate]:
    """`card_estimates` of dialogues × columns (NaN: no value) on these cards; n counts dialogues."""
    readable = int((~np.isnan(values)).any(axis=1).sum())
    return card_estimates(*by_card(values[:, None], cards), [readable], levels)[0]


def differences(
    sums: Floats,
    counts: Floats,
    pairs: Sequence[tuple[int, int]],
    average_only: bool = False,
    levels: Floats = POINTS,
) -> list[Difference]:
    """Every pair's difference on every dimension and on the average (with `average_only`, on that alone), in order of pairs.

    A card counts once: a contestant's observations on it are averaged first. The average's difference is the unweighted mean of
    the dimensions', each over its own shared cards. Intervals: `smoothed_means` over cards, none where `card_estimates` has
    none; each side may have any of `levels` on a card that nobody has seen.
    p: `sign_flip_p`. Holm's correction runs over everything returned.
    """
    if not pairs:
        return []
    values = _over(sums, counts)
    first, second = (values[:, [pair[side] for pair in pairs]] for side in (0, 1))
    shared = ~np.isnan(first - second)  # [cards, pairs, dimensions]
    cards, size, dimensions = shared.shape
    gaps = np.where(shared, first - second, 0.0)
    n = shared.sum(axis=0)
    flat = smoothed_means(gaps.reshape(cards, -1), shared.reshape(cards, -1).astype(np.float64), gap_levels(levels))
    draws = _with_average(flat.reshape(-1, size, dimensions))
    first_means, second_means, means = (
        _with_average(_over(np.where(shared, side, 0.0).sum(axis=0), n)) for side in (first, second, gaps)
    )
    counted = np.concatenate([n, shared.any(axis=2).sum(axis=0)[:, None]], axis=1)
    on_cards = _with_fewest(n)
    columns = [dimensions] if average_only else range(dimensions + 1)
    # What each card adds to a mean: these are what the test flips.
    shares = _with_average(gaps / np.maximum(n, 1))[:, :, columns]
    p = sign_flip_p(shares.reshape(cards, -1)).reshape(size, -1)
    p[np.isnan(means[:, columns])] = np.nan
    corrected = holm(p.ravel()).reshape(p.shape)
    return [
        Difference(
            first=one,
            second=other,
            dimension=column if column < dimensions else None,
            first_mean=_none(first_means[row, column]),
            second_mean=_none(second_means[row, column]),
            estimate=estimate(means[row, column], draws[:, row, column], int(counted[row, column]), int(on_cards[row, column])),
            p=_none(p[row, place]),
            holm=_none(corrected[row, place]),
            holds=None if np.isnan(corrected[row, place]) else bool(corrected[row, place] <= ALPHA),
        )
        for row, (one, other) in enumerate(pairs)
        for place, column in enumerate(columns)
    ]


def sign_flip_p(shares: Floats) -> Floats:
    """Two-sided p of each column's sum under random signs of its rows: a paired permutation test.

    If two contestants are alike, swapping them on any card changes nothing but that card's sign. The test is exact at any
    number of cards, which a p from an interval's draws is not; and 2,000 draws have no p below 0.0005, where one of the 91
    pairs of 14 supporters must be at about that to hold after Holm's correction. All sign patterns are tried where there are
    few, else `FLIPS` drawn ones, or more where many columns are corrected together.
    """
    rows, columns = shares.shape
    # Sums that are equal but for rounding count as equal: without this, p would depend on the order of additions.
    needed = np.abs(shares.sum(axis=0)) - 1e-9 * np.abs(shares).sum(axis=0)
    flips = max(FLIPS, int(2 * columns / ALPHA))
    exact = 2**rows <= flips
    hits = np.zeros(columns)
    for signs in _all_signs(rows) if exact else _drawn_signs(rows, flips):
        hits += (np.abs(signs @ shares) >= needed).sum(axis=0)
    # Among drawn patterns, the one that was seen is one more.
    return hits / 2**rows if exact else (hits + 1) / (flips + 1)


def fewest_cards(tests: int = 1) -> int:
    """The fewest cards on which `sign_flip_p` can be at most `ALPHA` after Holm's correction over so many tests: on n cards it
    is 2 / 2ⁿ or more."""
    return int(np.ceil(1 + np.log2(tests / ALPHA)))


def _all_signs(rows: int) -> Iterator[Floats]:
    """Every pattern of signs of `rows` cards, in batches [patterns, cards]."""
    for start in range(0, 2**rows, _BATCH):
        patterns = np.arange(start, min(start + _BATCH, 2**rows))[:, None] >> np.arange(rows)
        yield 1 - 2 * (patterns & 1).astype(np.float64)


def _drawn_signs(rows: int, flips: int) -> Iterator[Floats]:
    """`flips` random patterns of signs, in batches [patterns, cards]."""
    rng = np.random.default_rng(SEED)
    for start in range(0, flips, _BATCH):
        yield 1 - 2 * rng.integers(2, size=(min(_BATCH, flips - start), rows)).astype(np.float64)


def holm(p: Floats) -> Floats:
    """p values after Holm's correction over those that are not NaN.

    Three lines of our own: statsmodels' `multipletests` collects garbage on every call, seconds beside a run's records.
    """
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]  # NaN comes last
    corrected = np.full_like(p, np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return corrected


def holm_of(p: Sequence[float | None]) -> list[float | None]:
    """`holm` of p values of which some are None."""
    return [_none(one) for one in holm(np.array([np.nan if one is None else one for one in p]))]


def p_text(p: float | None) -> str | None:
    """A p value as tables show it."""
    return None if p is None else f"{p:.4f}"


def _over(sums: Floats, counts: Floats) -> Floats:
    """Sums by counts, NaN where there is nothing."""
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def _with_average(values: Floats) -> Floats:
    """Append the unweighted mean of the last axis; NaN where one is missing, since averages over fewer do not compare."""
    return np.concatenate([values, values.mean(axis=-1, keepdims=True)], axis=-1)


def _with_fewest(cards: NDArray[np.intp]) -> NDArray[np.intp]:
    """Append the least of the last axis: on how many cards the part of an average rests that has the fewest."""
    return np.concatenate([cards, cards.min(axis=-1, keepdims=True)], axis=-1)


def _none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def cells(difference: Difference) -> tuple[Cell, ...]:
    """A difference as the table cells under `COLUMNS`."""
    holds = None if difference.holds is None else "yes" if difference.holds else "no"
    return difference.estimate, p_text(difference.p), p_text(difference.holm), holds
