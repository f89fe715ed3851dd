"""Figures of judges on one test split, their means over dimensions, languages and seeds, and paired differences.

Figures are those of `core.statistics.accuracy`, an unreadable verdict counting as wrong, averaged over dimensions without
weights (None where a dimension has none), then over languages. Intervals: bootstrap over groups (what a grouped split keeps
together, so variants of one dialogue are drawn together), with the same draws for every judge: differences are paired.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.records import Judgement
from core.rubrics import Rubric
from core.statistics.accuracy import accuracy, ece, quadratic_kappa, spearman
from core.statistics.bootstrap import SEED, Floats, interval, resampled_means
from core.statistics.means import mean_of_all
from train.surface import Item, Key

AVERAGE, ALL = "average", "mean"  # over dimensions, over languages
FIGURES = ("acc", "acc_soft", "kappa", "spearman", "ece")

Judge = tuple[str, str]  # name as recorded, method
Verdicts = dict[tuple[str, str], Judgement]  # dialogue, dimension


@dataclass
class Row:
    """A judge, or the mean over the seeds of one. `figures`: {language: {dimension, and `average`: {figure: value}}}, and for
    `mean` of the languages `average` alone. `draws`: {language or `mean`: {"acc", "acc_soft": [RESAMPLES]}}, averages over
    dimensions. Shares and differences are 0–1 here, per cent in tables. `family` is the name without its @seed."""

    name: str
    family: str
    method: str
    figures: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    draws: dict[str, dict[str, Floats]] = field(default_factory=dict)
    seconds: float | None = None
    seeds: int = 1

    @property
    def average(self) -> dict[str, dict[str, float | None]]:
        """{language or `mean`: the figures averaged over dimensions}."""
        return {language: of[AVERAGE] for language, of in self.figures.items()}

    def json(self) -> dict[str, Any]:
        """Its figures in full, with the intervals of the averages."""
        figures: dict[str, Any] = {}
        for language, of in self.figures.items():
            bounds = {f"{name}_{end}": bound for name, draws in self.draws[language].items() for end, bound in ends(draws)}
            figures[language] = of | {AVERAGE: of[AVERAGE] | bounds}
        about = {"name": self.name, "method": self.method, "seeds": self.seeds, "seconds_per_dialogue": self.seconds}
        return about | {"figures": figures}


@dataclass(frozen=True)
class Difference:
    """ACC of `a` minus that of `b`, 0–1, averaged over dimensions, with its paired interval (NaN with one group).

    A tie when the interval contains 0.
    """

    a: str
    b: str
    language: str
    acc: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        if math.isnan(self.low):
            return "no interval"
        return "tie" if self.low <= 0 <= self.high else "higher" if self.acc > 0 else "lower"


def compared(a: Row, b: Row, test: Mapping[Key, Sequence[Item]]) -> Iterator[Difference]:
    """`a` minus `b` in each language and, where there are several, in their mean."""
    for language in [*languages_of(test), ALL] if len(languages_of(test)) > 1 else languages_of(test):
        of_a, of_b = a.average[language]["acc"], b.average[language]["acc"]
        assert of_a is not None and of_b is not None, "every dimension has items, and an unread verdict is wrong"
        low, high = interval(a.draws[language]["acc"] - b.draws[language]["acc"])
        yield Difference(a.name, b.name, language, of_a - of_b, low, high, int(a.average[language]["n"] or 0))


def table_rows(
    found: Mapping[Judge, Verdicts], test: Mapping[Key, Sequence[Item]], rubric: Rubric, seconds: Mapping[Judge, float]
) -> list[Row]:
    """A row a judge; before several seeds of one, their mean. Judges of one name asked by several methods are told apart."""
    methods: dict[str, set[str]] = defaultdict(set)
    families: dict[Judge, list[Row]] = defaultdict(list)
    for name, method in found:
        methods[name.partition("@")[0]].add(method)
    for judge, verdicts in found.items():
        name, method = judge
        family = name.partition("@")[0]
        tail = f" · {method}" if len(methods[family]) > 1 else ""
        row = Row(name + tail, family + tail, method, seconds=seconds.get(judge))
        for number, language in enumerate(languages_of(test)):
            row.figures[language], row.draws[language] = _measure(verdicts, test, rubric, language, SEED + number)
        row.figures[ALL] = {AVERAGE: _mean_figures([row.figures[language][AVERAGE] for language in row.figures])}
        row.draws[ALL] = _mean_draws(list(row.draws.values()))
        families[family, method].append(row)
    return [
        row
        for (family, _), members in families.items()
        for row in ([_over_seeds(members)] if len(members) > 1 else []) + members
    ]


def _measure(
    verdicts: Verdicts, test: Mapping[Key, Sequence[Item]], rubric: Rubric, language: str, seed: int
) -> tuple[dict[str, dict[str, float | None]], dict[str, Floats]]:
    """Figures of each dimension and of their average in one language, and draws of the average."""
    asked = {dimension: own for (of, dimension), own in test.items() if of == language}
    groups = {group: place for place, group in enumerate(groups_of(test, language))}
    hits, near_, counts = np.zeros((3, len(groups), len(asked)))
    figures: dict[str, dict[str, float | None]] = {}
    scores = list(rubric.scores)
    for column, (dimension, own) in enumerate(asked.items()):
        given = [verdicts[item.dialogue_id, dimension] for item in own]
        values, gold = [j.value for j in given], [item.target for item in own]
        measured = accuracy(values, gold)
        spread = [(j.distribution, item.label) for j, item in zip(given, own, strict=True) if j.value is not None]
        shares = [[d.get(str(score), 0.0) for score in scores] for d, _ in spread if d]
        figures[dimension] = {
            "acc": measured["acc"],
            "acc_soft": measured["acc_soft"],
            "kappa": quadratic_kappa(values, gold, scores),
            "spearman": spearman(values, gold),
            "ece": ece(shares, [scores.index(label) for _, label in spread]) if len(shares) == len(spread) else None,
            "n": measured["n"],
            "read": measured["read"],
        }
        for item, value in zip(own, values, strict=True):
            place = groups[item.group], column
            counts[place] += 1
            hits[place] += value is not None and value == item.label
            near_[place] += value is not None and abs(value - item.target) <= 1
    figures[AVERAGE] = _mean_figures(list(figures.values()))
    if (counts > 0).sum(axis=0).min() < 2:  # a dimension on one group is the same in every draw
        hits, near_ = hits * np.nan, near_ * np.nan
    draws = {name: resampled_means(sums, counts, seed).mean(1) for name, sums in (("acc", hits), ("acc_soft", near_))}
    return figures, draws


def _mean_figures(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Unweighted means (`mean_of_all`); counts are added up."""
    means = {name: mean_of_all(row[name] for row in rows) for name in FIGURES}
    return means | {name: sum(row[name] or 0 for row in rows) for name in ("n", "read")}


def _mean_draws(draws: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    return {name: np.mean([each[name] for each in draws], axis=0) for name in draws[0]}


def _over_seeds(members: Sequence[Row]) -> Row:
    """The mean over seeds. Its n is that of one seed: the items are the same."""
    first = members[0]
    row = Row(f"{first.family}, mean of {len(members)} seeds", first.family, first.method, seeds=len(members))
    for language, of in first.figures.items():
        row.figures[language] = {
            dimension: _mean_figures([member.figures[language][dimension] for member in members])
            | {"n": of[dimension]["n"], "read": None}
            for dimension in of
        }
        row.draws[language] = _mean_draws([member.draws[language] for member in members])
    row.seconds = mean_of_all(member.seconds for member in members)
    return row


def languages_of(test: Mapping[Key, Sequence[Item]]) -> list[str]:
    return sorted({language for language, _ in test})


def groups_of(test: Mapping[Key, Sequence[Item]], language: str) -> list[str]:
    return sorted({item.group for (of, _), own in test.items() if of == language for item in own})


def ends(draws: Floats) -> list[tuple[str, float]]:
    return list(zip(("low", "high"), interval(draws), strict=True))
