"""FEEL's ten rounds of band probabilities beside one call for token probabilities: variance, agreement and cost.

- Spread of the rounds: per dialogue and aspect the standard deviation (n − 1) of the rounds' scores, averaged; it needs two
  readable rounds. A single call has none, and a dash.
- Agreement of two methods of one model and persona: the scores after equation 1, on dialogues that both scored.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data_prep.records import Judgement, Language
from data_prep.rubrics import Rubric
from data_prep.scores.accuracy import spearman
from data_prep.scores.bootstrap import interval, resampled_means
from data_prep.tables import Cell, Estimate, Table
from evalsuite.judge_bands import read_bands
from evalsuite.statistics.coefficients import figures
from evalsuite.statistics.ensemble import Panel, Scores, panel_of
from evalsuite.statistics.ensemble_tables import FEEL
from evalsuite.statistics.summary import scorer_of

Key = tuple[str, str]  # language, dialogue


def method_table(
    judgements: Sequence[Judgement], rubric: Rubric, costs: Sequence[Mapping[str, Any]], people: Scores | None = None
) -> Table:
    """One row a scorer and language: verdicts, how many could be read, how many did not sum to 1, spread, cost, correlation.

    `costs` are the rows of costs.json (whole numbers per scorer, all languages together); `people` adds the mean over aspects
    of Spearman's correlation with them.
    """
    of_scorer: dict[tuple[str, Language], list[Judgement]] = defaultdict(list)
    for judgement in judgements:
        of_scorer[scorer_of(judgement).name, judgement.language].append(judgement)
    paid = {str(row["judge"]): row for row in costs}
    panel = panel_of(judgements)
    rows: list[tuple[Cell, ...]] = []
    for (scorer, language), own in of_scorer.items():
        read = sum(judgement.value is not None for judgement in own)
        cost = paid.get(scorer)
        each = [cost[name] / cost["dialogues"] if cost else None for name in ("calls", "prompt_tokens", "completion_tokens")]
        row: tuple[Cell, ...] = (scorer, language, len(own), 100 * read / len(own), _off_sum(own, rubric, language))
        rows.append((*row, _spread(own), *each, *([_correlation(panel, people, scorer, language)] if people else [])))
    columns = ("scorer", "language", "verdicts", "read %", "sum off %", "spread of the rounds")
    paid_for = ("calls a dialogue", "prompt tokens a dialogue", "completion tokens a dialogue")
    return Table(
        key="feel_methods",
        title="Rounds of band probabilities and token probabilities",
        columns=(*columns, *paid_for, *(("Spearman with people",) if people else ())),
        rows=tuple(rows),
        notes=(
            "Spread: standard deviation of a dialogue's rounds on an aspect, averaged, [95 % bootstrap over dialogues], "
            "n = dialogues. Sum off: verdicts whose numbers could be read and do not sum to 1 ± 0.02.",
            "Spearman with people: the mean over the aspects on which it is defined."
            if people
            else "Costs are over all languages that were asked together.",
        ),
        section=FEEL,
    )


def _off_sum(judgements: Sequence[Judgement], rubric: Rubric, language: Language) -> float | None:
    """In per cent of the verdicts that have numbers; None where no verdict has any."""
    lines = [read_bands(j.raw, rubric, language)[j.dimension] for j in judgements if j.method == "bands"]
    given = [line for line in lines if line is not None]
    return 100 * sum(not line.sound for line in given) / len(given) if given else None


def _spread(judgements: Sequence[Judgement]) -> Estimate:
    rounds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for judgement in judgements:
        if judgement.value is not None:
            rounds[judgement.dialogue_id, judgement.dimension].append(judgement.value)
    spreads: dict[str, list[float]] = defaultdict(list)
    for (dialogue, _), values in rounds.items():
        if len(values) > 1:
            spreads[dialogue].append(statistics.stdev(values))
    return _mean(spreads)


def _mean(values: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean of all numbers, with an interval over dialogues, which are drawn whole; n counts dialogues."""
    if not values:
        return Estimate(None, None, None, 0)
    sums = np.array([[sum(own)] for own in values.values()], dtype=np.float64)
    counts = np.array([[len(own)] for own in values.values()], dtype=np.float64)
    low, high = interval(resampled_means(sums, counts)[:, 0]) if len(values) > 1 else (None, None)
    return Estimate(float(sums.sum() / counts.sum()), low, high, len(values))


def _correlation(panel: Panel, people: Scores, scorer: str, language: Language) -> float | None:
    found = []
    for aspect, own in panel[scorer].items():
        ids = sorted(set(own) & set(people.get(aspect, {})))
        if aspect.language == language:
            found.append(spearman([own[i] for i in ids], [people[aspect][i] for i in ids]))
    defined = [value for value in found if value is not None]
    return sum(defined) / len(defined) if defined else None


def agreement_table(judgements: Sequence[Judgement]) -> Table:
    """The two methods of every judge against each other, a row an aspect. No row where a judge was asked by one method only."""
    names: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, str]] = defaultdict(dict)
    for judgement in judgements:
        scorer = scorer_of(judgement)
        names[scorer.judge, scorer.condition][scorer.method] = scorer.name
    panel = panel_of(judgements)
    rows: list[tuple[Cell, ...]] = []
    for (judge, condition), methods in names.items():
        if {"bands", "tokens"} <= set(methods):
            bands, tokens = panel[methods["bands"]], panel[methods["tokens"]]
            who = " · ".join([judge, *(f"{key}={value}" for key, value in condition)])
            for aspect in (each for each in bands if each in tokens):
                ids = sorted(set(bands[aspect]) & set(tokens[aspect]))
                x, y = (np.array([side[aspect][i] for i in ids], dtype=np.float64) for side in (bands, tokens))
                coefficient = figures(x, y, np.arange(len(ids), dtype=np.intp), "dataset")["spearman"][0]
                by = {i: [float(b - t)] for i, b, t in zip(ids, x, y, strict=True)}
                away = {i: [abs(gap[0])] for i, gap in by.items()}
                rows.append((who, *aspect, coefficient, _mean(by), _mean(away)))
    return Table(
        key="feel_method_agreement",
        title="Band probabilities against token probabilities",
        columns=("judge", "language", "aspect", "Spearman", "bands − tokens", "|bands − tokens|"),
        rows=tuple(rows),
        notes=("On the scores of equation 1, in points; [95 % bootstrap over dialogues], n = dialogues that both scored.",),
        section=FEEL,
    )
