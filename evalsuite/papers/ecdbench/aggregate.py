"""Algorithms 1 and 3 to 5 of ECDBench: from methods to datasets, tasks, levels, sub-capabilities, capabilities and the total.

Every figure is an array: the figure itself first, then one for every bootstrap draw of the items or every draw of the weights,
so that intervals and rankings come out of the same sums. A score is complete when all below it is there. Where something is
missing the score is None with the reason, beside a partial score over what there is and the share of the weights that this
is. With `missing="zero"` a dataset without any result counts as 0, which is what algorithms 3 and 4 say. With
`missing="left_out"` what the registry calls not runnable is left out of all weights, whether it has a score or not, and so is a
method that is not defined on a model's answers, where its dataset has another. Anything else that is missing still leaves no
total.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from core.errors import UserError
from core.statistics.bootstrap import RESAMPLES, SEED, Floats, interval
from core.tables import Estimate
from evalsuite.papers.ecdbench.registry import Benchmark, BenchmarkTask, Capability, SubCapability
from evalsuite.papers.ecdbench.scores import Measured, ModelScores, node_paths

Layer = Literal["total", "capability", "sub_capability", "level", "task", "dataset", "method"]
Missing = Literal["null", "zero", "left_out"]
WeightFactors = Mapping[str, Floats]  # path → factors of that node's weight, one a draw
NOTHING = np.zeros(0)


@dataclass(frozen=True)
class Node:
    """One place of the benchmark with its score. `path` joins the ids from the capability down, `""` is the total.

    `weight` is its share of its parent, `values` [1 + draws] the score over what there is (empty when there is nothing),
    `share` how much of its own weight that is (0 to 1), `n` the items below it, `drawn` whether draws follow all of its
    items. `reason` (why there is no score) and `measured` are a method's.
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
        """0 to 100, None unless everything below is there."""
        return self.partial if self.complete else None

    @property
    def partial(self) -> float | None:
        """0 to 100 over what there is, None when there is nothing."""
        return None if not len(self.values) or np.isnan(self.values[0]) else float(self.values[0])

    @property
    def estimate(self) -> Estimate:
        """`partial` with its 95 % bootstrap interval, where every part of it has draws."""
        if self.partial is None or not self.drawn or len(self.values) < 2:
            return Estimate(self.partial, None, None, self.n)
        return Estimate(self.partial, *interval(self.values[1:]), self.n)

    @property
    def gaps(self) -> list[str]:
        """The highest places below that have nothing, each with the reason."""
        if self.complete:
            return []
        if not self.share:
            why = {node.reason for node in self.walk() if node.layer == "method"}
            return [f"{self.label}: {why.pop() if len(why) == 1 else 'no score'}"]
        return [gap for child in self.children if child.weight for gap in child.gaps]  # the gate's is 0: no part of the total

    @property
    def depth(self) -> int:
        """How many places lie above it."""
        return len(self.path.split("/")) if self.path else 0

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class ModelResult:
    """A model's total. `root` is the weighted mean of the capabilities (the gate's weighs 0), as the leaderboard lists it."""

    model: str
    root: Node
    gate: Node | None
    threshold: float | None

    @property
    def passed(self) -> bool | None:
        """Whether the gate is passed; None when there is no gate, or its score is not complete."""
        if self.gate is None or self.threshold is None or self.gate.score is None:
            return None
        return self.gate.score >= self.threshold

    @property
    def passing(self) -> float | None:
        """The share of bootstrap draws that pass the gate; None where its score is not complete or has no draws."""
        if self.gate is None or self.threshold is None or not (self.gate.complete and self.gate.drawn):
            return None
        draws = self.gate.values[1:]
        draws = draws[~np.isnan(draws)]
        return float((draws >= self.threshold).mean()) if len(draws) else None

    @property
    def gated(self) -> float | None:
        """The total of algorithm 5: 0 below the gate. None when the total or the gate's score is not complete."""
        if self.gate is None:
            return self.root.score
        if self.passed is None or self.root.score is None:
            return None
        return self.root.score if self.passed else 0.0

    @property
    def gated_partial(self) -> float | None:
        """Algorithm 5 over what there is, of capabilities and gate alike; None where either has nothing."""
        if self.gate is None or self.threshold is None:
            return self.root.partial
        if self.gate.partial is None or self.root.partial is None:
            return None
        return self.root.partial if self.gate.partial >= self.threshold else 0.0

    @property
    def reasons(self) -> list[str]:
        """Why there is no total of algorithm 5: the highest places that have nothing."""
        gate = self.gate.gaps if self.gate else []
        return [] if self.gated is not None else [*gate, *self.root.gaps]

    @property
    def undefined(self) -> list[str]:
        """Methods that were left out since they are not defined on this model's answers."""
        datasets = [node for node in self.root.walk() if node.layer == "dataset"]
        return [f"{one.label}, {m.label}" for one in datasets for m in one.children if m.measured and not m.weight]

    @property
    def covered(self) -> frozenset[str]:
        """The paths of all that the scores rest on: methods, and nodes that were given as such."""
        return frozenset(node.path for node in self.root.walk() if not node.children and len(node.values))


def aggregate(
    benchmark: Benchmark, scores: ModelScores, missing: Missing = "null", weights: WeightFactors | None = None
) -> ModelResult:
    """Add up one model's scores (algorithm 1). `weights` varies the weights of nodes; see `uncertainty`.

    Raises `UserError` for a node that is given and measured as well.
    """
    benchmark = benchmark.runnable if missing == "left_out" else benchmark
    adder = _Adder(benchmark, scores, missing, weights or {})
    root = adder.total()
    gate = benchmark.gate
    gate_node = next((node for node in root.children if gate and node.path == gate.capability), None)
    return ModelResult(scores.model, root, gate_node, gate.threshold if gate else None)


def weighted_mean(values: Sequence[Floats], weights: Sequence[Floats | float]) -> Floats:
    """Algorithm 3: Σ weight × score ÷ Σ weight, draw by draw; empty for nothing (where the algorithm says 0)."""
    if not values:
        return NOTHING
    above = sum((value * weight for value, weight in zip(values, weights, strict=True)), np.zeros(1))
    return np.asarray(above / sum(weights, np.zeros(1)), dtype=np.float64)


class _Adder:
    def __init__(self, benchmark: Benchmark, scores: ModelScores, missing: Missing, weights: WeightFactors) -> None:
        self.benchmark, self.scores, self.missing, self.factors = benchmark, scores, missing, weights

    def total(self) -> Node:
        gate = self.benchmark.gate.capability if self.benchmark.gate else None
        parts = [(self.capability(key, part), part.weight or 0.0) for key, part in self.benchmark.capabilities.items()]
        counted = self.joined("total", "", self.benchmark.title, [part for part in parts if part[0].path != gate])
        children = {node.path: node for node in counted.children}
        return replace(counted, children=tuple(children.get(node.path, node) for node, _ in parts))

    def capability(self, key: str, part: Capability) -> Node:
        below = [(self.sub_capability(f"{key}/{name}", sub), sub.weight) for name, sub in part.sub_capabilities.items()]
        return self.joined("capability", key, part.label, below)

    def sub_capability(self, path: str, part: SubCapability) -> Node:
        """Algorithm 4. Scores have the weights of the levels that have one, shares those of all that the benchmark has."""
        levels: dict[str, list[tuple[Node, float]]] = {}
        for name, task in part.tasks.items():
            levels.setdefault(task.level, []).append((self.task(f"{path}/{task.level}/{name}", task), task.weight))
        nodes = {
            level: self.joined("level", f"{path}/{level}", f"{part.label}, {level}", levels[level])
            for level in self.benchmark.levels
            if level in levels
        }
        full = self.benchmark.weights_of_levels(frozenset(nodes))
        level_weights = self.benchmark.weights_of_levels(frozenset(level for level, node in nodes.items() if len(node.values)))
        there = {nodes[level].path: weight for level, weight in level_weights.items()}
        return self.joined("sub_capability", path, part.label, [(node, full[level]) for level, node in nodes.items()], there)

    def task(self, path: str, part: BenchmarkTask) -> Node:
        below = [(self.dataset(f"{path}/{name}", name), weight) for name, weight in part.datasets.items()]
        return self.joined("task", path, part.label, below)

    def dataset(self, path: str, name: str) -> Node:
        known = self.benchmark.datasets[name]
        below = []
        for method in known.methods:
            label, place = self.benchmark.metrics[method.metric].label, f"{path}/{method.metric}"
            measured = self.scores.measured.get((name, method.metric))
            if measured is None:
                reason = method.unavailable or (known.run and known.run.reason)
                why = f"no score: {reason}" if reason else "no score"
                node = Node("method", place, label, 0, reason=why)
            elif np.isnan(measured.values[0]):
                node = Node("method", place, label, 0, reason="not defined on these items", measured=measured)
            else:
                node = Node("method", place, label, 0, measured.values, 1, True, measured.n, measured.drawn, measured=measured)
            below.append((node, method.weight))
        if self.missing == "left_out" and any(len(node.values) for node, _ in below):
            below = [(node, 0.0 if node.measured and not len(node.values) else weight) for node, weight in below]
        node = self.joined("dataset", path, known.label, below)
        # Methods are scores of the same items.
        node = replace(node, n=max((child.n for child in node.children), default=0))
        if self.missing == "zero" and not len(node.values):
            node = replace(node, values=np.zeros(1), drawn=True)  # 0 whichever items are drawn
        return node

    def joined(
        self, layer: Layer, path: str, label: str, parts: Sequence[tuple[Node, float]], there: Mapping[str, float] | None = None
    ) -> Node:
        """A node of parts with their weights. `there` has the weights that count for the parts with a score, by their paths,
        where these are not in proportion to those of all parts (levels)."""
        total = sum(weight for _, weight in parts)
        children = tuple(replace(node, weight=weight / total) for node, weight in parts)
        whole = self.scores.wholes.get(path) if path else None
        if whole is not None:
            if any(len(node.values) and node.share for node in children):
                raise UserError(f"{self.scores.model}: {path} is given as a whole, and there are scores below it: drop either")
            return Node(layer, path, label, 0, np.array([whole]), 1, True)
        present = [node for node in children if len(node.values)]
        if there is None:
            there = {node.path: node.weight for node in present}
        factors = [there[node.path] * self.factors.get(node.path, 1.0) for node in present]
        return Node(
            layer=layer,
            path=path,
            label=label,
            weight=0,
            values=weighted_mean([node.values for node in present], factors),
            share=sum(node.weight * node.share for node in children),
            complete=all(node.complete for node in children if node.weight),
            n=sum(node.n for node in children),
            drawn=bool(present) and all(node.drawn for node in present),
            children=children,
        )


# --- how sure ranks are: under resampled items, and under other weights -----------------------------------------------------


Scope = Literal["capabilities", "all", "any"]
SCOPES: dict[Scope, str] = {
    "capabilities": "capability weights ± {spread:.0%}",
    "all": "all weights ± {spread:.0%}",
    "any": "any capability weights",
}


@dataclass(frozen=True)
class RankRange:
    """A model's rank (1 is best) and the range that holds 95 % of the draws; `kept` is the share of draws with its own rank."""

    rank: int
    low: int
    high: int
    kept: float

    @property
    def text(self) -> str:
        """As a cell: the range, and the share of draws with the model's own rank."""
        span = f"{self.low}" if self.low == self.high else f"{self.low}–{self.high}"
        return f"{span} ({self.kept:.0%})"


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
        paths = list(counted)
        if scope == "all":
            paths = list(node_paths(benchmark))
            for path, _, task in benchmark.tasks():
                for name in task.datasets:
                    paths += [f"{path}/{name}", *(f"{path}/{name}/{m.metric}" for m in benchmark.datasets[name].methods)]
        drawn = {path: rng.uniform(1 - spread, 1 + spread, RESAMPLES) for path in paths}
    return {path: np.concatenate([[1.0], factors]) for path, factors in drawn.items()}


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
