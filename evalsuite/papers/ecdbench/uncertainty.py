"""How sure a leaderboard is: ranks under resampled items and under other weights, and which tasks tell models apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from core.statistics.bootstrap import RESAMPLES, SEED, Floats
from core.statistics.inference import holm
from evalsuite.papers.ecdbench.aggregate import Layer, ModelResult, Node, WeightFactors, aggregate
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores, node_paths

Scope = Literal["capabilities", "all", "any"]
SCOPES: dict[Scope, str] = {
    "capabilities": "capability weights ± {spread:.0%}",
    "all": "all weights ± {spread:.0%}",
    "any": "any capability weights",
}
LAYERS: tuple[Layer, ...] = ("capability", "sub_capability", "task", "dataset")
ALPHA = 0.05


@dataclass(frozen=True)
class RankRange:
    """A model's rank (1 is best) and the range that holds 95 % of the draws; `kept` is the share of draws with its own rank."""

    rank: int
    low: int
    high: int
    kept: float


@dataclass(frozen=True)
class Separation:
    """How far models lie apart in one place of the benchmark, 0 to 100.

    `sd` (n − 1), `lowest` and `highest` are over the `models`' scores; `reliability` is the part of their variance that is not
    due to the draw of items; of all `pairs`, `apart` have different scores (z of the difference by its bootstrap standard
    error, paired where the items are the same, after Holm's correction over the pairs). None where items
    are not known or there is one model.
    """

    node: Node
    models: int
    mean: float
    sd: float | None
    lowest: float
    highest: float
    reliability: float | None
    pairs: int
    apart: int | None


def comparable(results: Sequence[ModelResult]) -> list[ModelResult]:
    """Those that can be ranked together: the complete ones that pass the gate (as the leaderboard has it), or, where no total
    is complete and all rest on the same parts, all that are not below the gate."""
    complete = [result for result in results if result.gated is not None]
    if complete:
        return [result for result in complete if result.passed is not False]
    if len({result.covered for result in results}) > 1:
        return []
    return [result for result in results if result.root.partial is not None and result.passed is not False]


def ranges(draws: Sequence[Floats]) -> list[RankRange] | None:
    """Ranks by each model's first figure, and their ranges over the others; None where some model has no draws.

    Equal totals share the better rank.
    """
    if not draws or any(len(one) < 2 for one in draws):
        return None
    table = np.stack(draws)
    table = table[:, ~np.isnan(table).any(axis=0)]
    if table.shape[1] < 2:
        return None
    rounded = np.round(table, 9)  # sums in another order differ in the last bits
    ranks = 1 + (rounded[None] > rounded[:, None]).sum(axis=1)
    rank_ranges = []
    for drawn in ranks:
        low, high = np.percentile(drawn[1:], [2.5, 97.5], method="closest_observation")
        rank_ranges.append(RankRange(int(drawn[0]), int(low), int(high), float((drawn[1:] == drawn[0]).mean())))
    return rank_ranges


def weight_factors(benchmark: Benchmark, scope: Scope, spread: float = 0.25) -> WeightFactors:
    """Factors for the weights of nodes, [1 + draws], the first 1: uniform from 1 − spread to 1 + spread for capabilities, or
    for every node; or, for `any`, such that the capabilities' shares are uniform over all that sum to 1."""
    rng = np.random.default_rng(SEED)
    counted = {key: part.weight for key, part in benchmark.capabilities.items() if part.weight is not None}
    if scope == "any":
        shares = rng.dirichlet(np.ones(len(counted)), RESAMPLES).T
        drawn = {key: share / weight for (key, weight), share in zip(counted.items(), shares, strict=True)}
    else:
        paths = list(counted) if scope == "capabilities" else list(_all_paths(benchmark))
        drawn = {path: rng.uniform(1 - spread, 1 + spread, RESAMPLES) for path in paths}
    return {path: np.concatenate([[1.0], factors]) for path, factors in drawn.items()}


def _all_paths(benchmark: Benchmark) -> Iterator[str]:
    yield from node_paths(benchmark)
    for path, _, task in benchmark.tasks():
        for name in task.datasets:
            yield f"{path}/{name}"
            yield from (f"{path}/{name}/{method.metric}" for method in benchmark.datasets[name].methods)


def under_weights(
    benchmark: Benchmark, scores: Sequence[ModelScores], spread: float = 0.25
) -> Mapping[Scope, list[RankRange] | None]:
    """The ranks of models under other weights, the same draws for all models; items are as they are."""
    fixed = [replace(one, measured={key: replace(m, values=m.values[:1]) for key, m in one.measured.items()}) for one in scores]
    by_scope: dict[Scope, list[RankRange] | None] = {}
    for scope in SCOPES:
        factors = weight_factors(benchmark, scope, spread)
        size = len(next(iter(factors.values())))
        totals = [aggregate(benchmark, one, "null", factors).root.values for one in fixed]
        by_scope[scope] = ranges([np.broadcast_to(total, (size,)) for total in totals])
    return by_scope


def separations(results: Sequence[ModelResult]) -> list[Separation]:
    """Every place for which at least two models have a score, those that tell most apart first within their layer."""
    places: dict[str, list[Node]] = {}
    for result in results:
        for node in result.root.walk():
            if node.layer in LAYERS and node.partial is not None and node.share:
                places.setdefault(node.path, []).append(node)
    separations_of = [_separation(nodes) for nodes in places.values() if len(nodes) > 1]
    return sorted(separations_of, key=lambda one: (LAYERS.index(one.node.layer), -(one.sd or 0), one.node.path))


def _separation(nodes: Sequence[Node]) -> Separation:
    scores = np.array([node.partial for node in nodes], dtype=np.float64)
    pairs = list(combinations(range(len(nodes)), 2))
    spread = float(scores.std(ddof=1))
    reliability, apart = None, None
    if all(node.drawn and len(node.values) > 1 for node in nodes):
        draws = np.stack([node.values[1:] for node in nodes])
        noise = float(np.nanvar(draws, axis=1, ddof=1).mean())
        reliability = max(0.0, 1 - noise / spread**2) if spread > 1e-9 else None
        apart = _apart(scores, draws, pairs)
    low, high = float(scores.min()), float(scores.max())
    return Separation(nodes[0], len(nodes), float(scores.mean()), spread, low, high, reliability, len(pairs), apart)


def _apart(scores: Floats, draws: Floats, pairs: Sequence[tuple[int, int]]) -> int:
    """How many pairs differ; a pair whose difference never varies is not counted: its standard error says nothing."""
    from scipy.stats import norm

    gaps = np.array([scores[i] - scores[j] for i, j in pairs])
    errors = np.array([np.nanstd(draws[i] - draws[j], ddof=1) for i, j in pairs])
    z = np.divide(np.abs(gaps), errors, out=np.full(len(gaps), np.nan), where=errors > 1e-9)
    corrected = holm(2 * norm.sf(z))
    return int((corrected[~np.isnan(corrected)] <= ALPHA).sum())
