"""What the harness prints and writes of a benchmark: the leaderboard, a model's scores place by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.statistics.bootstrap import RESAMPLES
from core.tables import Cell, Table
from evalsuite.papers.ecdbench.aggregate import Missing, ModelResult, Node
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores
from evalsuite.papers.ecdbench.uncertainty import SCOPES, RankRange, Separation, comparable, ranges, under_weights

LISTED = "total as listed"
GATED = "total by algorithm 5"
PARTIAL = "partial"
SHARE = "share %"
INTERVALS = (
    f"[95 % bootstrap percentile interval over items, {RESAMPLES:,} resamples], n = items. There is no interval where some "
    "part was given as a whole without its items (shares of right answers excepted)."
)
GAPS = 6  # reasons that a note names
LEFT_OUT = "not_run"
PARTIAL_NOTE = "partial: over what was run; a score needs all of its datasets."


def leaderboard(benchmark: Benchmark, results: Sequence[ModelResult], missing: Missing = "null") -> Table:
    """Models by their totals, as the paper lists them and by algorithm 5, with every capability."""
    ranked = comparable(results)
    complete = any(result.gated is not None for result in ranked)
    whole = all(result.root.complete for result in results)
    partial = "total, missing as 0" if missing == "zero" else PARTIAL
    rows: list[tuple[Cell, ...]] = []
    for result in sorted(results, key=lambda one: (one not in ranked, -(one.root.partial or 0) if one in ranked else 0)):
        total = _rounded(result)
        rank = 1 + sum(_rounded(other) > total for other in ranked) if result in ranked else None
        rows.append(
            (
                result.model,
                rank,
                cell_of(result.root) if result.root.complete else None,
                result.gated,
                *([] if whole else [cell_of(result.root), 100 * result.root.share]),
                *([] if benchmark.gate is None else [gate_of(result)]),
                *(cell_of(node) for node in result.root.children),
            )
        )
    return Table(
        key="leaderboard",
        title=f"{benchmark.title}: leaderboard, 0 to 100" + ("" if complete or not ranked else " (partial scores only)"),
        columns=(
            "model",
            "rank",
            LISTED,
            GATED,
            *([] if whole else [partial, SHARE]),
            *([] if benchmark.gate is None else ["gate"]),
            *(part.label for part in benchmark.capabilities.values()),
        ),
        rows=tuple(rows),
        notes=tuple(_board_notes(benchmark, results, ranked, complete, whole or missing == "zero")),
        section="Leaderboard",
    )


def ranks_table(
    benchmark: Benchmark, results: Sequence[ModelResult], scores: Sequence[ModelScores], spread: float = 0.25
) -> Table:
    """How far ranks depend on the items and on the weights; `scores` are those that `results` were added up from."""
    ranked = sorted(comparable(results), key=lambda result: -(result.root.partial or 0))
    scores_of = {one.model: one for one in scores}
    by_items = ranges([result.root.values for result in ranked]) if all(result.root.drawn for result in ranked) else None
    by_weights = under_weights(benchmark, [scores_of[result.model] for result in ranked], spread)
    columns = [by_items, *by_weights.values()]
    first = next((column for column in by_weights.values() if column), [])
    rows = [
        (result.model, first[place].rank, *(None if column is None else _range(column[place]) for column in columns))
        for place, result in enumerate(ranked)
    ]
    return Table(
        key="ranks",
        title="How far ranks depend on items and weights",
        columns=("model", "rank", "items", *(name.format(spread=spread) for name in SCOPES.values())),
        rows=tuple(rows),
        notes=(
            "Ranges hold 95 % of the draws; in brackets the share of draws with the model's own rank. items: the items are "
            "resampled, the same for all models that have the same; a dash: they are not known. any capability weights: "
            "uniform over all that sum to 1. Where a part was given as a whole, weights below it change nothing.",
        ),
        section="Leaderboard",
    )


def _board_notes(
    benchmark: Benchmark, results: Sequence[ModelResult], ranked: Sequence[ModelResult], complete: bool, whole: bool
) -> list[str]:
    notes = [] if whole else [f"{PARTIAL}: over what there is, {SHARE} of the total's weights."]
    notes += [INTERVALS] if any(result.root.n for result in results) else []
    if benchmark.gate:
        gate = benchmark.capabilities[benchmark.gate.capability].label
        notes.append(
            f"{LISTED}: the weighted mean of the capabilities without {gate}, whatever its score. {GATED}: 0 where {gate} is "
            f"below {benchmark.gate.threshold:g}. Models below it are not ranked. Unknown gate: no complete score of {gate}."
        )
    if not complete and ranked:
        notes.append("No total is complete: ranks are by partial scores, which rest on the same parts for every model.")
    if not ranked and results:
        notes.append(f"No ranks: {_unranked(results)}.")
    notes += filter(None, [undefined_note(results)])
    for result in results:
        if result.reasons:
            more = len(result.reasons) - GAPS
            tail = f"; and {more} more" if more > 0 else ""
            notes.append(f"{result.model} has no total: {'; '.join(result.reasons[:GAPS])}{tail}.")
    return notes


def _unranked(results: Sequence[ModelResult]) -> str:
    if any(result.gated is not None for result in results):
        return "every complete total is that of a model below the gate"
    if len({result.covered for result in results}) > 1:
        return "no total is complete and the models' scores rest on different parts"
    return "no model has a total, or a partial one, and is not below the gate"


def _rounded(result: ModelResult) -> float:
    """A total to compare: sums in another order differ in the last bits."""
    return round(result.root.partial or 0, 9)


def cell_of(node: Node) -> Cell:
    """A place's partial score with interval and n; a score that was given as a whole has neither."""
    return node.estimate if node.n else node.partial


def gate_of(result: ModelResult) -> str | None:
    """Whether a model passes the gate, in a word."""
    return None if result.gate is None else {True: "passed", False: "below", None: "unknown"}[result.passed]


def _range(ranks: RankRange) -> str:
    span = f"{ranks.low}" if ranks.low == ranks.high else f"{ranks.low}–{ranks.high}"
    return f"{span} ({ranks.kept:.0%})"


def places(result: ModelResult, missing: Missing = "null", root: Node | None = None) -> Table:
    """A model's scores place by place, from the total to single methods: what `table --node` prints."""
    gate = result.gate.path if result.gate else None
    root = root or result.root
    rows = [
        (
            "  " * (node.depth - root.depth) + node.label,
            node.layer.replace("_", "-"),
            None if node.layer == "total" else "gate" if node.path == gate else f"{node.weight:.3g}",
            node.score,
            cell_of(node),
            100 * node.share,
            measured.raw if (measured := node.measured) else None,
            measured.chance if measured else None,
            measured.unread if measured and measured.items else None,
            node.reason or None,
        )
        for node in root.walk()
    ]
    zero = "Datasets without any score count as 0 (algorithms 3 and 4 as printed)." if missing == "zero" else ""
    chance = "raw, chance: on the metric's own scale; the scores are not corrected for chance."
    return Table(
        key="places",
        title=f"{result.model}: from the total to single methods, 0 to 100",
        columns=("place", "layer", "weight", "score", PARTIAL, SHARE, "raw", "chance", "unread", "missing"),
        rows=tuple(rows),
        notes=tuple(note for note in (f"score: only where nothing below is missing. {INTERVALS}", chance, zero) if note),
        section="Scores",
    )


def datasets_table(results: Sequence[ModelResult]) -> Table:
    """Every method's raw score beside chance, one column a model: what the figures on the page rest on."""
    nodes_of: dict[str, dict[str, Node]] = {}  # path of a method → model → its node
    for result in results:
        for node in result.root.walk():
            if node.measured is not None:
                nodes_of.setdefault(node.path, {})[result.model] = node
    rows: list[tuple[Cell, ...]] = []
    for path, nodes in nodes_of.items():
        measured = {model: node.measured for model, node in nodes.items() if node.measured}
        chance = next((one.chance for one in measured.values() if one.chance is not None), None)
        raws = (measured[result.model].raw if result.model in measured else None for result in results)
        label, size = next(iter(nodes.values())).label, max(node.n for node in nodes.values())
        rows.append((path.split("/")[-2], label, size, chance, *raws))
    return Table(
        key="methods",
        title="Raw scores beside chance",
        columns=("dataset", "metric", "n", "chance", *(result.model for result in results)),
        rows=tuple(rows),
        notes=("On each metric's own scale. A dash as chance: guessing has no fixed share there, or it is not known.",),
        section="Scores",
    )


def separation_table(separations: Sequence[Separation]) -> Table:
    """Which places of the benchmark tell models apart."""
    return Table(
        key="separation",
        title="Which parts tell models apart",
        columns=("place", "layer", "models", "mean", "SD", "lowest", "highest", "reliability", "pairs apart", "pairs"),
        rows=tuple(
            (
                one.node.path if one.node.layer != "capability" else one.node.label,
                one.node.layer.replace("_", "-"),
                one.models,
                one.mean,
                one.sd,
                one.lowest,
                one.highest,
                one.reliability,
                one.apart,
                one.pairs,
            )
            for one in separations
        ),
        notes=(
            "reliability: the part of the models' variance that is not due to the draw of items (0 to 1). pairs apart: z of "
            "the difference by its bootstrap standard error, p at most 0.05 after Holm's correction over the pairs of a place. "
            "A dash: items are not known.",
        ),
        section="Discrimination",
    )


def parts_table(benchmark: Benchmark, result: ModelResult, key: str = "capabilities") -> Table:
    """One model's total, and every capability as far as there is something to add up: what `run` prints."""
    rows = [(node.label, node.score, cell_of(node), 100 * node.share, node.n) for node in (result.root, *result.root.children)]
    tail = f" and {len(result.reasons) - GAPS} more" if len(result.reasons) > GAPS else ""
    why = f"No total: {'; '.join(result.reasons[:GAPS])}{tail}." if result.reasons else ""
    gate = f"By algorithm 5 the total is {_shown(result.gated)} (gate: {gate_of(result)})." if result.gate else ""
    return Table(
        key=key,
        title=f"{benchmark.title}: {result.model}, 0 to 100",
        columns=("part", "score", "partial [95 % interval]", "share of weights %", "items"),
        rows=tuple(rows),
        notes=tuple(filter(None, [why or gate, undefined_note([result]), PARTIAL_NOTE])),
    )


def undefined_note(results: Sequence[ModelResult]) -> str:
    """What was left out since it is not defined on a model's answers; "" for nothing."""
    lines = [f"{one.model}: {'; '.join(one.undefined)}" for one in results if one.undefined]
    return f"Left out, since it is not defined on the model's answers: {'. '.join(lines)}." if lines else ""


def _shown(score: float | None) -> str:
    return "unknown" if score is None else f"{score:.2f}"


def left_out_table(benchmark: Benchmark, missing: Mapping[str, str]) -> Table:
    """What was not run, and why."""
    rows = tuple((key, benchmark.datasets[key].label, why) for key, why in missing.items())
    return Table(LEFT_OUT, "Datasets that were not run", ("dataset", "name", "why"), rows)


def items_table(root: Node, count: int) -> Table:
    """So many single items of every method, lowest first."""
    rows = [
        (node.path.split("/")[-2], node.label, item, value if value is None or isinstance(value, int | float) else str(value))
        for node in root.walk()
        if node.measured is not None
        for item, value in lowest_items(node.measured.items, count)
    ]
    return Table("items", "Single items, lowest first", ("dataset", "metric", "item", "value or outcome"), tuple(rows))


def lowest_items(items: Mapping[str, Any], count: int) -> list[tuple[str, Any]]:
    """Unread answers first, then the lowest values, then what has no order."""

    def rank(name: str) -> tuple[int, float, str]:
        value = items[name]
        return (
            (0, 0.0, name) if value is None else (1, float(value), name) if isinstance(value, int | float) else (2, 0.0, name)
        )

    return [(name, items[name]) for name in sorted(items, key=rank)[:count]]


# --- the same as plain data, for JSON ---------------------------------------------------------------------------------------
# Scores are 0 to 100, shares 0 to 1, undefined figures null.


def model_figures(result: ModelResult) -> dict[str, Any]:
    """A model's total, gate and capabilities."""
    root, gate = result.root, result.gate
    return {
        "model": result.model,
        "total": {
            "listed": root.score,
            "algorithm_5": result.gated,
            "reasons": result.reasons,
            "partial": {"listed": root.partial, "algorithm_5": result.gated_partial, "share": root.share, "n": root.n},
            "interval": _interval(root),
        },
        "gate": None
        if gate is None
        else {
            "capability": gate.path,
            "threshold": result.threshold,
            "score": gate.score,
            "partial": gate.partial,
            "share": gate.share,
            "passed": result.passed,
            "passing_draws": result.passing,
        },
        "capabilities": {node.path: _node_figures(node) for node in root.children},
    }


def tree_figures(node: Node, items: int) -> dict[str, Any]:
    """A part of the benchmark with all below it, and so many single items of every method, lowest first."""
    figures = {"path": node.path, "layer": node.layer} | _node_figures(node)
    if (measured := node.measured) is not None:
        figures |= {
            "raw": measured.raw,
            "chance": measured.chance,
            "unread": measured.unread,
            "reasons": [node.reason] if node.reason else [],
        }
        figures |= {"items": dict(lowest_items(measured.items, items))} if items else {}
    return figures | {"children": [tree_figures(child, items) for child in node.children]} if node.children else figures


def _node_figures(node: Node) -> dict[str, Any]:
    return {
        "label": node.label,
        "weight": node.weight,
        "score": node.score,
        "partial": node.partial,
        "share": node.share,
        "interval": _interval(node),
        "n": node.n,
        "reasons": node.gaps,
    }


def _interval(node: Node) -> list[float] | None:
    estimate = node.estimate
    return None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
