"""What of a benchmark can be asked, on which data, and what not and why: known before any call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import UserError, near
from core.ledger import BuildStep
from core.tables import Cell, Table
from evalsuite.papers.ecdbench.aggregate import aggregate
from evalsuite.papers.ecdbench.answers import unmeasured
from evalsuite.papers.ecdbench.forms import Doc
from evalsuite.papers.ecdbench.local_data import SUMMARY, Files, Layout, Part, find_files, read_parts
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import ModelScores


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
    lost = [f"no {metric}: {why}" for metric, why in _unavailable(benchmark, key).items()]
    tasks = ", ".join(part.task for part, _, _ in parts[:3]) + (", …" if len(parts) > 3 else "")
    how = "summaries, for a judge (--judge)" if key in plan.summaries else tasks
    groups = [{doc["group"] for doc in docs} if "group" in docs[0] else docs for _, docs, _ in parts]
    return "runs", "; ".join([how, *lost]), sum(map(len, groups))


def _unavailable(benchmark: Benchmark, key: str) -> dict[str, str]:
    return {one.metric: one.unavailable for one in benchmark.datasets[key].methods if one.unavailable}


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
        there = sum(
            share for (name, metric), share in shares.items() if name in asked and metric not in _unavailable(benchmark, name)
        )
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
