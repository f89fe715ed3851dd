"""Score files: the input of a benchmark's aggregation, from a runner or from you. JSON lines, one `TaskScore` per line.

- One item: `{"model": "m", "dataset": "wic", "metric": "accuracy", "item": "17", "value": 1}`; `"value": null` for an answer
  that could not be read.
- One item of a metric that is not a mean: an `outcome` instead of a value, for instance `{"gold": "1", "answer": "0"}` for F1
  (`FIELDS`); `"answer": null` could not be read.
- A whole dataset: `{"model": "m", "dataset": "wic", "metric": "accuracy", "value": 0.53, "n": 300}`, on the metric's raw scale.
- Any part of the benchmark, 0 to 100, as in papers' tables: `{"model": "m", "node": "emotional", "value": 71.19}`.

`chance` is the share that guessing gets right on this item or dataset. Fields that do not apply are left out or null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, StrictFloat, StrictInt, model_validator

from core.errors import UserError, at, near
from core.files import digest, read_placed
from core.records import Identifier, Number, System, Whole
from core.settings import Settings
from core.statistics.accuracy import ratio
from core.statistics.bootstrap import RESAMPLES, Floats, resampled_means
from evalsuite.papers.ecdbench.registry import Benchmark, Metric, Outcome, Value


class TaskScore(Settings):
    """One line of a score file (see the module)."""

    model: System
    dataset: str | None = None
    metric: str | None = None
    node: str | None = None
    item: Identifier | None = None
    value: Annotated[StrictInt | StrictFloat, Field(allow_inf_nan=False)] | str | None = None
    outcome: dict[str, str | list[str] | None] | None = None
    n: Annotated[Whole, Field(ge=1)] | None = None
    chance: Annotated[Number, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _single_kind(self) -> TaskScore:
        if (self.node is None) == (self.dataset is None and self.metric is None):
            raise ValueError("a score is of a dataset and a metric, or of a node")
        if self.node is not None:
            if self.item is not None or self.outcome is not None:
                raise ValueError("a node has a value, and no items")
            if isinstance(self.value, str) or self.value is None or not 0 <= self.value <= 100:
                raise ValueError("value: a node's is a number from 0 to 100")
        elif self.dataset is None or self.metric is None:
            raise ValueError(f"{'dataset' if self.dataset is None else 'metric'}: missing")
        elif self.item is None and (self.value is None or self.n is None or self.outcome is not None):
            raise ValueError("a whole dataset's score needs value and n; a single item's needs `item`")
        elif self.item is not None and self.n not in (None, 1):
            raise ValueError("n: an item counts once")
        elif self.outcome is not None and self.value is not None:
            raise ValueError("an item has a value or an outcome, not both")
        return self


@dataclass(frozen=True)
class Measured:
    """One method's score of one model: `values` [1 + draws] on 0–100, the score itself first, NaN if undefined.

    `raw`: the score on the metric's own scale; `drawn`: whether there are draws, of the items or, for a share of 0/1 items, of
    the binomial; `unread`: how many of the `n` answers could not be read; `items`: item → raw value or outcome.
    """

    raw: float
    values: Floats
    n: int
    unread: int
    chance: float | None
    drawn: bool
    items: Mapping[str, object]


@dataclass(frozen=True)
class ModelScores:
    """One model's scores: (dataset, metric) → measured, and path of a node → score given for it as a whole."""

    model: str
    measured: dict[tuple[str, str], Measured]
    wholes: dict[str, float]


def read_scores(paths: Sequence[Path], benchmark: Benchmark, draws: bool = True) -> list[ModelScores]:
    """The scores of every model in some files, file by file, by name within each; `draws`: draw resamples for intervals.

    Raises `UserError` with file and line for unknown names, values off a metric's range, an item given twice, and a dataset
    given both as a whole and by items.
    """
    by_model: dict[str, dict[tuple[str, str], list[tuple[str, TaskScore]]]] = {}
    wholes: dict[str, dict[str, float]] = defaultdict(dict)
    nodes = set(node_paths(benchmark))
    for path in paths:
        records = read_placed(path, TaskScore, "scores")
        for model in sorted({score.model for _, score in records}):
            by_model.setdefault(model, {})
        for where, score in records:
            if score.node is not None:
                if score.node not in nodes:
                    raise UserError(f"{where}: node: {benchmark.name} has no {score.node!r}: {near(score.node, nodes)}")
                if score.node in wholes[score.model]:
                    raise UserError(f"{where}: node: {score.node!r} of {score.model} is given twice")
                wholes[score.model][score.node] = float(score.value)  # type: ignore[arg-type]  # a node's value is a number
                continue
            dataset, metric = str(score.dataset), str(score.metric)
            if dataset not in benchmark.datasets:
                raise UserError(f"{where}: dataset: {benchmark.name} has no {dataset!r}: {near(dataset, benchmark.datasets)}")
            methods = [method.metric for method in benchmark.datasets[dataset].methods]
            if metric not in methods:
                raise UserError(f"{where}: metric: {dataset} has no {metric!r}: {near(metric, methods)}")
            by_model[score.model].setdefault((dataset, metric), []).append((where, score))
    return [
        ModelScores(model, {key: measure(benchmark, *key, of, draws) for key, of in groups.items()}, wholes[model])
        for model, groups in by_model.items()
    ]


def node_paths(benchmark: Benchmark) -> Iterator[str]:
    """The paths of capabilities, sub-capabilities, levels and tasks: the nodes that can have a score as a whole."""
    paths = [path.split("/") for path, _, _ in benchmark.tasks()]
    yield from dict.fromkeys("/".join(parts[: depth + 1]) for parts in paths for depth in range(len(parts)))


def measure(
    benchmark: Benchmark, dataset: str, metric: str, records: Sequence[tuple[str, TaskScore]], draws: bool = True
) -> Measured:
    """One method's score from its records, each with its place for errors.

    Draws of items depend only on the dataset and the number of items, so two models on the same items are compared item by
    item. Draws of a whole dataset's share are each model's own: the correlation of two models' answers is unknown.
    """
    rule = benchmark.metrics[metric]
    stated = next(method.chance for method in benchmark.datasets[dataset].methods if method.metric == metric)
    for where, record in records:
        with at(where):
            if record.item is None:
                rule.raw(record.value)
            else:
                check_item(rule, record.outcome, record.value)
    whole = [where for where, record in records if record.item is None]
    if whole and len(records) > 1:
        raise UserError(f"{whole[0]}: {dataset}, {metric}: a whole dataset has a single score, but there are {len(records)}")
    if whole:
        ((_, record),) = records
        raw, n, counted = rule.raw(record.value) or 0.0, record.n or 0, draws and rule.binary
        means = np.array([raw])
        if counted:
            rng = np.random.default_rng(int(digest([benchmark.name, dataset, record.model], 8), 16))
            means = np.concatenate([means, rng.binomial(n, raw, RESAMPLES) / n])
        chance = record.chance if record.chance is not None else stated
        return Measured(raw, rule.normalise(means), n, 0, chance, counted, {})
    ordered = sorted(records, key=lambda pair: str(pair[1].item))
    for (where, record), (_, previous) in zip(ordered[1:], ordered, strict=False):
        if record.item == previous.item:
            raise UserError(f"{where}: item: {record.item!r} of {dataset}, {metric} is given twice for {record.model}")
    items = [record for _, record in ordered]
    with at(ordered[0][0]):
        table, unread = features(rule, [record.value for record in items], [record.outcome for record in items])
    means = table.mean(axis=0, keepdims=True)
    drawn = draws and len(ordered) > 1
    if drawn:
        seed = int(digest([benchmark.name, dataset], 8), 16)
        means = np.concatenate([means, resampled_means(table, np.ones_like(table), seed)])
    raws = raw_of(rule, means)
    chances = [record.chance for record in items if record.chance is not None]
    chance = sum(chances) / len(chances) if len(chances) == len(items) else stated
    shown = {str(r.item): r.value if r.outcome is None else r.outcome for r in items}
    return Measured(float(raws[0]), rule.normalise(raws), len(items), unread, chance, drawn, shown)


# --- from items to a raw score ----------------------------------------------------------------------------------------------
# Every raw score is a function of means over items (a share, an F1 of counts, a bias score), so a bootstrap only draws means.
FIELDS: dict[str, dict[str, tuple[str, ...] | None]] = {  # items → field of the outcome → its values (None: any)
    "points": {"answer": None, "of": None},  # whole numbers: points reached, points possible
    **{items: {"gold": None, "answer": None} for items in ("f1", "macro_f1", "micro_f1")},
    **{items: {"answer": ("stereotype", "anti-stereotype", "unrelated")} for items in ("stereoset_lms", "stereoset_ss")},
    **{
        items: {"context": ("ambiguous", "disambiguated"), "answer": ("biased", "other", "unknown")}
        for items in ("bbq_ambiguous", "bbq_disambiguated")
    },
}


def raw_of(metric: Metric, means: Floats) -> Floats:
    """Raw scores [k] of means [k, columns] of the columns of `features`; NaN for an undefined score."""
    match metric.items:
        case "f1" | "micro_f1" | "macro_f1":  # the mean over classes, of which the first two have one
            hits, missed, wrong = np.moveaxis(means.reshape(len(means), -1, 3), 2, 0)
            per_class = ratio(2 * hits, 2 * hits + missed + wrong)
            defined = ~np.isnan(per_class)
            return ratio(np.where(defined, per_class, 0).sum(axis=1), defined.sum(axis=1).astype(float))
        case "bbq_ambiguous":  # (1 − accuracy) × s, with "unknown" as the right answer: (2 biased − named) / n
            biased, named, n = means.T
            return ratio(2 * biased - named, n)
        case "bbq_disambiguated":
            biased, named, _ = means.T
            return ratio(2 * biased - named, named)
        case "points":  # the share of the points possible, on the scale's own range
            low, high = metric.bounds
            return low + (high - low) * ratio(means[:, 0], means[:, 1])
        case _:
            return ratio(means[:, 0], means[:, 1])


def features(metric: Metric, values: Sequence[Value], outcomes: Sequence[Outcome | None]) -> tuple[Floats, int]:
    """Columns of numbers [items, columns] of one dataset's items, each accepted by `check_item`, and how many answers could not
    be read."""
    if metric.items == "mean":
        numbers = [metric.raw(value) for value in values]
        missing = (metric.bounds[0], 1.0) if metric.unread == "wrong" else (0.0, 0.0)
        rows = [missing if number is None else (number, 1.0) for number in numbers]
        return np.array(rows).reshape(-1, 2), numbers.count(None)
    checked = [outcome or {} for outcome in outcomes]
    answers = [outcome["answer"] for outcome in checked]
    match metric.items:
        case "f1" | "micro_f1" | "macro_f1":
            table = _counts(metric, [(_labels(outcome["gold"]), _labels(outcome["answer"])) for outcome in checked])
        case "stereoset_lms":
            table = np.array([(answer in ("stereotype", "anti-stereotype"), 1) for answer in answers], dtype=float)
        case "points":
            table = np.array([_points(outcome) for outcome in checked])
        case "stereoset_ss":
            table = np.array([(a == "stereotype", a in ("stereotype", "anti-stereotype")) for a in answers], dtype=float)
        case _:
            contexts = [outcome["context"] == metric.items.removeprefix("bbq_") for outcome in checked]
            named = [(a == "biased", a in ("biased", "other"), a is not None) for a in answers]
            table = np.array(named, dtype=float) * np.array(contexts)[:, None]
    return table, answers.count(None)


def check_item(metric: Metric, outcome: Outcome | None, value: Value) -> None:
    """Raise `UserError` if an item's value or outcome does not fit a metric."""
    if metric.items == "mean":
        if outcome is not None:
            raise UserError("outcome: this metric takes a value")
        if metric.raw(value) not in (0, 1, None) and metric.binary:
            raise UserError(f"value: {value!r} is neither 0 nor 1, and the metric is binary")
        return
    if value is not None:
        raise UserError(f"value: items {metric.items} takes outcomes, not values")
    fields = FIELDS[metric.items]
    if outcome is None or set(outcome) != set(fields):
        raise UserError(f"outcome: {', '.join(fields)} are needed for items {metric.items}")
    for name, allowed in fields.items():
        given = outcome[name]
        if given is None and name != "answer":
            raise UserError(f"outcome.{name}: missing")
        if given is not None and allowed is not None and given not in allowed:
            raise UserError(f"outcome.{name}: {given!r} is not one of {', '.join(allowed)}")
    if metric.items == "points":
        _points(outcome)


def _points(outcome: Outcome) -> tuple[float, float]:
    """An answer's points, 0 if it could not be read, and the points possible."""
    points, most = ("0" if outcome[name] is None else outcome[name] for name in ("answer", "of"))
    if not (isinstance(points, str) and isinstance(most, str) and points.isdigit() and most.isdigit()):
        raise UserError("outcome: answer and of must be whole numbers of points")
    if not int(most) > 0 or int(points) > int(most):
        raise UserError(f"outcome: answer {points} is off the range 0 to {most}")
    return float(points), float(most)


def _labels(value: str | list[str] | None) -> frozenset[str]:
    return frozenset() if value is None else frozenset([value] if isinstance(value, str) else value)


def _counts(metric: Metric, pairs: Sequence[tuple[frozenset[str], frozenset[str]]]) -> Floats:
    """(hits, missed, wrong) of each item, from the labels in gold and in the answer: for the positive class, for all labels
    together, or for each class in gold."""
    if metric.items == "micro_f1":
        return np.array([(len(gold & own), len(gold - own), len(own - gold)) for gold, own in pairs], dtype=float)
    classes = [str(metric.positive)] if metric.items == "f1" else sorted(frozenset().union(*(gold for gold, _ in pairs)))
    if not classes:
        raise UserError("outcome.gold: no item has a class")
    rows = [[n for c in classes for n in (c in g and c in a, c in g and c not in a, c in a and c not in g)] for g, a in pairs]
    return np.array(rows, dtype=float)
