"""Tables of a benchmark's results: the leaderboard, and a model's scores from the total down to single methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.statistics.bootstrap import RESAMPLES
from core.tables import Cell, Table
from evalsuite.papers.ecdbench.aggregate import Missing, ModelResult, Node, RankRange, comparable, ranges, under_weights
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores

LISTED = "total as listed"
GATED = "total by algorithm 5"
PARTIAL = "partial"
SHARE = "share %"
INTERVALS = (
    f"[95 % bootstrap percentile interval over items, {RESAMPLES:,} resamples], n = items. There is no interval if a part was "
    "given as a whole without its items (except shares of right answers)."
)
GAPS = 6  # reasons that a note names
LEFT_OUT = "not_run"
PARTIAL_NOTE = "partial: over the datasets that were run; a score needs all of them."


def leaderboard(benchmark: Benchmark, results: Sequence[ModelResult], missing: Missing = "null") -> Table:
    """Models by their totals, as on the paper's leaderboard and by algorithm 5, with every capability."""
    ranked = comparable(results)
    complete = any(result.gated is not None for result in ranked)
    complete_parts = all(result.root.complete for result in results)
    partial = "total, missing as 0" if missing == "zero" else PARTIAL
    rows: list[dict[str, Cell]] = []
    for result in sorted(results, key=lambda r: (r not in ranked, -(r.root.partial or 0) if r in ranked else 0)):
        total = _rounded(result)
        rank = 1 + sum(_rounded(other) > total for other in ranked) if result in ranked else None
        row: dict[str, Cell] = {"model": result.model, "rank": rank}
        row |= {LISTED: cell_of(result.root) if result.root.complete else None, GATED: result.gated}
        row |= {} if complete_parts else {partial: cell_of(result.root), SHARE: 100 * result.root.share}
        if benchmark.gate:
            row["gate"] = gate_of(result)
        rows.append(row | {node.label: cell_of(node) for node in result.root.children})
    title = f"{benchmark.title}: leaderboard, 0 to 100" + ("" if complete or not ranked else " (partial scores only)")
    notes = _board_notes(benchmark, results, ranked, complete, complete_parts or missing == "zero")
    return Table.of("leaderboard", title, rows, notes, "Leaderboard")


def ranks_table(benchmark: Benchmark, results: Sequence[ModelResult], scores: Sequence[ModelScores]) -> Table:
    """How far ranks depend on the items and on the weights; `scores` are the input of `results`."""
    ranked = sorted(comparable(results), key=lambda result: -(result.root.partial or 0))
    by_model = {model_scores.model: model_scores for model_scores in scores}
    by_items = ranges([result.root.values for result in ranked]) if all(result.root.drawn for result in ranked) else None
    by_weights = under_weights(benchmark, [by_model[result.model] for result in ranked])
    columns: dict[str, list[RankRange] | None] = {"items": by_items, **by_weights}
    first = next((column for column in by_weights.values() if column), [])
    rows = [
        {"model": result.model, "rank": first[place].rank}
        | {head: column[place].text if column else None for head, column in columns.items()}
        for place, result in enumerate(ranked)
    ]
    note = (
        "Ranges cover 95 % of the draws; in brackets the share of draws with the model's own rank. items: items are resampled, "
        "identically for models with the same items; a dash: scores without items. any capability weights: uniform among "
        "weights with sum 1. If a part was given as a whole, weights below it change nothing."
    )
    return Table.of("ranks", "How far ranks depend on items and weights", rows, (note,), "Leaderboard")


def _board_notes(
    benchmark: Benchmark, results: Sequence[ModelResult], ranked: Sequence[ModelResult], complete: bool, whole: bool
) -> list[str]:
    notes = [] if whole else [f"{PARTIAL}: over the parts with scores, {SHARE} of the total's weights."]
    notes += [INTERVALS] if any(result.root.n for result in results) else []
    if benchmark.gate:
        gate = benchmark.capabilities[benchmark.gate.capability].label
        notes.append(
            f"{LISTED}: the weighted mean of the capabilities without {gate}, whatever its score. {GATED}: 0 if {gate} is "
            f"below {benchmark.gate.threshold:g}. Models below it are not ranked. Unknown gate: no complete score of {gate}."
        )
    if not complete and ranked:
        notes.append("No total is complete: ranks are by partial scores, which cover the same parts for every model.")
    if not ranked and results:
        reason = "no model that is not below the gate has a total or partial total"
        if any(result.gated is not None for result in results):
            reason = "all models with a complete total are below the gate"
        elif len({result.covered for result in results}) > 1:
            reason = "no total is complete and the models' scores cover different parts"
        notes.append(f"No ranks: {reason}.")
    notes += filter(None, [undefined_note(results)])
    notes += [f"{result.model} has no total: {_reasons(result, '; and')}." for result in results if result.reasons]
    return notes


def _reasons(result: ModelResult, before_more: str) -> str:
    """The first reasons why there is no total, and the number of others."""
    more = len(result.reasons) - GAPS
    return "; ".join(result.reasons[:GAPS]) + (f"{before_more} {more} more" if more > 0 else "")


def _rounded(result: ModelResult) -> float:
    """A total for comparison; the order of summation changes the last bits."""
    return round(result.root.partial or 0, 9)


def cell_of(node: Node) -> Cell:
    """A node's partial score with interval and n; a score given as a whole has neither."""
    return node.estimate if node.n else node.partial


def gate_of(result: ModelResult) -> str | None:
    """Whether a model passes the gate, as a word; None without a gate."""
    return None if result.gate is None else {True: "passed", False: "below", None: "unknown"}[result.passed]


def places(result: ModelResult, missing: Missing = "null", root: Node | None = None) -> Table:
    """A model's scores node by node, from the total to single methods, for `table --node`."""
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
        filter(None, (f"score: only if nothing below is missing. {INTERVALS}", chance, zero)),
        "Scores",
    )


def datasets_table(results: Sequence[ModelResult]) -> Table:
    """Every method's raw score and chance level, with one column per model."""
    nodes_of: dict[str, dict[str, Node]] = {}  # path of a method → model → its node
    for result in results:
        for node in result.root.walk():
            if node.measured is not None:
                nodes_of.setdefault(node.path, {})[result.model] = node
    rows: list[dict[str, Cell]] = []
    for path, nodes in nodes_of.items():
        measured = {model: node.measured for model, node in nodes.items() if node.measured}
        chance = next((score.chance for score in measured.values() if score.chance is not None), None)
        label, size = next(iter(nodes.values())).label, max(node.n for node in nodes.values())
        row: dict[str, Cell] = {"dataset": path.split("/")[-2], "metric": label, "n": size, "chance": chance}
        rows.append(row | {model: score.raw for model, score in measured.items()})
    heads = ("dataset", "metric", "n", "chance", *(result.model for result in results))
    note = "On each metric's own scale. A dash as chance: guessing has no fixed share, or an unknown one."
    return Table.of("methods", "Raw scores and chance", rows, [note], "Scores", heads=heads)


def parts_table(benchmark: Benchmark, result: ModelResult, key: str = "capabilities") -> Table:
    """One model's total and capabilities, as far as they have scores, for `run`."""
    rows = [(node.label, node.score, cell_of(node), 100 * node.share, node.n) for node in (result.root, *result.root.children)]
    reasons = f"No total: {_reasons(result, ' and')}." if result.reasons else ""
    gated = "unknown" if result.gated is None else f"{result.gated:.2f}"
    gate = f"By algorithm 5 the total is {gated} (gate: {gate_of(result)})." if result.gate else ""
    columns = ("part", "score", "partial [95 % interval]", "share of weights %", "items")
    notes = tuple(filter(None, [reasons or gate, undefined_note([result]), PARTIAL_NOTE]))
    return Table(key, f"{benchmark.title}: {result.model}, 0 to 100", columns, tuple(rows), notes)


def undefined_note(results: Sequence[ModelResult]) -> str:
    """The methods left out because they are undefined on a model's answers; "" for none."""
    lines = [f"{result.model}: {'; '.join(result.undefined)}" for result in results if result.undefined]
    return f"Left out as undefined on the model's answers: {'. '.join(lines)}." if lines else ""


def left_out_table(benchmark: Benchmark, missing: Mapping[str, str]) -> Table:
    """The datasets that were not run, with reasons."""
    rows = tuple((key, benchmark.datasets[key].label, reason) for key, reason in missing.items())
    return Table(LEFT_OUT, "Datasets that were not run", ("dataset", "name", "why"), rows)


def items_table(root: Node, count: int) -> Table:
    """The `count` first items of every method: unread answers, then the lowest values, then outcomes, which have no order."""

    def order(item: tuple[str, object]) -> tuple[int, float, str]:
        name, value = item
        return (1, float(value), name) if isinstance(value, int | float) else (0 if value is None else 2, 0.0, name)

    rows = [
        (node.path.split("/")[-2], node.label, item, value if value is None or isinstance(value, int | float) else str(value))
        for node in root.walk()
        if node.measured is not None
        for item, value in sorted(node.measured.items.items(), key=order)[:count]
    ]
    return Table("items", "Single items, lowest first", ("dataset", "metric", "item", "value or outcome"), tuple(rows))
