"""Tables of a benchmark's contents: its rows (table 6 of ECDBench), what is unclear, and its counts (table 1)."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

from core.grouping import group_by
from core.tables import Cell, Table
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores
from evalsuite.papers.reported.tables import load_reported

# How the metrics of outcomes count an answer that could not be read (`normalise.features`).
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


# --- the paper's own leaderboard (table 5), as scores -----------------------------------------------------------------------


PAPER, LEADERBOARD = "ecdbench", "5"


def published_scores(benchmark: Benchmark) -> list[ModelScores]:
    """The paper's leaderboard, as scores of whole capabilities."""
    paths = {part.label: key for key, part in benchmark.capabilities.items()}
    models: dict[str, dict[str, float]] = {}
    for cell in load_reported(PAPER).cells[LEADERBOARD]:
        if cell.at["column"] in paths and cell.value is not None:
            models.setdefault(cell.at["Model"], {})[paths[cell.at["column"]]] = float(cell.value)
    return [ModelScores(model, {}, capabilities) for model, capabilities in models.items()]
