"""Tables of a benchmark: its leaderboard, a model's scores down to single methods, what separates models, its contents."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from operator import itemgetter
from typing import Any

import numpy as np

from core.grouping import group_by
from core.statistics.bootstrap import RESAMPLES
from core.statistics.inference import ALPHA, holm
from core.tables import Cell, Table
from evalsuite.papers.ecdbench.aggregate import Layer, Missing, ModelResult, Node, RankRange, comparable, ranges, under_weights
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores
from evalsuite.papers.reported import load_reported

LISTED = "total as listed"
GATED = "total by algorithm 5"
PARTIAL = "partial"
SHARE = "share %"
INTERVALS = (
    f"[95 % bootstrap percentile interval over items, {RESAMPLES:,} resamples], n = items. There is no interval if a part was "
    "given as a whole without its items (except shares of right answers)."
)
GAPS = 6  # reasons that a note names
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
        notes.append("No ranks: no complete total passes the gate, and partial ones compare only if they cover the same parts.")
    notes += filter(None, [undefined_note(results)])
    notes += [f"{result.model} has no total: {_reasons(result, '; and')}." for result in results if result.reasons]
    return notes


def _reasons(result: ModelResult, before_more: str) -> str:
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
    depth = len(root.path.split("/")) if root.path else 0
    zero = "Datasets without any score count as 0 (algorithms 3 and 4 as printed)." if missing == "zero" else ""
    chance = "raw, chance: on the metric's own scale; the scores are not corrected for chance."
    return Table.of(
        "places",
        f"{result.model}: from the total to single methods, 0 to 100",
        [
            {
                "place": "  " * (len(node.path.split("/")) - depth if node.path else 0) + node.label,
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


# --- which parts separate models --------------------------------------------------------------------------------------------

LAYERS: tuple[Layer, ...] = ("capability", "sub_capability", "task", "dataset")


def separation_table(results: Sequence[ModelResult]) -> Table:
    """Every node for which at least two models have a score (0 to 100), the largest spread first within each layer."""
    places: dict[str, list[Node]] = {}
    for result in results:
        for node in result.root.walk():
            if node.layer in LAYERS and node.partial is not None and node.share:
                places.setdefault(node.path, []).append(node)
    rows = [(nodes[0], _row(nodes)) for nodes in places.values() if len(nodes) > 1]
    rows.sort(key=lambda pair: (LAYERS.index(pair[0].layer), -pair[1]["SD"], pair[0].path))
    note = (
        "reliability: the share of the models' variance that is not due to the sampling of items (0 to 1). significant pairs: "
        "z of the difference by its bootstrap standard error, p at most 0.05 after Holm's correction over a row's pairs. A "
        "dash: scores without items."
    )
    return Table.of("separation", "Which parts separate models", [row for _, row in rows], (note,), section="Discrimination")


def _row(nodes: Sequence[Node]) -> dict[str, Any]:
    from scipy.stats import norm

    place, scores = nodes[0], np.array([node.partial for node in nodes], dtype=np.float64)
    spread, reliability, significant = float(scores.std(ddof=1)), None, None
    pairs = list(combinations(range(len(nodes)), 2))
    if all(node.drawn and len(node.values) > 1 for node in nodes):
        draws = np.stack([node.values[1:] for node in nodes])
        noise = float(np.nanvar(draws, axis=1, ddof=1).mean())
        reliability = max(0.0, 1 - noise / spread**2) if spread > 1e-9 else None
        gaps = np.array([scores[i] - scores[j] for i, j in pairs])
        # Paired, since models with the same items share the draws.
        errors = np.array([np.nanstd(draws[i] - draws[j], ddof=1) for i, j in pairs])
        # A difference that never varies has no standard error to test it by: its pair is not counted.
        z = np.divide(np.abs(gaps), errors, out=np.full(len(gaps), np.nan), where=errors > 1e-9)
        p = holm(2 * norm.sf(z))
        significant = int((p[~np.isnan(p)] <= ALPHA).sum())
    return {
        "place": place.label if place.layer == "capability" else place.path,
        "layer": place.layer.replace("_", "-"),
        "models": len(nodes),
        "mean": float(scores.mean()),
        "SD": spread,
        "lowest": float(scores.min()),
        "highest": float(scores.max()),
        "reliability": reliability,
        "significant pairs": significant,
        "pairs": len(pairs),
    }


# --- the benchmark's contents -----------------------------------------------------------------------------------------------

# How the metrics of outcomes count an answer that could not be read (`scores.features`).
UNREAD = {"f1": "missed", "macro_f1": "missed", "micro_f1": "missed", "stereoset_lms": "wrong", "points": "none"}


def registry_table(benchmark: Benchmark) -> Table:
    """Every row of the benchmark: table 6 of ECDBench."""
    heads = ("capability", "sub-capability", "level", "task", "id", "dataset", "evaluation", "metrics", "question", "language")
    rows: list[tuple[Cell, ...]] = []
    for path, sub, task in benchmark.tasks():
        for name in task.datasets:
            dataset, metrics = benchmark.datasets[name], []
            for method in dataset.methods:
                label = benchmark.metrics[method.metric].label
                label = label if method.k is None else label.replace("@k", f"@{method.k}")
                metrics.append(label + (" (not runnable)" if method.unavailable else ""))
            run = dataset.run
            runner = [run.by, run.task, run.metric and f"({run.metric})", run.reason] if run else []
            place = (benchmark.capabilities[path.split("/")[0]].label, sub.label, task.level, task.label, name)
            asked_in = "+".join(dataset.language) if dataset.language else None
            asking = (dataset.label, dataset.evaluation, ", ".join(metrics), dataset.question, asked_in)
            rows.append((*place, *asking, dataset.licence, dataset.get, " ".join(filter(None, runner)) or None))
    notes = ("A dash: not stated, or not known for certain.", *doubts(benchmark))
    columns = (*heads, "licence", "how to get it", "run by")
    return Table("registry", f"{benchmark.title}: tasks, datasets and methods", columns, tuple(rows), notes)


def metrics_table(benchmark: Benchmark) -> Table:
    """How every metric is computed from items and mapped to 0 to 100 (algorithm 2)."""
    columns = ("metric", "label", "items", "lowest", "highest", "becomes 0 to 100", "unread answers", "note")
    rows = tuple(
        (name, m.label, m.items, *m.bounds, m.rule, UNREAD.get(m.items, m.unread.replace("_", " ")), m.note)
        for name, m in benchmark.metrics.items()
    )
    note = "lowest, highest: raw scores. items: how they make the raw score; all but mean are functions of outcomes."
    return Table("metrics", f"{benchmark.title}: metrics, and how they are mapped to 0 to 100", columns, rows, (note,))


def doubts(benchmark: Benchmark) -> list[str]:
    """What our copy of the paper leaves unclear, and the notes on single datasets."""
    lines = [
        f"{label}: {text}"
        for _, sub, task in benchmark.tasks()
        for label, text in ((sub.label, sub.doubt), (f"{sub.label}, {task.label}", task.doubt))
        if text
    ]
    noted = [(note, dataset.label) for dataset in benchmark.datasets.values() for note in dataset.notes]
    notes = group_by(noted, itemgetter(0)).items()
    return [*dict.fromkeys(lines), *(f"{', '.join(label for _, label in pairs)}: {note}" for note, pairs in notes)]


def counts_table(benchmark: Benchmark) -> Table | None:
    """The registry's own counts next to the paper's; None for a benchmark without such a table. A dataset counts once in each
    sub-capability; a method is a way of evaluating a dataset (its metrics are one method)."""
    if benchmark.counts is None:
        return None
    paper, name = load_reported(benchmark.counts.paper), benchmark.counts.table
    heads = ("Tasks", "Datasets", "Self-built", "Methods")
    printed = {(cell.at["Capability"], cell.at["column"]): cell.value for cell in paper.cells[paper.table(name).table]}
    rows: list[dict[str, Cell]] = []
    total: Counter[str] = Counter()

    def row(capability: str, label: str, printed_as: str, counts: Counter[str]) -> dict[str, Cell]:
        cells: dict[str, Cell] = {"capability": capability, "sub-capability": label}
        for head in heads:
            cells |= {head.lower(): counts[head], f"paper: {head}": printed.get((printed_as, head))}
        return cells

    for capability in benchmark.capabilities.values():
        for sub in capability.sub_capabilities.values():
            names = {name for task in sub.tasks.values() for name in task.datasets}
            self_built = sum(benchmark.datasets[name].self_built for name in names)
            counts = Counter(dict(zip(heads, (len(sub.tasks), len(names), self_built, len(names)), strict=True)))
            total.update(counts)
            rows.append(row(capability.label, sub.label, sub.counted_as or sub.label, counts))
    rows.append(row("Total", "Total", "Total", total))
    by_language = Counter("+".join(dataset.language or ["not known"]) for dataset in benchmark.datasets.values())
    languages = f"Datasets by language: {', '.join(f'{name} {count}' for name, count in sorted(by_language.items()))}."
    differ = [
        f"{cells['sub-capability']} ({', '.join(other)})"
        for cells in rows
        if (other := [head for head in heads if cells[head.lower()] != cells[f"paper: {head}"]])
    ]
    agree = f"They differ in: {'; '.join(differ)}." if differ else "They agree."
    notes = (agree, " ".join(filter(None, [languages, benchmark.counts.languages])))
    return Table.of("counts", f"{benchmark.title}: our counts and table {name}", rows, notes)


def published_scores(benchmark: Benchmark) -> list[ModelScores]:
    """The paper's leaderboard, as scores of whole capabilities."""
    paths = {part.label: key for key, part in benchmark.capabilities.items()}
    models: dict[str, dict[str, float]] = {}
    for cell in load_reported("ecdbench").cells["5"]:
        if cell.at["column"] in paths and cell.value is not None:
            models.setdefault(cell.at["Model"], {})[paths[cell.at["column"]]] = float(cell.value)
    return [ModelScores(model, {}, capabilities) for model, capabilities in models.items()]
