"""FEEL's ten rounds of band probabilities beside one call for token probabilities: variance, agreement and cost.

- Spread of the rounds: per dialogue and aspect the standard deviation (n − 1) of the rounds' scores, averaged; it needs two
  readable rounds. A single call has none, and a dash.
- Agreement of two methods of one model and persona: the scores after equation 1, on dialogues that both scored.
- Correlation with people, where there are scores of theirs: on dialogues that they, all judges and all methods scored.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from core.grouping import group_by
from core.records import Count, Judgement, Language, Record
from core.rubrics import Rubric
from core.statistics.bootstrap import estimate, resampled_means
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.band_lines import read_bands
from evalsuite.statistics.ensemble import Aspect, Panel, Scores, panel_of
from evalsuite.statistics.ensemble_tables import FEEL, correlated
from evalsuite.statistics.summary import scorer_of


class Cost(Record):
    """What one scorer (`Scorer.name`) cost on all dialogues together, as its server counted: costs.jsonl of `feel score`."""

    judge: str
    dialogues: Annotated[Count, Field(gt=0)]
    calls: Count
    prompt_tokens: Count
    completion_tokens: Count

    def each(self) -> tuple[float, float, float]:
        """Calls, prompt tokens and completion tokens a dialogue."""
        return self.calls / self.dialogues, self.prompt_tokens / self.dialogues, self.completion_tokens / self.dialogues


def method_table(judgements: Sequence[Judgement], rubric: Rubric, costs: Sequence[Cost]) -> Table:
    """One row a scorer and language: verdicts, how many could be read, how many did not sum to 1, spread, cost (a dash for a
    scorer without any in `costs`)."""
    of_scorer = group_by(judgements, lambda judgement: (scorer_of(judgement).name, judgement.language))
    paid = {cost.judge: cost.each() for cost in costs}
    rows: list[tuple[Cell, ...]] = []
    for (scorer, language), verdicts in of_scorer.items():
        read = 100 * sum(judgement.value is not None for judgement in verdicts) / len(verdicts)
        figures = (len(verdicts), read, _off_sum(verdicts, rubric, language), _spread(verdicts))
        rows.append((scorer, language, *figures, *paid.get(scorer, (None, None, None))))
    columns = ("scorer", "language", "verdicts", "read %", "sum off %", "spread of the rounds")
    paid_for = ("calls a dialogue", "prompt tokens a dialogue", "completion tokens a dialogue")
    return Table(
        key="feel_methods",
        title="Rounds of band probabilities and token probabilities",
        columns=(*columns, *paid_for),
        rows=tuple(rows),
        notes=(
            "Spread: standard deviation of a dialogue's rounds on an aspect, averaged, [95 % bootstrap over dialogues], "
            "n = dialogues. Sum off: verdicts whose numbers could be read and do not sum to 1 ± 0.02.",
            "Costs are over all languages that were asked together.",
        ),
        section=FEEL,
    )


def _off_sum(judgements: Sequence[Judgement], rubric: Rubric, language: Language) -> float | None:
    """In per cent of the verdicts that have numbers; None where no verdict has any."""
    lines = [read_bands(j.raw, rubric, language)[j.dimension] for j in judgements if j.method == "bands"]
    read = [line for line in lines if line is not None]
    return 100 * sum(not line.sums_to_one for line in read) / len(read) if read else None


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
    sums = np.array([[sum(listed)] for listed in values.values()], dtype=np.float64)
    counts = np.array([[len(listed)] for listed in values.values()], dtype=np.float64)
    return estimate(float(sums.sum() / counts.sum()), resampled_means(sums, counts)[:, 0], len(values), len(values))


def people_table(panel: Panel, people: Scores) -> Table:
    """Spearman's correlation of every scorer with people, scorers and languages × aspects. What a scorer has no score on at all
    is a dash and takes no dialogue from the others."""
    cells: dict[tuple[str, Language], dict[str, Estimate]] = defaultdict(dict)
    aspects: dict[Aspect, None] = dict.fromkeys(aspect for scores in panel.values() for aspect in scores if aspect in people)
    for aspect in aspects:
        scored = {scorer: scores[aspect] for scorer, scores in panel.items() if scores.get(aspect)}
        ids = sorted(set(people[aspect]).intersection(*scored.values()))
        for scorer, scores in scored.items():
            cells[scorer, aspect.language][aspect.dimension] = correlated(scores, people[aspect], ids)["spearman"]
    names = list(dict.fromkeys(aspect.dimension for aspect in aspects))
    return Table(
        key="feel_methods_people",
        title="Methods against people (spearman)",
        columns=("scorer", "language", *names),
        rows=tuple((*who, *(scores.get(name) for name in names)) for who, scores in cells.items()),
        notes=("From -1 to 1, [95 % bootstrap over dialogues], n = dialogues that people and all these scorers scored.",),
        section=FEEL,
    )


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
            for aspect in (aspect for aspect in bands if aspect in tokens):
                ids = sorted(set(bands[aspect]) & set(tokens[aspect]))
                gaps = {i: bands[aspect][i] - tokens[aspect][i] for i in ids}
                both = [
                    _mean({i: [gap] for i, gap in signed.items()}) for signed in (gaps, {i: abs(g) for i, g in gaps.items()})
                ]
                rows.append((who, *aspect, correlated(bands[aspect], tokens[aspect], ids)["spearman"], *both))
    return Table(
        key="feel_method_agreement",
        title="Band probabilities against token probabilities",
        columns=("judge", "language", "aspect", "Spearman", "bands − tokens", "|bands − tokens|"),
        rows=tuple(rows),
        notes=("On the scores of equation 1, in points; [95 % bootstrap over dialogues], n = dialogues that both scored.",),
        section=FEEL,
    )
