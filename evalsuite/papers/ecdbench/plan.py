"""The plan of a benchmark's run, made before any call: which datasets can run, on which data, and which cannot and why.

`configs/ecdbench/local.yaml` says which files belong to which dataset and how they are read (`forms`, beside this file). A
document is a dict: for a task of lm-eval, with that task's columns; for ours, with the columns that its file in
configs/ecdbench/tasks names and `gold`, the list of right choices (from 0). Items without an answer are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from core.errors import UserError, near
from core.files import CONFIGS
from core.grouping import group_by
from core.ledger import BuildStep
from core.rows import CorpusReader, CorpusRow
from core.settings import Settings
from core.tables import Cell, Table
from core.yaml_files import read_yaml
from evalsuite.papers.ecdbench.aggregate import aggregate
from evalsuite.papers.ecdbench.forms import FORMS, SUMMARISED, Doc
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores

# The field that a document of our own tasks needs for a metric, by the metric's name or the kind of its items.
NEEDS = {
    **dict.fromkeys(("accuracy", "preferred", "recall_at_k", "mrr", "macro_f1"), "gold"),
    **dict.fromkeys(("exact_match", "micro_f1"), "group"),
    **dict.fromkeys(("f1", "stereoset_lms", "stereoset_ss"), "labels"),
    "points": "points",
    "rouge_l": "references",
}
OURS = "esc_"  # prefix of our own tasks' names
SUMMARY = "summary"  # the task of writing a summary, which a judge scores; it does not use lm-eval


class Part(Settings):
    """One set of a dataset's files: the task to run on them, their form, and the category to keep (None: all). `fields` maps
    the form's field names to those in the files, if these differ."""

    task: str
    form: str
    files: Annotated[list[str], Field(min_length=1)]
    category: str | None = None
    fields: dict[str, str] = Field(default={})


Files = list[tuple[Part, list[Path]]]


@dataclass
class _RenamingReader(CorpusReader):
    """Reads rows under the form's field names, as `Part.fields` maps them."""

    fields: dict[str, str] = field(default_factory=dict)

    def jsonl(self, path: Path, first: int = 1) -> Iterator[CorpusRow]:
        return map(self._renamed, super().jsonl(path, first))

    def json_list(self, path: Path) -> Iterator[CorpusRow]:
        return map(self._renamed, super().json_list(path))

    def csv(self, path: Path, needed: Sequence[str] = ()) -> Iterator[CorpusRow]:
        return map(self._renamed, super().csv(path, [self.fields.get(name, name) for name in needed]))

    def _renamed(self, row: CorpusRow) -> CorpusRow:
        if not self.fields or not isinstance(row.value, dict):
            return row
        renamed = {name: row.value[theirs] for name, theirs in self.fields.items() if theirs in row.value}
        if missing := [theirs for theirs in self.fields.values() if theirs not in row.value]:
            self.malformed(row, f"{missing[0]}: missing (the layout's `fields` names it)")
        return CorpusRow(row.where, row.value | renamed)


class NoItems(UserError):
    """Readable files without any usable item."""


class Layout(Settings):
    """Dataset → its parts. Files are paths below the data folder, as patterns."""

    datasets: dict[str, list[Part]]


def layout_of(data: Path | None) -> Layout:
    """A data folder's layout: its own layout.yaml, else configs/ecdbench/local.yaml."""
    file = data and data / "layout.yaml"
    return load_layout(file if file and file.is_file() else None)


def load_layout(path: Path | None) -> Layout:
    """A layout from a file (None: configs/ecdbench/local.yaml). Raises `UserError` for a form that is unknown or does not fit
    the task."""
    path = path or CONFIGS / "ecdbench" / "local.yaml"
    layout = read_yaml(path, Layout, "layout of local data")
    for name, parts in layout.datasets.items():
        for part in parts:
            if part.form not in FORMS:
                raise UserError(f"{path}: datasets.{name}: unknown form {part.form!r}: {near(part.form, FORMS)}")
            if absolute := [pattern for pattern in part.files if Path(pattern).is_absolute()]:
                raise UserError(f"{path}: datasets.{name}: files: {absolute[0]} is not below the data folder")
            if (part.form in SUMMARISED) != (part.task == SUMMARY):
                raise UserError(f"{path}: datasets.{name}: task {SUMMARY} needs a form of {', '.join(sorted(SUMMARISED))}")
    return layout


def find_files(data: Path, part: Part) -> list[Path]:
    """The files of a part, in the patterns' order; [] if any pattern matches none."""
    matches = [sorted(data.glob(pattern)) for pattern in part.files]
    return [path for paths in matches for path in paths] if all(matches) else []


def read_part(part: Part, files: list[Path]) -> tuple[list[Doc], BuildStep]:
    """A part's documents in file order, and the counts of items left out. Raises `UserError` with file and line for malformed
    items, and `NoItems` if none is left."""
    step = BuildStep(part.task)
    reader = _RenamingReader(step, strict=True, tidy=False, fields=part.fields)
    docs = [doc for doc in FORMS[part.form](files, reader) if part.category in (None, doc.get("category"))]
    if not docs:
        category = f" of category {part.category!r}" if part.category else ""
        raise NoItems(f"{files[0]}: no item{category} with an answer")
    return docs, step


def read_parts(files: Files) -> list[tuple[Part, list[Doc], BuildStep]]:
    """The documents of all parts of a dataset. A category without items is left out, unless all are."""
    parts, errors = [], []
    for part, paths in files:
        try:
            parts.append((part, *read_part(part, paths)))
        except NoItems as error:
            errors.append(error)
    if errors and not parts:
        raise errors[0]
    return parts


# --- the plan ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskPlan:
    """The datasets to run: from local files (dataset → parts with files), with lm-eval's own data, and to be summarised; and
    the others (dataset → why not)."""

    local: dict[str, Files]
    hub: list[str]
    summaries: dict[str, Files]
    missing: dict[str, str]

    def check(self) -> None:
        """Raise `UserError` if no dataset can run."""
        if not self.local and not self.hub and not self.summaries:
            reasons = "; ".join(f"{key}: {reason}" for key, reason in list(self.missing.items())[:4])
            raise UserError(f"no dataset can run: {reasons}" + (" …" if len(self.missing) > 4 else ""))


def plan_tasks(benchmark: Benchmark, layout: Layout, data: Path | None, wanted: list[str] | None, hub: bool) -> TaskPlan:
    """The plan for local files, or lm-eval's own data with `hub`. Raises `UserError` for unknown names."""
    for key in (*(wanted or []), *layout.datasets):
        if key not in benchmark.datasets:
            raise UserError(f"dataset {key!r}: {benchmark.name} has no such dataset: {near(key, benchmark.datasets)}")
        if any((part.task == SUMMARY) != _judged(benchmark, key) for part in layout.datasets.get(key, [])):
            raise UserError(
                f"dataset {key!r}: the layout must have task {SUMMARY} exactly if {benchmark.name} has `run: {{by: judge}}`"
            )
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data}: no such folder")
    plan = TaskPlan({}, [], {}, {})
    for key in wanted or benchmark.datasets:
        runner, parts = benchmark.datasets[key].run, layout.datasets.get(key, [])
        files = [(part, paths) for part in parts if (paths := find_files(data, part))] if data else []
        if files:
            (plan.summaries if _judged(benchmark, key) else plan.local)[key] = files
        elif hub and runner is not None and runner.by == "lm_eval":
            plan.hub.append(key)
        else:
            plan.missing[key] = _why_not(benchmark, key, parts, data)
    return plan


def _why_not(benchmark: Benchmark, key: str, parts: list[Part], data: Path | None) -> str:
    runner = benchmark.datasets[key].run
    file = parts[0].files[0] if parts else None
    if runner is not None and runner.reason:
        return runner.reason + ("; a copy of your own can run (configs/ecdbench/local.yaml: where to put it)" if file else "")
    if runner is not None and runner.by == "adapter":
        return f"needs your own licensed copy, {file}" if file else "needs your own licensed copy, or its answers as scores"
    if runner is not None and runner.by == "lm_eval":
        return "lm-eval downloads it with --hub" + (f"; no {file}" if file else "")
    if file:
        return f"no {file}" if data else f"needs {file}"
    form = "documents" if _judged(benchmark, key) else "items"
    return f"needs a file in the form `{form}` and a layout.yaml (see configs/ecdbench/local.yaml)"


def _judged(benchmark: Benchmark, key: str) -> bool:
    runner = benchmark.datasets[key].run
    return runner is not None and runner.by == "judge"


def read_dataset(benchmark: Benchmark, key: str, files: Files) -> list[tuple[Part, list[Doc], BuildStep]]:
    """A dataset's documents, part by part. Raises `UserError` for malformed files, and for a part whose task cannot score one
    of the dataset's metrics: nobody should pay for calls that measure nothing."""
    parts = read_parts(files)
    methods = [method for method in benchmark.datasets[key].methods if method.unavailable is None]
    fields = {m.metric: NEEDS.get(m.metric) or NEEDS.get(benchmark.metrics[m.metric].items) for m in methods}
    for part, docs, _ in parts:
        missing = [metric for metric, field in fields.items() if field not in docs[0]]
        if missing and part.task.startswith(OURS):  # not known for lm-eval's own tasks
            raise UserError(
                f"dataset {key!r}: form {part.form} with task {part.task} gives no score for {', '.join(missing)}: "
                "name another in the layout (configs/ecdbench/local.yaml has one for every dataset)"
            )
    return parts


def plan_table(benchmark: Benchmark, plan: TaskPlan) -> Table:
    """Every dataset of a plan with its state, items and weights, and how it runs or why not. Reads all files."""
    shares = method_shares(benchmark)
    planned = {*plan.local, *plan.hub, *plan.summaries, *plan.missing}
    rows: list[tuple[Cell, ...]] = []
    for key in (key for key in benchmark.datasets if key in planned):
        state, how, items = _state(benchmark, plan, key)
        weights = [sum(share for (name, _), share in by_method.items() if name == key) for by_method in shares.values()]
        rows.append((key, state, items, *(100 * weight or None for weight in weights), how))
    columns = ("dataset", "state", "items", *(f"% of {target}" for target in shares), "how, or why not")
    return Table("plan", f"{benchmark.title}: what would run", columns, tuple(rows), tuple(coverage(benchmark, plan)))


def _state(benchmark: Benchmark, plan: TaskPlan, key: str) -> tuple[str, str, int | None]:
    """A dataset's state, how it runs or why not, and its items, if they are here."""
    runner = benchmark.datasets[key].run
    if key in plan.missing:
        return "cannot run" if runner is not None and runner.reason else "needs a file", plan.missing[key], None
    files = (plan.local | plan.summaries).get(key)
    if files is None:
        assert runner is not None
        return "runs", f"lm-eval downloads {runner.task}", None
    parts = read_dataset(benchmark, key, files)
    missing = [f"no {method.metric}: {method.unavailable}" for method in benchmark.datasets[key].methods if method.unavailable]
    tasks = ", ".join(part.task for part, _, _ in parts[:3]) + (", …" if len(parts) > 3 else "")
    how = "summaries, for a judge (--judge)" if key in plan.summaries else tasks
    groups = [{doc["group"] for doc in docs} if "group" in docs[0] else docs for _, docs, _ in parts]
    return "runs", "; ".join([how, *missing]), sum(map(len, groups))


def method_shares(benchmark: Benchmark) -> dict[str, dict[tuple[str, str], float]]:
    """The weight of every method: (dataset, metric) → share of the total and, separately, of the gate."""
    root = aggregate(benchmark, ModelScores("", {}, {}), "null").root
    gate = benchmark.gate.capability if benchmark.gate else None
    shares: dict[str, dict[tuple[str, str], float]] = {"total": {}, "gate": {}} if gate else {"total": {}}
    weights = {"": 1.0}
    for node in root.walk():
        if node.path:
            parent = node.path.rpartition("/")[0]
            weights[node.path] = weights[parent] * (1.0 if node.path == gate else node.weight)
        if node.layer == "method":
            dataset, metric = node.path.split("/")[-2:]
            by_method = shares["gate" if gate and node.path.split("/")[0] == gate else "total"]
            by_method[dataset, metric] = by_method.get((dataset, metric), 0) + weights[node.path]
    return shares


def coverage(benchmark: Benchmark, plan: TaskPlan) -> Iterator[str]:
    """How much of the benchmark a plan covers, and what keeps it from a total."""
    runs = {*plan.local, *plan.hub, *plan.summaries}
    unavailable = {(name, m.metric) for name in runs for m in benchmark.datasets[name].methods if m.unavailable}
    parts = [f"{len(runs)} of {len(benchmark.datasets)} datasets are asked"]
    for target, shares in method_shares(benchmark).items():
        covered = sum(share for method, share in shares.items() if method[0] in runs and method not in unavailable)
        parts.append(f"{100 * covered:.1f} % of the weights of the {target}")
    yield ", ".join(parts) + (", with a judge of the summaries (--judge)." if plan.summaries else ".")
    if benchmark.not_runnable:
        yield (
            "The second total (`ecdbench table --missing left_out`) leaves out what cannot be run: "
            f"{', '.join(name for name in benchmark.not_runnable if name not in runs)}."
        )


def left_out_lines(missing: Mapping[str, str]) -> list[str]:
    """The datasets that are not asked, one line per reason."""
    return [f"- {reason}: {', '.join(keys)}" for reason, keys in group_by(missing, missing.__getitem__).items()]
