"""A benchmark of the FDAEF kind, read from YAML: its layers, all weights and the facts of every dataset.

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

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

from core.errors import UserError, near
from core.files import CONFIGS, explain
from core.records import Language
from core.settings import Settings, read_named, read_yaml
from core.statistics.bootstrap import Floats

Items = Literal[
    "mean", "points", "f1", "macro_f1", "micro_f1", "stereoset_lms", "stereoset_ss", "bbq_ambiguous", "bbq_disambiguated"
]
Value = float | str | None
Outcome = Mapping[str, "str | list[str] | None"]


class Metric(Settings):
    """How a metric is computed from items and mapped to 0–100.

    `type` as in algorithm 2: `ratio` (0 to 1), `numeric` (`min` to `max`; if `min` is the larger one, less is better), `grade`
    (`grades` maps names to 0–100) or `percent` (already 0–100). `range`: of raw scores, by default the type's. `ideal`: the
    distance from this score (an unbiased model's, as the paper does not say how to normalise bias scores) is normalised, with
    the worst distance as the minimum. `items`: how items make a raw score; all but `mean` need items' outcomes (`FIELDS`).
    `unread`: an unreadable answer counts as the lowest raw score (`wrong`) or not at all (`left_out`); among outcomes, F1 takes
    it for an answer without labels, StereoSet's `lms` for a wrong one, and bias scores leave it out. `binary` items are 0 or 1,
    so a share of n items has a binomial interval.
    """

    label: str
    type: Literal["ratio", "numeric", "grade", "percent"]
    items: Items = "mean"
    min: float | None = None
    max: float | None = None
    range: tuple[float, float] | None = None
    ideal: float | None = None
    grades: dict[str, Annotated[float, Field(ge=0, le=100)]] | None = None
    positive: str | None = None
    unread: Literal["wrong", "left_out"] = "left_out"
    binary: bool = False
    note: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Metric:
        numeric = self.min is not None and self.max is not None and self.min != self.max
        unmeasured = self.ideal is not None and not (self.range and self.range[0] <= self.ideal <= self.range[1])
        problems = {
            "min and max, which differ, belong to type numeric": (self.type == "numeric") != numeric,
            "grades belong to type grade": (self.type == "grade") != bool(self.grades),
            "ideal needs type numeric, and a range of raw scores that contains it": unmeasured
            or (self.ideal is not None and self.type != "numeric"),
            "positive, the class to find, belongs to items f1": (self.items == "f1") != (self.positive is not None),
            f"items {self.items} counts outcomes: no grades, and no `unread: wrong`": self.items != "mean"
            and (self.type == "grade" or self.unread == "wrong"),
            "binary belongs to items mean of type ratio": self.binary and (self.items != "mean" or self.type != "ratio"),
        }
        if problem := next((problem for problem, wrong in problems.items() if wrong), None):
            raise ValueError(problem)
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and highest raw score."""
        if self.range is not None:
            return self.range
        if self.type == "numeric":
            return min(self.min or 0.0, self.max or 0.0), max(self.min or 0.0, self.max or 0.0)
        return (0.0, 1.0) if self.type == "ratio" else (0.0, 100.0)

    @property
    def rule(self) -> str:
        """Algorithm 2 for this metric, in words."""
        if self.type == "numeric":
            quantity = "raw score" if self.ideal is None else f"distance from {self.ideal:g}"
            return f"{quantity}: {self.min:g} is 0, {self.max:g} is 100"
        if self.type == "grade":
            return ", ".join(f"{grade} is {score:g}" for grade, score in (self.grades or {}).items())
        return "raw score × 100" if self.type == "ratio" else "as it is"

    def raw(self, value: Value) -> float | None:
        """One raw value as a number: grades by their table. Raises `UserError` for a value off the range or no grade."""
        if value is None:
            return None
        if self.grades:
            if value not in self.grades:
                raise UserError(f"value: {value!r} is not one of the grades {', '.join(self.grades)}")
            return self.grades[str(value)]
        if isinstance(value, str):
            raise UserError(f"value: {value!r} is not a number")
        low, high = self.bounds
        if not low <= value <= high:
            raise UserError(f"value: {value:g} is off the range {low:g} to {high:g}")
        return float(value)

    def normalise(self, raw: Floats) -> Floats:
        """Algorithm 2: raw scores (grades converted by `raw`) → 0–100. Distances beyond the worst count as the worst."""
        if self.type in ("grade", "percent"):
            return raw
        if self.type == "ratio":
            return raw * 100
        low, high = self.min or 0.0, self.max or 0.0
        score = ((raw if self.ideal is None else np.abs(raw - self.ideal)) - low) / (high - low) * 100
        return score if self.ideal is None else np.clip(score, 0, 100)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
NodeKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]


class DatasetMethod(Settings):
    """One metric of a dataset. `chance`: the share that guessing gets right, if known; `k`: that of recall@k; `unavailable`:
    why it cannot be measured here."""

    metric: str
    weight: Positive = 1
    chance: Share | None = None
    k: Annotated[int, Field(ge=1)] | None = None
    unavailable: str | None = None


class TaskRunner(Settings):
    """How to run a dataset: with an lm-eval task (`task` and its `metric`), a task file of ours, a judge, an adapter for a
    user's licensed copy, or not at all (`reason`)."""

    by: Literal["lm_eval", "own_task", "judge", "adapter", "none"]
    task: str | None = None
    metric: str | None = None
    reason: str | None = None


class Dataset(Settings):
    """A dataset of table 6; its items are choices unless `question` says otherwise. None: `licence` or `get` not stated,
    `language` unknown."""

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

    @property
    def judged(self) -> bool:
        """Whether a judge scores what the model writes."""
        return self.run is not None and self.run.by == "judge"


class BenchmarkTask(Settings):
    """A task of one level. `datasets` maps ids to weights; a list means 1 for each. `doubt`: what our copy of the paper leaves
    unclear."""

    label: str
    level: str
    datasets: Annotated[dict[NodeKey, Positive], Field(min_length=1)]
    weight: Positive = 1
    doubt: str | None = None

    @field_validator("datasets", mode="before")
    @classmethod
    def _weights_of_list(cls, value: object) -> object:
        return dict.fromkeys(value, 1) if isinstance(value, list) else value


class SubCapability(Settings):
    """`counted_as` is its name in the table of counts, if that differs."""

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
    """The reported table to compare the registry's own counts with; `languages`: the paper's statement on them."""

    paper: str
    table: str
    languages: str | None = None


class Benchmark(Settings):
    """A benchmark with all its weights. Inconsistent names, weights of levels that do not sum to 1, and a capability without a
    weight are errors."""

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
    def _consistent(self) -> Benchmark:
        for index, case in enumerate(self.level_weights):
            if unknown := case.keys() - set(self.levels):
                raise ValueError(f"level_weights.{index}: unknown level {min(unknown)!r}: {near(min(unknown), self.levels)}")
            if not math.isclose(sum(case.values()), 1, abs_tol=1e-9):
                raise ValueError(f"level_weights.{index}: the weights sum to {sum(case.values()):g}, not to 1")
        if len(self.levels) > 1 and frozenset(self.levels) not in self._cases:
            raise ValueError("level_weights: the case of all levels together is missing")
        gate = self.gate.capability if self.gate else None
        if gate is not None and gate not in self.capabilities:
            raise ValueError(f"gate: no capability {gate!r}: {near(gate, self.capabilities)}")
        for key, capability in self.capabilities.items():
            if (capability.weight is None) != (key == gate):
                problem = "the gate is outside the total and has no weight" if key == gate else "a capability needs a weight"
                raise ValueError(f"capabilities.{key}: {problem}")
        labels = {"capabilities": [capability.label for capability in self.capabilities.values()]}
        for path, _, task in self.tasks():
            labels.setdefault(f"capabilities.{path.split('/')[0]}", []).append(task.label)
            if task.level not in self.levels:
                raise ValueError(f"{path}.level: unknown level {task.level!r}: {near(task.level, self.levels)}")
            if unknown := task.datasets.keys() - self.datasets.keys():
                raise ValueError(f"{path}.datasets: unknown dataset {min(unknown)!r}: {near(min(unknown), self.datasets)}")
        for where, names in labels.items():  # figures and tables identify capabilities, and the tasks of one, by label
            if doubled := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{where}: two have the label {doubled[0]!r}")
        for name, dataset in self.datasets.items():
            for method in dataset.methods:
                if method.metric not in self.metrics:
                    raise ValueError(f"datasets.{name}: unknown metric {method.metric!r}: {near(method.metric, self.metrics)}")
        return self

    @cached_property
    def _cases(self) -> dict[frozenset[str], dict[str, float]]:
        return {frozenset(case): dict(case) for case in self.level_weights}

    def weights_of_levels(self, levels: frozenset[str]) -> dict[str, float]:
        """The weights of a sub-capability's levels; they sum to 1. A single level has weight 1; several have those of their
        own case in `level_weights`, or else those of the case of all levels, rescaled (section 7.2.3)."""
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
        """What cannot be run here, and why: ids of datasets, and `dataset/metric`."""
        reasons = {}
        for name, dataset in self.datasets.items():
            if dataset.run is not None and dataset.run.reason:
                reasons[name] = dataset.run.reason
            else:
                reasons |= {f"{name}/{m.metric}": m.unavailable for m in dataset.methods if m.unavailable}
        return reasons

    @cached_property
    def runnable(self) -> Benchmark:
        """The benchmark without what is not runnable; the remaining tasks and levels share the weights. Raises `UserError` if
        nothing of a capability is left."""
        if not self.not_runnable:
            return self
        dump, kept = self.model_dump(), {}
        dump["title"] = f"{self.title}, what can be run"
        for name, dataset in dump["datasets"].items():
            dataset["methods"] = [m for m in dataset["methods"] if f"{name}/{m['metric']}" not in self.not_runnable]
            if name not in self.not_runnable and dataset["methods"]:
                kept[name] = dataset
        dump["datasets"] = kept
        for capability in dump["capabilities"].values():
            subs = capability["sub_capabilities"]
            for sub in subs.values():
                for task in sub["tasks"].values():
                    task["datasets"] = {name: weight for name, weight in task["datasets"].items() if name in kept}
                sub["tasks"] = {name: task for name, task in sub["tasks"].items() if task["datasets"]}
            capability["sub_capabilities"] = {key: sub for key, sub in subs.items() if sub["tasks"]}
        try:
            return Benchmark.model_validate(dump)
        except ValidationError as error:
            raise UserError(f"{self.name}: too little of it can be run for a total: {explain(error)}") from None

    def tasks(self) -> Iterator[tuple[str, SubCapability, BenchmarkTask]]:
        """(path, sub-capability, task) of every task, in the file's order."""
        for key, capability in self.capabilities.items():
            for sub_key, sub in capability.sub_capabilities.items():
                for name, task in sub.tasks.items():
                    yield f"{key}/{sub_key}/{task.level}/{name}", sub, task


class ModelFacts(Settings):
    """A model's facts for figures 5 and 6; `parameters`: in total, in billions."""

    family: str | None = None
    type: Literal["open", "closed"] | None = None
    parameters: Positive | None = None


class ModelTable(Settings):
    models: dict[str, ModelFacts]


def load_benchmark(name: str = "ecdbench") -> Benchmark:
    """The bundled benchmark, or the user's own by the path of a YAML file. Raises `UserError` with file and field."""
    if name != "ecdbench" and not name.endswith((".yaml", ".yml")):
        raise UserError(f"unknown benchmark {name!r}: ecdbench, or the path of a YAML file")
    path = CONFIGS / "ecdbench" / "registry.yaml" if name == "ecdbench" else Path(name)
    return read_yaml(path, Benchmark, "benchmark")


def load_models(name: str) -> Mapping[str, ModelFacts]:
    """Facts of models by their names, from configs/ecdbench/NAME.yaml or a path."""
    return read_named("ecdbench", name, ModelTable, "models").models
