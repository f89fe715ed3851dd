"""A benchmark of the FDAEF kind, read from YAML: its layers, all weights and what is known of every dataset.

Capability → sub-capability → level (of difficulty) → task → dataset → method → item, as in section 3 of ECDBench.
configs/ecdbench/registry.yaml is ECDBench 1.0 and shows every field.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from core.errors import UserError, near
from core.files import CONFIGS, explain
from core.records import Language
from core.settings import Settings
from core.yaml_files import read_named, read_yaml
from evalsuite.papers.ecdbench.normalise import Metric

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
NodeKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]


class DatasetMethod(Settings):
    """One metric of a dataset, and the share that guessing gets right where that is known. `k` is that of recall@k;
    `unavailable` says why nothing here can measure it."""

    metric: str
    weight: Positive = 1
    chance: Share | None = None
    k: Annotated[int, Field(ge=1)] | None = None
    unavailable: str | None = None


class TaskRunner(Settings):
    """What is to run a dataset: an lm-eval task (`task` and its `metric`), a task file of ours, a judge, an adapter for a
    user's licensed copy, or nothing (`reason`)."""

    by: Literal["lm_eval", "own_task", "judge", "adapter", "none"]
    task: str | None = None
    metric: str | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> TaskRunner:
        if self.by == "lm_eval" and not (self.task and self.metric):
            raise ValueError("lm_eval needs its task and its metric")
        if self.by == "none" and not self.reason:
            raise ValueError("a dataset that cannot be run needs the reason")
        return self


class Dataset(Settings):
    """A dataset of table 6; its items are choices unless `question` says otherwise. `licence` and `get` are None where they are
    not stated; `language` where it is not known."""

    label: str
    methods: Annotated[list[DatasetMethod], Field(min_length=1)]
    evaluation: Literal["benchmark", "model", "human"] = "benchmark"
    question: str = "MCQ"
    language: list[Language] | None = None
    licence: str | None = None
    get: str | None = None
    run: TaskRunner | None = None
    self_built: bool = False
    notes: list[str] = Field(default=[])

    @field_validator("methods")
    @classmethod
    def _methods_once(cls, value: list[DatasetMethod]) -> list[DatasetMethod]:
        doubled = [name for name, count in Counter(method.metric for method in value).items() if count > 1]
        if doubled:
            raise ValueError(f"metric {doubled[0]!r} is named twice")
        return value


class BenchmarkTask(Settings):
    """A task of one level. `datasets` maps their ids to weights; a list means 1 for each. `doubt` says what our copy of the
    paper leaves open."""

    label: str
    level: str
    datasets: Annotated[dict[NodeKey, Positive], Field(min_length=1)]
    weight: Positive = 1
    doubt: str | None = None

    @field_validator("datasets", mode="before")
    @classmethod
    def _weights_of_list(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        if len(set(map(str, value))) < len(value):
            raise ValueError("a dataset is named twice")
        return {name: 1 for name in value}


class SubCapability(Settings):
    """`counted_as` is its name in the table of counts, where that differs."""

    label: str
    tasks: Annotated[dict[NodeKey, BenchmarkTask], Field(min_length=1)]
    weight: Positive = 1
    counted_as: str | None = None
    doubt: str | None = None


class Capability(Settings):
    """A main capability. The gate's has no weight: it is no part of the total (equation 6)."""

    label: str
    sub_capabilities: Annotated[dict[NodeKey, SubCapability], Field(min_length=1)]
    weight: Positive | None = None
    role: str | None = None


class Gate(Settings):
    """The capability that must reach `threshold` (0 to 100) for a total (algorithm 5)."""

    capability: str
    threshold: Annotated[float, Field(ge=0, le=100)]


class PaperCounts(Settings):
    """The reported table that the registry's own counts are held against; `languages` is what the paper says of them."""

    paper: str
    table: str
    languages: str | None = None


class Benchmark(Settings):
    """A benchmark with all its weights. Raises `UserError` when it is read with names that do not fit each other, weights of
    levels that do not sum to 1, or a capability without a weight."""

    name: NodeKey
    title: str
    source: str = ""
    sample: Annotated[int, Field(ge=1)] | None = None
    levels: Annotated[list[NodeKey], Field(min_length=1)]
    level_weights: list[dict[str, Positive]] = Field(default=[])
    gate: Gate | None = None
    metrics: dict[NodeKey, Metric]
    capabilities: Annotated[dict[NodeKey, Capability], Field(min_length=1)]
    datasets: dict[NodeKey, Dataset]
    counts: PaperCounts | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Benchmark:
        self._check_levels()
        gate = self.gate.capability if self.gate else None
        if gate is not None and gate not in self.capabilities:
            raise ValueError(f"gate: no capability {gate!r}: {near(gate, self.capabilities)}")
        for key, capability in self.capabilities.items():
            if (capability.weight is None) != (key == gate):
                what = "has no weight: it is no part of the total" if key == gate else "needs a weight"
                raise ValueError(f"capabilities.{key}: {'the gate' if key == gate else 'a capability'} {what}")
        if len(self.capabilities) == (gate is not None):
            raise ValueError("capabilities: there is none beside the gate, so there is no total")
        named = {"capabilities": [capability.label for capability in self.capabilities.values()]}
        for path, _, task in self.tasks():  # figures and tables know capabilities, and the tasks of one, by their labels
            named.setdefault(f"capabilities.{path.split('/')[0]}", []).append(task.label)
        for where, labels in named.items():
            if doubled := [label for label, count in Counter(labels).items() if count > 1]:
                raise ValueError(f"{where}: two have the label {doubled[0]!r}")
        used = set()
        for place, _, task in self.tasks():
            if task.level not in self.levels:
                raise ValueError(f"{place}.level: unknown level {task.level!r}: {near(task.level, self.levels)}")
            for name in task.datasets:
                used.add(name)
                if name not in self.datasets:
                    raise ValueError(f"{place}.datasets: unknown dataset {name!r}: {near(name, self.datasets)}")
        for name, dataset in self.datasets.items():
            if name not in used:
                raise ValueError(f"datasets.{name}: no task uses it")
            for method in dataset.methods:
                if method.metric not in self.metrics:
                    raise ValueError(f"datasets.{name}: unknown metric {method.metric!r}: {near(method.metric, self.metrics)}")
        return self

    def _check_levels(self) -> None:
        if len(set(self.levels)) < len(self.levels):
            raise ValueError("levels: a level is named twice")
        seen: list[frozenset[str]] = []
        for index, case in enumerate(self.level_weights):
            where, names = f"level_weights.{index}", frozenset(case)
            if unknown := names - set(self.levels):
                raise ValueError(f"{where}: unknown level {min(unknown)!r}: {near(min(unknown), self.levels)}")
            if names in seen:
                raise ValueError(f"{where}: {', '.join(sorted(names))} is given twice")
            if not math.isclose(sum(case.values()), 1, abs_tol=1e-9):
                raise ValueError(f"{where}: the weights sum to {sum(case.values()):g}, not to 1")
            seen.append(names)
        if len(self.levels) > 1 and frozenset(self.levels) not in seen:
            raise ValueError("level_weights: the case of all levels together is missing")

    @cached_property
    def _cases(self) -> dict[frozenset[str], dict[str, float]]:
        return {frozenset(case): dict(case) for case in self.level_weights}

    def weights_of_levels(self, levels: frozenset[str]) -> dict[str, float]:
        """The weights of the levels that a sub-capability has; they sum to 1.

        One alone weighs 1; several weigh as their own case of `level_weights` says, and where there is none, as in the case of
        all levels, in proportion (section 7.2.3).
        """
        if not levels:
            return {}
        if len(levels) == 1:
            return dict.fromkeys(levels, 1.0)
        if levels in self._cases:
            return self._cases[levels]
        full = self._cases[frozenset(self.levels)]
        total = sum(full[level] for level in levels)
        return {level: full[level] / total for level in self.levels if level in levels}

    @cached_property
    def not_runnable(self) -> dict[str, str]:
        """What nobody can run with what there is, and why: ids of datasets, and `dataset/metric`."""
        reasons = {}
        for name, dataset in self.datasets.items():
            if dataset.run is not None and dataset.run.reason:
                reasons[name] = dataset.run.reason
            else:
                reasons |= {f"{name}/{m.metric}": m.unavailable for m in dataset.methods if m.unavailable}
        return reasons

    @cached_property
    def runnable(self) -> Benchmark:
        """The benchmark without what is not runnable: tasks and levels that keep something share the weights of the others.

        Raises `UserError` when nothing of a capability is left.
        """
        if not self.not_runnable:
            return self
        known = self.model_dump()
        known["title"] = f"{self.title}, what can be run"
        for name, dataset in list(known["datasets"].items()):
            dataset["methods"] = [one for one in dataset["methods"] if f"{name}/{one['metric']}" not in self.not_runnable]
            if name in self.not_runnable or not dataset["methods"]:
                del known["datasets"][name]
        for capability in known["capabilities"].values():
            subs = capability["sub_capabilities"]
            for key, sub in list(subs.items()):
                for task in sub["tasks"].values():
                    task["datasets"] = {name: w for name, w in task["datasets"].items() if name in known["datasets"]}
                sub["tasks"] = {name: task for name, task in sub["tasks"].items() if task["datasets"]}
                if not sub["tasks"]:
                    del subs[key]
        try:
            return Benchmark.model_validate(known)
        except ValidationError as error:
            raise UserError(f"{self.name}: too little of it can be run for a total: {explain(error)}") from None

    def tasks(self) -> Iterator[tuple[str, SubCapability, BenchmarkTask]]:
        """(path, sub-capability, task) of every task, in the file's order."""
        for one, capability in self.capabilities.items():
            for two, sub in capability.sub_capabilities.items():
                for three, task in sub.tasks.items():
                    yield f"{one}/{two}/{task.level}/{three}", sub, task


class ModelFacts(Settings):
    """What figures 5 and 6 need to know of a model; `parameters` are billions in all."""

    family: str | None = None
    type: Literal["open", "closed"] | None = None
    parameters: Positive | None = None


class ModelTable(Settings):
    models: dict[str, ModelFacts]


def load_benchmark(name: str = "ecdbench") -> Benchmark:
    """The bundled benchmark, or one's own by the path of a YAML file. Raises `UserError` with file and field."""
    if name != "ecdbench" and not name.endswith((".yaml", ".yml")):
        raise UserError(f"unknown benchmark {name!r}: ecdbench, or the path of a YAML file")
    path = CONFIGS / "ecdbench" / "registry.yaml" if name == "ecdbench" else Path(name)
    return read_yaml(path, Benchmark, "benchmark")


def load_models(name: str) -> Mapping[str, ModelFacts]:
    """Facts of models by their names, from configs/ecdbench/NAME.yaml or a path."""
    return read_named("ecdbench", name, ModelTable, "models").models
