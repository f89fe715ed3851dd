"""Agreement of raters: how often the intervals of kappa, alpha and the shares of equal and near scores hold the truth."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from core.statistics.accuracy import cohen_kappa, krippendorff_alpha
from core.statistics.bootstrap import Floats
from core.tables import Estimate
from data_prep.scores.annotator_agreement import Figures, ScoredItem, agreement_on
from tests.bench.claims import SHAPES, Claim, coverage, levels

SIZES = (5, 12, 30, 100)
_LARGE = 200_000  # items of a study in which nothing is left to chance
_LEVELS = np.arange(5.0)


def rated(shape: str, rng: np.random.Generator, items: int, raters: int) -> Floats:
    """Whole levels of 0–4, [items, raters]: raters see the same quality, each with an error of their own."""
    return levels(shape, rng, items, 1, raters)[:, 0]


def truths(shape: str, raters: int, seed: int) -> dict[str, float]:
    """The figures of a study so large that they are the truth, from whole tables of counts."""
    scores = rated(shape, np.random.default_rng((seed, raters)), _LARGE, raters).astype(int)
    pairs = [np.bincount(scores[:, a] * 5 + scores[:, b], minlength=25) for a, b in combinations(range(raters), 2)]
    tables = np.array(pairs, dtype=float).reshape(-1, 5, 5)
    both = tables.sum(0) + tables.sum(0).T
    gaps = np.abs(np.subtract.outer(_LEVELS, _LEVELS))
    return {
        "kappa": float(cohen_kappa(tables, gaps**2).mean()),
        "alpha": float(krippendorff_alpha(both[None] / (raters - 1), ordinal=True)[0]),
        "equal": float(both[gaps == 0].sum() / both.sum()),
        "near": float(both[gaps <= 1].sum() / both.sum()),
    }


def study(shape: str, rng: np.random.Generator, items: int, raters: int) -> Figures:
    """What the product says of one study."""
    scores = rated(shape, rng, items, raters)
    figures = agreement_on(
        {
            ScoredItem(f"{item:03}"): {f"r{who}": float(value) for who, value in enumerate(row)}
            for item, row in enumerate(scores)
        }
    )
    assert figures is not None
    return figures


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """Of every shape and size, with two, three and four raters in turn."""
    designs = [(place, step, shape, size) for place, shape in enumerate(SHAPES) for step, size in enumerate(SIZES)]
    for number, (place, step, shape, size) in enumerate(designs):
        raters = 2 + (place + step) % 3
        rng = np.random.default_rng((seed, number))
        found = [study(shape, rng, size, raters) for _ in range(studies if size < 100 else max(studies // 2, 10))]
        for name, truth in truths(shape, raters, seed).items():
            estimates: list[Estimate] = [getattr(one, name) for one in found]
            if any(one.low is not None for one in estimates):
                claim = f"interval of {'the share ' * (name in ('equal', 'near'))}{name}"
                yield coverage(claim, f"{shape}, {raters} raters", size, estimates, truth)
