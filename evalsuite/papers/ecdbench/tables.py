"""What the harness prints and writes of a benchmark: the leaderboard, a model's scores place by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.statistics.bootstrap import RESAMPLES
from core.tables import Cell, Table
from evalsuite.papers.ecdbench.aggregate import SCOPES, Missing, ModelResult, Node, comparable, ranges, under_weights
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores

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
    rows: list[dict[str, Cell]] = []
    for result in sorted(results, key=lambda one: (one not in ranked, -(one.root.partial or 0) if one in ranked else 0)):
        total = _rounded(result)
        rank = 1 + sum(_rounded(other) > total for other in ranked) if result in ranked else None
        row: dict[str, Cell] = {"model": result.model, "rank": rank}
        row |= {LISTED: cell_of(result.root) if result.root.complete else None, GATED: result.gated}
        if not whole:
            row |= {partial: cell_of(result.root), SHARE: 100 * result.root.share}
        if benchmark.gate:
            row["gate"] = gate_of(result)
        rows.append(row | {node.label: cell_of(node) for node in result.root.children})
    title = f"{benchmark.title}: leaderboard, 0 to 100" + ("" if complete or not ranked else " (partial scores only)")
    notes = _board_notes(benchmark, results, ranked, complete, whole or missing == "zero")
    return Table.of("leaderboard", title, rows, notes, "Leaderboard")


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
    heads = ("items", *(name.format(spread=spread) for name in SCOPES.values()))
    return Table.of(
        "ranks",
        "How far ranks depend on items and weights",
        [
            {"model": result.model, "rank": first[place].rank}
            | {head: column[place].text if column else None for head, column in zip(heads, columns, strict=True)}
            for place, result in enumerate(ranked)
        ],
        (
            "Ranges cover 95 % of the draws; in brackets the share of draws with the model's own rank. items: the items are "
            "resampled, the same for all models that have the same; a dash: they are not known. any capability weights: "
            "uniform over all that sum to 1. Where a part was given as a whole, weights below it change nothing.",
        ),
        "Leaderboard",
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
        why = "no model has a total, or a partial one, and is not below the gate"
        if any(result.gated is not None for result in results):
            why = "every complete total is that of a model below the gate"
        elif len({result.covered for result in results}) > 1:
            why = "no total is complete and the models' scores rest on different parts"
        notes.append(f"No ranks: {why}.")
    notes += filter(None, [undefined_note(results)])
    notes += [f"{result.model} has no total: {_reasons(result, '; and')}." for result in results if result.reasons]
    return notes


def _reasons(result: ModelResult, before_more: str) -> str:
    """The first reasons why there is no total, and how many more there are."""
    more = len(result.reasons) - GAPS
    return "; ".join(result.reasons[:GAPS]) + (f"{before_more} {more} more" if more > 0 else "")


def _rounded(result: ModelResult) -> float:
    """A total to compare: sums in another order differ in the last bits."""
    return round(result.root.partial or 0, 9)


def cell_of(node: Node) -> Cell:
    """A place's partial score with interval and n; a score that was given as a whole has neither."""
    return node.estimate if node.n else node.partial


def gate_of(result: ModelResult) -> str | None:
    """Whether a model passes the gate, in a word."""
    return None if result.gate is None else {True: "passed", False: "below", None: "unknown"}[result.passed]


def places(result: ModelResult, missing: Missing = "null", root: Node | None = None) -> Table:
    """A model's scores place by place, from the total to single methods: what `table --node` prints."""
    gate = result.gate.path if result.gate else None
    root = root or result.root
    zero = "Datasets without any score count as 0 (algorithms 3 and 4 as printed)." if missing == "zero" else ""
    chance = "raw, chance: on the metric's own scale; the scores are not corrected for chance."
    return Table.of(
        "places",
        f"{result.model}: from the total to single methods, 0 to 100",
        [
            {
                "place": "  " * (node.depth - root.depth) + node.label,
                "layer": node.layer.replace("_", "-"),
                "weight": None if node.layer == "total" else "gate" if node.path == gate else f"{node.weight:.3g}",
                "score": node.score,
                PARTIAL: cell_of(node),
                SHARE: 100 * node.share,
                "raw": measured.raw if (measured := node.measured) else None,
                "chance": measured.chance if measured else None,
                "unread": measured.unread if measured and measured.items else None,
                "missing": node.reason or None,
            }
            for node in root.walk()
        ],
        filter(None, (f"score: only where nothing below is missing. {INTERVALS}", chance, zero)),
        "Scores",
    )


def datasets_table(results: Sequence[ModelResult]) -> Table:
    """Every method's raw score beside chance, one column per model: what the figures on the page rest on."""
    nodes_of: dict[str, dict[str, Node]] = {}  # path of a method → model → its node
    for result in results:
        for node in result.root.walk():
            if node.measured is not None:
                nodes_of.setdefault(node.path, {})[result.model] = node
    rows: list[dict[str, Cell]] = []
    for path, nodes in nodes_of.items():
        measured = {model: node.measured for model, node in nodes.items() if node.measured}
        chance = next((one.chance for one in measured.values() if one.chance is not None), None)
        label, size = next(iter(nodes.values())).label, max(node.n for node in nodes.values())
        row: dict[str, Cell] = {"dataset": path.split("/")[-2], "metric": label, "n": size, "chance": chance}
        rows.append(row | {model: one.raw for model, one in measured.items()})
    heads = ("dataset", "metric", "n", "chance", *(result.model for result in results))
    note = "On each metric's own scale. A dash as chance: guessing has no fixed share there, or it is not known."
    return Table.of("methods", "Raw scores beside chance", rows, [note], "Scores", heads=heads)


def parts_table(benchmark: Benchmark, result: ModelResult, key: str = "capabilities") -> Table:
    """One model's total, and every capability as far as there is something to add up: what `run` prints."""
    rows = [(node.label, node.score, cell_of(node), 100 * node.share, node.n) for node in (result.root, *result.root.children)]
    why = f"No total: {_reasons(result, ' and')}." if result.reasons else ""
    gated = "unknown" if result.gated is None else f"{result.gated:.2f}"
    gate = f"By algorithm 5 the total is {gated} (gate: {gate_of(result)})." if result.gate else ""
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
