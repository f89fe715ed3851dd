"""Algorithms 1 and 3 to 5 of ECDBench: from methods to datasets, tasks, levels, sub-capabilities, capabilities and the total.

Every figure is an array: the figure itself first, then one value per bootstrap draw of the items or per draw of the weights, so
intervals and rankings come from the same sums. A score is complete if every part below it has one. Otherwise it is None with
the reason, and there is a partial score over the parts with scores, with their share of the weights. With `missing="zero"` a
dataset without any result counts as 0, as in algorithms 3 and 4. With `missing="left_out"`, parts that the registry calls not
runnable are left out of all weights, whether they have a score or not, and so is a method that is undefined on a model's
answers, if its dataset has another. If anything else is missing, there is still no total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from core.errors import UserError
from core.statistics.bootstrap import RESAMPLES, SEED, Floats, interval
from core.tables import Estimate
from evalsuite.papers.ecdbench.registry import Benchmark, BenchmarkTask, SubCapability
from evalsuite.papers.ecdbench.scores import Measured, ModelScores, node_paths

Layer = Literal["total", "capability", "sub_capability", "level", "task", "dataset", "method"]
Missing = Literal["null", "zero", "left_out"]
WeightFactors = Mapping[str, Floats]  # path → factors of that node's weight, one per draw
NOTHING = np.zeros(0)


@dataclass(frozen=True)
class Node:
    """One node of the benchmark's tree with its score. `path` joins the ids from the capability down; `""` is the total.

    `weight`: its share of its parent; `values` [1 + draws]: the score over the parts that have one, empty if none has; `share`:
    the weight of those parts (0 to 1); `n`: items below it; `drawn`: whether all of its items are resampled in the draws.
    `reason` (why there is no score) and `measured` are a method's.
    """

    layer: Layer
    path: str
    label: str
    weight: float
    values: Floats = field(default_factory=lambda: NOTHING)
    share: float = 0.0
    complete: bool = False
    n: int = 0
    drawn: bool = False
    reason: str = ""
    children: tuple[Node, ...] = ()
    measured: Measured | None = None

    @property
    def score(self) -> float | None:
        """0 to 100; None unless complete."""
        return self.partial if self.complete else None

    @property
    def partial(self) -> float | None:
        """0 to 100 over the parts with scores; None without any."""
        return None if not len(self.values) or np.isnan(self.values[0]) else float(self.values[0])

    @property
    def estimate(self) -> Estimate:
        """`partial` with its 95 % bootstrap interval, if every part of it has draws."""
        if self.partial is None or not self.drawn or len(self.values) < 2:
            return Estimate(self.partial, None, None, self.n)
        return Estimate(self.partial, *interval(self.values[1:]), self.n)

    @property
    def gaps(self) -> list[str]:
        """The highest nodes without any score, each with the reason."""
        if self.complete:
            return []
        if not self.share:
            reasons = {node.reason for node in self.walk() if node.layer == "method"}
            return [f"{self.label}: {reasons.pop() if len(reasons) == 1 else 'no score'}"]
        return [gap for child in self.children if child.weight for gap in child.gaps]  # weight 0: the gate, outside the total

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class ModelResult:
    """A model's total. `root` is the weighted mean of the capabilities (the gate has weight 0), as on the leaderboard."""

    model: str
    root: Node
    gate: Node | None
    threshold: float | None

    @property
    def passed(self) -> bool | None:
        """Whether the gate is passed; None without a gate or without its complete score."""
        if self.gate is None or self.threshold is None or self.gate.score is None:
            return None
        return self.gate.score >= self.threshold

    @property
    def gated(self) -> float | None:
        """The total of algorithm 5: 0 below the gate. None if the total or the gate's score is incomplete."""
        if self.gate is None or self.root.score is None:
            return self.root.score
        return None if self.passed is None else self.root.score if self.passed else 0.0

    @property
    def reasons(self) -> list[str]:
        """Why there is no total of algorithm 5: the highest nodes without any score."""
        gate = self.gate.gaps if self.gate else []
        return [] if self.gated is not None else [*gate, *self.root.gaps]

    @property
    def undefined(self) -> list[str]:
        """Methods that were left out because they are undefined on this model's answers."""
        datasets = [node for node in self.root.walk() if node.layer == "dataset"]
        return [f"{node.label}, {m.label}" for node in datasets for m in node.children if m.measured and not m.weight]


def aggregate(
    benchmark: Benchmark, scores: ModelScores, missing: Missing = "null", weights: WeightFactors | None = None
) -> ModelResult:
    """Aggregate one model's scores (algorithm 1). `weights` varies the weights of nodes; see `weight_factors`. Raises
    `UserError` for a node that is given as a whole and also has scores below it."""
    benchmark = benchmark.runnable if missing == "left_out" else benchmark
    root = _Aggregation(benchmark, scores, missing, weights or {}).total()
    gate = benchmark.gate
    gate_node = next((node for node in root.children if gate and node.path == gate.capability), None)
    return ModelResult(scores.model, root, gate_node, gate.threshold if gate else None)


def weighted_mean(values: Sequence[Floats], weights: Sequence[Floats | float]) -> Floats:
    """Algorithm 3: Σ weight × score ÷ Σ weight, draw by draw; empty for no values (the algorithm: 0)."""
    if not values:
        return NOTHING
    products = sum((value * weight for value, weight in zip(values, weights, strict=True)), np.zeros(1))
    return np.asarray(products / sum(weights, np.zeros(1)), dtype=np.float64)


@dataclass(frozen=True)
class _Aggregation:
    benchmark: Benchmark
    scores: ModelScores
    missing: Missing
    factors: WeightFactors

    def total(self) -> Node:
        gate = self.benchmark.gate.capability if self.benchmark.gate else None
        parts = []
        for key, part in self.benchmark.capabilities.items():
            below = [(self.sub_capability(f"{key}/{name}", sub), sub.weight) for name, sub in part.sub_capabilities.items()]
            parts.append((self.joined("capability", key, part.label, below), part.weight or 0.0))
        root = self.joined("total", "", self.benchmark.title, [part for part in parts if part[0].path != gate])
        children = {node.path: node for node in root.children}
        return replace(root, children=tuple(children.get(node.path, node) for node, _ in parts))

    def sub_capability(self, path: str, part: SubCapability) -> Node:
        """Algorithm 4. The score uses the weights of the levels with scores, the share those of all levels."""
        levels: dict[str, list[tuple[Node, float]]] = {}
        for name, task in part.tasks.items():
            levels.setdefault(task.level, []).append((self.task(f"{path}/{task.level}/{name}", task), task.weight))
        nodes = {
            level: self.joined("level", f"{path}/{level}", f"{part.label}, {level}", levels[level])
            for level in self.benchmark.levels
            if level in levels
        }
        full = self.benchmark.weights_of_levels(frozenset(nodes))
        scored = self.benchmark.weights_of_levels(frozenset(level for level, node in nodes.items() if len(node.values)))
        weights = {nodes[level].path: weight for level, weight in scored.items()}
        return self.joined("sub_capability", path, part.label, [(node, full[level]) for level, node in nodes.items()], weights)

    def task(self, path: str, part: BenchmarkTask) -> Node:
        below = [(self.dataset(f"{path}/{name}", name), weight) for name, weight in part.datasets.items()]
        return self.joined("task", path, part.label, below)

    def dataset(self, path: str, name: str) -> Node:
        dataset = self.benchmark.datasets[name]
        below = []
        for method in dataset.methods:
            label, place = self.benchmark.metrics[method.metric].label, f"{path}/{method.metric}"
            measured = self.scores.measured.get((name, method.metric))
            if measured is None:
                cause = method.unavailable or (dataset.run and dataset.run.reason)
                node = Node("method", place, label, 0, reason=f"no score: {cause}" if cause else "no score")
            elif np.isnan(measured.values[0]):
                node = Node("method", place, label, 0, reason="undefined on these items", measured=measured)
            else:
                node = Node("method", place, label, 0, measured.values, 1, True, measured.n, measured.drawn, measured=measured)
            below.append((node, method.weight))
        if self.missing == "left_out" and any(len(node.values) for node, _ in below):
            below = [(node, 0.0 if node.measured and not len(node.values) else weight) for node, weight in below]
        node = self.joined("dataset", path, dataset.label, below)
        if self.missing == "zero" and not len(node.values):
            node = replace(node, values=np.zeros(1), drawn=True)  # 0 in every draw
        return replace(node, n=max(child.n for child in node.children) if node.children else 0)  # methods share items: no sum

    def joined(
        self, layer: Layer, path: str, label: str, parts: Sequence[tuple[Node, float]], weights: Mapping[str, float] = {}
    ) -> Node:
        """A node over parts with their weights. `weights`: path → weight among the parts with a score, if these are not in
        proportion to the weights of all parts (levels)."""
        total = sum(weight for _, weight in parts)
        children = tuple(replace(node, weight=weight / total) for node, weight in parts)
        whole = self.scores.wholes.get(path) if path else None
        if whole is not None:
            if any(len(node.values) and node.share for node in children):
                raise UserError(f"{self.scores.model}: {path} is given as a whole, and there are scores below it: drop either")
            return Node(layer, path, label, 0, np.array([whole]), 1, True)
        scored = [node for node in children if len(node.values)]
        factors = [weights.get(node.path, node.weight) * self.factors.get(node.path, 1.0) for node in scored]
        return Node(
            layer=layer,
            path=path,
            label=label,
            weight=0,
            values=weighted_mean([node.values for node in scored], factors),
            share=sum(node.weight * node.share for node in children),
            complete=all(node.complete for node in children if node.weight),
            n=sum(node.n for node in children),
            drawn=bool(scored) and all(node.drawn for node in scored),
            children=children,
        )


# --- uncertainty of ranks: under resampled items, and under other weights ---------------------------------------------------

SPREAD = 0.25  # how far weights are varied


class RankRange(NamedTuple):
    """A model's rank (1 is best), its range in 95 % of the draws, and the share of draws with the same rank (`kept`)."""

    rank: int
    low: int
    high: int
    kept: float

    @property
    def text(self) -> str:
        """The table cell: the range, and the share of draws with the model's own rank."""
        span = f"{self.low}" if self.low == self.high else f"{self.low}–{self.high}"
        return f"{span} ({self.kept:.0%})"


def comparable(results: Sequence[ModelResult]) -> list[ModelResult]:
    """The results that can be ranked together: complete ones that pass the gate, as on the leaderboard; or, if no total is
    complete and all models have scores of the same parts, all that are not below the gate."""
    complete = [result for result in results if result.gated is not None]
    if complete:
        return [result for result in complete if result.passed is not False]
    given = [{node.path for node in result.root.walk() if not node.children and len(node.values)} for result in results]
    if any(paths != given[0] for paths in given):
        return []
    return [result for result in results if result.root.partial is not None and result.passed is not False]


def ranges(draws: Sequence[Floats]) -> list[RankRange] | None:
    """Ranks by each model's first figure, and their ranges over the draws after it; None if a model has no draws. Equal totals
    share the better rank."""
    if not draws or any(len(totals) < 2 for totals in draws):
        return None
    table = np.stack(draws)
    table = table[:, ~np.isnan(table).any(axis=0)]
    if table.shape[1] < 2:
        return None
    rounded = np.round(table, 9)  # the order of summation changes the last bits
    ranks = 1 + (rounded[None] > rounded[:, None]).sum(axis=1)
    rank_ranges = []
    for drawn in ranks:
        low, high = np.percentile(drawn[1:], [2.5, 97.5], method="closest_observation")
        rank_ranges.append(RankRange(int(drawn[0]), int(low), int(high), float((drawn[1:] == drawn[0]).mean())))
    return rank_ranges


def weight_factors(benchmark: Benchmark) -> dict[str, WeightFactors]:
    """What is varied → factors of nodes' weights, [1 + draws], the first 1: uniform from 1 − `SPREAD` to 1 + `SPREAD` for
    capabilities, and for every node; and such that the capabilities' shares are uniform among those with sum 1."""
    weights = {key: part.weight for key, part in benchmark.capabilities.items() if part.weight is not None}
    paths = list(node_paths(benchmark))
    for path, _, task in benchmark.tasks():
        for name in task.datasets:
            paths += [f"{path}/{name}", *(f"{path}/{name}/{m.metric}" for m in benchmark.datasets[name].methods)]

    def uniform(names: Iterable[str]) -> dict[str, Floats]:
        rng = np.random.default_rng(SEED)
        return {name: rng.uniform(1 - SPREAD, 1 + SPREAD, RESAMPLES) for name in names}

    shares = np.random.default_rng(SEED).dirichlet(np.ones(len(weights)), RESAMPLES).T
    drawn = {
        f"capability weights ± {SPREAD:.0%}": uniform(weights),
        f"all weights ± {SPREAD:.0%}": uniform(paths),
        "any capability weights": {key: share / weight for (key, weight), share in zip(weights.items(), shares, strict=True)},
    }
    return {
        scope: {path: np.concatenate([[1.0], factors]) for path, factors in by_path.items()} for scope, by_path in drawn.items()
    }


def under_weights(benchmark: Benchmark, scores: Sequence[ModelScores]) -> dict[str, list[RankRange] | None]:
    """The ranks of models under other weights, with the same draws for all models; items are not resampled."""
    fixed = [replace(s, measured={key: replace(m, values=m.values[:1]) for key, m in s.measured.items()}) for s in scores]
    by_scope: dict[str, list[RankRange] | None] = {}
    for scope, factors in weight_factors(benchmark).items():
        totals = [aggregate(benchmark, model_scores, "null", factors).root.values for model_scores in fixed]
        by_scope[scope] = ranges([np.broadcast_to(total, (1 + RESAMPLES,)) for total in totals])
    return by_scope
