"""What of a benchmark can be asked, on which data, and what not and why: known before any call.

`configs/ecdbench/local.yaml` says which files belong to which dataset and how they are read (`forms`, beside this file). A
document is a dict: for a task of lm-eval the columns that this task knows, for ours the columns that its file in
configs/ecdbench/tasks names and `gold`, the list of the choices (from 0) that are right. What a file leaves without an answer
is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from core.errors import UserError, near
from core.files import CONFIGS
from core.ledger import BuildStep
from core.rows import CorpusReader, CorpusRow
from core.settings import Settings
from core.tables import Cell, Table
from core.yaml_files import read_yaml
from evalsuite.papers.ecdbench.aggregate import aggregate
from evalsuite.papers.ecdbench.forms import FORMS, SUMMARISED, Doc
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores

# What a document of our own tasks must have for a metric, by the metric's name or by the kind of its items.
NEEDS = {
    **dict.fromkeys(("accuracy", "preferred", "recall_at_k", "mrr", "macro_f1"), "gold"),
    **dict.fromkeys(("exact_match", "micro_f1"), "group"),
    **dict.fromkeys(("f1", "stereoset_lms", "stereoset_ss"), "labels"),
    "points": "points",
    "rouge_l": "references",
}
OURS = "esc_"  # how the names of our own tasks begin
SUMMARY = "summary"  # the task that the model answers with a summary, which a judge scores; lm-eval has no part in it


class Part(Settings):
    """One set of files of a dataset: the task that asks them, how they are read, and of which category (None: all).

    `fields` maps the form's names of fields to those in the files, where these differ.
    """

    task: str
    form: str
    files: Annotated[list[str], Field(min_length=1)]
    category: str | None = None
    fields: dict[str, str] = Field(default={})


Files = list[tuple[Part, list[Path]]]


@dataclass
class _RenamingReader(CorpusReader):
    """Reads rows by the form's names of fields, where `Part.fields` has others."""

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
        own = {name: row.value[theirs] for name, theirs in self.fields.items() if theirs in row.value}
        if missing := [theirs for theirs in self.fields.values() if theirs not in row.value]:
            self.malformed(row, f"{missing[0]}: missing (the layout's `fields` names it)")
        return CorpusRow(row.where, row.value | own)


class NothingThere(UserError):
    """Files that can be read, without an item that can be asked."""


class Layout(Settings):
    """Dataset → its parts. Files are paths below the data folder, as patterns."""

    datasets: dict[str, list[Part]]


def layout_of(data: Path | None) -> Layout:
    """Where a data folder's files lie: by a layout.yaml of its own, else by configs/ecdbench/local.yaml."""
    own = data and data / "layout.yaml"
    return load_layout(own if own and own.is_file() else None)


def load_layout(path: Path | None) -> Layout:
    """Where files lie: configs/ecdbench/local.yaml, or one's own. Raises `UserError` for a form that there is not, or that does
    not fit the task."""
    path = path or CONFIGS / "ecdbench" / "local.yaml"
    layout = read_yaml(path, Layout, "layout of local data")
    for name, parts in layout.datasets.items():
        for part in parts:
            if part.form not in FORMS:
                raise UserError(f"{path}: datasets.{name}: unknown form {part.form!r}: {near(part.form, FORMS)}")
            if absolute := [pattern for pattern in part.files if Path(pattern).is_absolute()]:
                raise UserError(f"{path}: datasets.{name}: files: {absolute[0]} is not below the data folder")
            if (part.form in SUMMARISED) != (part.task == SUMMARY):
                raise UserError(
                    f"{path}: datasets.{name}: task {SUMMARY} goes together with the forms {', '.join(sorted(SUMMARISED))}"
                )
    return layout


def find_files(data: Path, part: Part) -> list[Path]:
    """The files of a part, in the patterns' order; [] when any pattern finds none."""
    matches = [sorted(data.glob(pattern)) for pattern in part.files]
    return [path for paths in matches for path in paths] if all(matches) else []


def read_part(part: Part, files: list[Path]) -> tuple[list[Doc], BuildStep]:
    """A part's documents in file order, and the account of what was left out.

    Raises `UserError` with file and line for what cannot be read, and when nothing is left.
    """
    step = BuildStep(part.task)
    reader = _RenamingReader(step, strict=True, tidy=False, fields=part.fields)
    docs = [doc for doc in FORMS[part.form](files, reader) if part.category in (None, doc.get("category"))]
    if not docs:
        what = f" of category {part.category!r}" if part.category else ""
        raise NothingThere(f"{files[0]}: no item{what} that has an answer")
    return docs, step


def read_parts(files: Files) -> list[tuple[Part, list[Doc], BuildStep]]:
    """The documents of all parts of a dataset. A category that its files have no item of is left out, unless it is the only
    one."""
    parts, errors = [], []
    for part, paths in files:
        try:
            parts.append((part, *read_part(part, paths)))
        except NothingThere as error:
            errors.append(error)
    if errors and not parts:
        raise errors[0]
    return parts


# --- what can be asked, and why not -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskPlan:
    """What is to be asked: dataset → its parts with their files, datasets with lm-eval's own data, datasets to be summarised;
    and what is not, and why."""

    local: dict[str, Files]
    hub: list[str]
    summaries: dict[str, Files]
    missing: dict[str, str]

    def check(self) -> None:
        """Raise `UserError` where nothing can be asked."""
        if not self.local and not self.hub and not self.summaries:
            reasons = "; ".join(f"{key}: {why}" for key, why in list(self.missing.items())[:4])
            raise UserError(f"nothing to ask: {reasons}" + (" …" if len(self.missing) > 4 else ""))


def plan_tasks(benchmark: Benchmark, layout: Layout, data: Path | None, wanted: list[str] | None, hub: bool) -> TaskPlan:
    """What can be asked: files where they are, lm-eval's own data with `hub`. Raises `UserError` for unknown names."""
    for key in (*(wanted or []), *layout.datasets):
        if key not in benchmark.datasets:
            raise UserError(f"dataset {key!r}: {benchmark.name} has none of this name: {near(key, benchmark.datasets)}")
        if any((part.task == SUMMARY) != _judged(benchmark, key) for part in layout.datasets.get(key, [])):
            raise UserError(
                f"dataset {key!r}: task {SUMMARY} is for datasets that {benchmark.name} has `run: {{by: judge}}`, and only it"
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
        return runner.reason + ("; a copy of your own runs (configs/ecdbench/local.yaml says where it goes)" if file else "")
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


def unmeasured(benchmark: Benchmark, name: str, task: str, doc: Doc) -> list[str]:
    """The metrics of dataset `name` that `task` would give no score for; of lm-eval's own tasks nothing is foretold."""
    if not task.startswith(OURS):
        return []
    methods = [method for method in benchmark.datasets[name].methods if method.unavailable is None]
    kinds = {method.metric: benchmark.metrics[method.metric].items for method in methods}
    return [metric for metric, kind in kinds.items() if (NEEDS.get(metric) or NEEDS.get(kind)) not in doc]


def read_dataset(benchmark: Benchmark, key: str, files: Files) -> list[tuple[Part, list[Doc], BuildStep]]:
    """A dataset's documents, part by part. Raises `UserError` for what cannot be read, and where a part's task would give no
    score for one of the dataset's metrics: nobody should pay for calls that measure nothing."""
    parts = read_parts(files)
    for part, docs, _ in parts:
        if part.task != SUMMARY and (without := unmeasured(benchmark, key, part.task, docs[0])):
            raise UserError(
                f"dataset {key!r}: form {part.form} with task {part.task} gives nothing for {', '.join(without)}: "
                "name another in the layout (configs/ecdbench/local.yaml has one for every dataset)"
            )
    return parts


def plan_table(benchmark: Benchmark, plan: TaskPlan) -> Table:
    """Every dataset of a plan: whether it runs, on how many items, what is missing, and what it weighs. Reads all files."""
    shares = method_shares(benchmark)
    order = [
        key for key in benchmark.datasets if any(key in part for part in (plan.local, plan.hub, plan.summaries, plan.missing))
    ]
    rows: list[tuple[Cell, ...]] = []
    for key in order:
        state, how, items = _state(benchmark, plan, key)
        weights = {of: sum(share for (name, _), share in by.items() if name == key) for of, by in shares.items()}
        rows.append((key, state, items, *(100 * one or None for one in weights.values()), how))
    return Table(
        key="plan",
        title=f"{benchmark.title}: what is asked",
        columns=("dataset", "state", "items", *(f"% of {of}" for of in shares), "how, or why not"),
        rows=tuple(rows),
        notes=tuple(coverage(benchmark, plan)),
    )


def _state(benchmark: Benchmark, plan: TaskPlan, key: str) -> tuple[str, str, int | None]:
    runner = benchmark.datasets[key].run
    if key in plan.missing:
        cannot = runner is not None and runner.reason
        return "cannot run" if cannot else "needs a file", plan.missing[key], None
    files = (plan.local | plan.summaries).get(key)
    if files is None:
        assert runner is not None
        return "runs", f"lm-eval downloads {runner.task}", None
    parts = read_dataset(benchmark, key, files)
    lost = [f"no {one.metric}: {one.unavailable}" for one in benchmark.datasets[key].methods if one.unavailable]
    tasks = ", ".join(part.task for part, _, _ in parts[:3]) + (", …" if len(parts) > 3 else "")
    how = "summaries, for a judge (--judge)" if key in plan.summaries else tasks
    groups = [{doc["group"] for doc in docs} if "group" in docs[0] else docs for _, docs, _ in parts]
    return "runs", "; ".join([how, *lost]), sum(map(len, groups))


def method_shares(benchmark: Benchmark) -> dict[str, dict[tuple[str, str], float]]:
    """What every method weighs: (dataset, metric) → share of the total and, apart from it, of the gate."""
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
            of = shares["gate" if gate and node.path.split("/")[0] == gate else "total"]
            of[dataset, metric] = of.get((dataset, metric), 0) + weights[node.path]
    return shares


def coverage(benchmark: Benchmark, plan: TaskPlan) -> Iterator[str]:
    """How much of the benchmark a plan asks, and what stands between it and a total."""
    asked = {*plan.local, *plan.hub, *plan.summaries}
    parts = [f"{len(asked)} of {len(benchmark.datasets)} datasets are asked"]
    for of, shares in method_shares(benchmark).items():
        lost = {(name, m.metric) for name in asked for m in benchmark.datasets[name].methods if m.unavailable}
        there = sum(share for method, share in shares.items() if method[0] in asked and method not in lost)
        parts.append(f"{100 * there:.1f} % of the weights of the {of}")
    yield ", ".join(parts) + (", with a judge of the summaries (--judge)." if plan.summaries else ".")
    if benchmark.not_runnable:
        yield (
            "What cannot be run is left out of the second total (`ecdbench table --missing left_out`): "
            f"{', '.join(name for name in benchmark.not_runnable if name not in asked)}."
        )


def left_out_lines(missing: Mapping[str, str]) -> list[str]:
    """What is not asked, a line a reason."""
    reasons: dict[str, list[str]] = {}
    for key, why in missing.items():
        reasons.setdefault(why, []).append(key)
    return [f"- {why}: {', '.join(keys)}" for why, keys in reasons.items()]
