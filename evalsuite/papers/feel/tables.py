"""FEEL's tables: the ensemble beside its judges (tables 1, 2 and 4: correlation with people, aspect by aspect), and rounds of
band probabilities beside one call for token probabilities.

- Spread of the rounds: per dialogue and aspect the standard deviation (n − 1) of the rounds' scores, averaged; it needs two
  readable rounds. A single call has none, and a dash.
- Agreement of two methods of one model and persona: the scores after equation 1, on dialogues that both scored.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from core.errors import UserError
from core.grouping import group_by
from core.names import Spelt
from core.records import Count, Judgement, Language, Name, Record
from core.statistics.bootstrap import estimate, resampled_means
from core.tables import PARTED, Cell, Estimate, Table
from evalsuite.papers.feel import ensemble
from evalsuite.papers.feel.ensemble import ENSEMBLE, Mode, Panel, Scores, Weights, panel_of
from evalsuite.statistics.coefficients import Coefficient, figures
from evalsuite.statistics.summary import scorer_of

FEEL = "FEEL"  # heading of the tables
EVEN = "mean of the judges"
FITTED: dict[Mode, str] = {
    "paper": "Weights are fitted on the very dialogues that are reported on, as in the paper: this flatters the ensemble.",
    "native": "On dialogues that the weights were not fitted on.",
}
NOTE = "From -1 to 1, [95 % percentile bootstrap over dialogues], n = dialogues that people and all judges scored."


@dataclass(frozen=True)
class Row:
    """How one scorer goes with people on one aspect: coefficients (−1 to 1) with 95 % bootstrap intervals over dialogues.

    Rows of one aspect and mode are over the same dialogues: those that all judges with any score on it scored.
    """

    mode: Mode
    language: Language
    dimension: str
    scorer: str
    spearman: Estimate
    kendall: Estimate


def report(panel: Panel, people: Scores, weights: Weights, dialogues: Iterable[str]) -> list[Row]:
    """Every judge, their unweighted mean, the ensemble, and with three or more judges the ensembles that lack one (table 4)."""
    chosen, rows = set(dialogues), []
    by_aspect, judges = weights.by_aspect(), sorted(panel)
    fewer = {ensemble.lacking(judge): ensemble.without(weights, judge) for judge in judges} if len(judges) > 2 else {}
    for aspect, weight in by_aspect.items():
        able = [judge for judge in judges if panel[judge].get(aspect)]
        shared = chosen & {i for i in people[aspect] if all(i in panel[judge][aspect] for judge in able)}
        contestants = {judge: panel[judge].get(aspect, {}) for judge in judges}
        sets = {EVEN: dict.fromkeys(able, 1 / len(able)), ENSEMBLE: weight}
        sets |= {name: shares[aspect] for name, shares in fewer.items()}
        for name, shares in sets.items():
            contestants[name] = ensemble.ensemble_scores(panel, {aspect: shares})[aspect]
        for name, scores in contestants.items():
            both = correlated(scores, people[aspect], sorted(shared & set(scores)))
            rows.append(Row(weights.mode, *aspect, name, both["spearman"], both["kendall"]))
    return rows


def fit_modes(
    panel: Panel, people: Scores, rubric: str, known: Mapping[str, str] | None, share: float = 0.5, seed: int = 0
) -> tuple[list[Weights], list[Row], str | None]:
    """Weights of both modes with their rows, and why native mode is left out where it cannot be had.

    `known` maps dialogue → its group, which stays in one part; without it, each is on its own. Native mode fits on about
    `share` (0–1) of the dialogues, drawn by the seed. Raises `UserError` for a dialogue that `known` lacks.
    """
    shared = {
        i
        for by_aspect in panel.values()
        for aspect, scores in by_aspect.items()
        for i in set(scores) & set(people.get(aspect, {}))
    }
    groups = {i: f"dialogue {i}" for i in shared} if known is None else known
    if lost := sorted(shared - set(groups)):
        raise UserError(f"--dialogues: no dialogue {lost[0]!r}, which judges and people scored ({len(lost)} are not there)")
    paper = ensemble.fit(panel, people, shared, rubric, "paper")
    weights, rows = [paper], report(panel, people, paper, shared)
    try:
        chosen = ensemble.part({i: groups[i] for i in shared}, share, seed)
    except UserError as error:
        return weights, rows, str(error)
    native = ensemble.fit(panel, people, chosen, rubric, "native", seed)
    return [paper, native], rows + report(panel, people, native, shared - chosen), None


def correlated(one: Mapping[str, float], other: Mapping[str, float], dialogues: Sequence[str]) -> dict[Coefficient, Estimate]:
    """How two scores of the same dialogues go together: coefficients, −1 to 1, with 95 % bootstrap intervals over dialogues."""
    x, y = (np.array([side[i] for i in dialogues], dtype=np.float64) for side in (one, other))
    by_coefficient = figures(x, y, np.arange(len(dialogues), dtype=np.intp), "dataset")
    return {name: estimate for name, (estimate, _, _) in by_coefficient.items()}


def fit_tables(fitted: Sequence[Weights], rows: Sequence[Row]) -> Iterator[Table]:
    """Weights, and tables 1 and 2 of the paper (scorers × aspects), one a mode, language and coefficient."""
    yield _weight_table(fitted)
    for (mode, language), of_language in group_by(rows, lambda row: (row.mode, row.language)).items():
        aspects = list(dict.fromkeys(row.dimension for row in of_language))
        for name in ("spearman", "kendall"):
            cells = {(row.scorer, row.dimension): getattr(row, name) for row in of_language}
            yield Table(
                key=f"feel_{name}_{mode}_{language}",
                title=f"Judges and ensemble against people ({name}), {language}, {mode} mode",
                columns=("scorer", *aspects),
                rows=tuple((s, *(cells.get((s, a)) for a in aspects)) for s in group_by(of_language, lambda row: row.scorer)),
                notes=(FITTED[mode], NOTE),
                section=FEEL,
                decimals=3,
            )


def _weight_table(fitted: Sequence[Weights]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for weights in fitted:
        positive = {(w.language, w.dimension) for w in weights.weights if (w.correlation or 0) > 0}
        for w in weights.weights:
            rule = "even" if (w.language, w.dimension) not in positive else "equation 2" if w.weight else "0 by rule"
            rows.append((weights.mode, w.language, w.dimension, w.judge, w.correlation, w.n, w.weight, rule))
    notes = ["Weight: Spearman's correlation over the sum of the judges' (equation 2); negative and undefined ones count 0."]
    if any(row[-1] == "even" for row in rows):
        notes.append("even: no judge of that aspect goes with people, all weigh the same.")
    return Table(
        key="feel_weights",
        title="Weights of the judges",
        columns=("mode", "language", "aspect", "judge", "Spearman", "n", "weight", "by"),
        rows=tuple(rows),
        notes=tuple(notes),
        section=FEEL,
        decimals=3,
    )


# --- band and token probabilities -------------------------------------------------------------------------------------------


class Cost(Record):
    """What one scorer (`Scorer.name`) cost on all dialogues together, as its server counted: a line of costs.jsonl."""

    judge: Annotated[Name, Spelt("judge")]
    dialogues: Annotated[Count, Field(gt=0)]
    calls: Count
    prompt_tokens: Count
    completion_tokens: Count

    def each(self) -> tuple[float, float, float]:
        """Calls, prompt tokens and completion tokens per dialogue."""
        return self.calls / self.dialogues, self.prompt_tokens / self.dialogues, self.completion_tokens / self.dialogues


def method_table(
    judgements: Sequence[Judgement], costs: Sequence[Cost], off_sum: Callable[[Sequence[Judgement]], float | None]
) -> Table:
    """One row a scorer and language: verdicts, how many could be read, how many did not sum to 1 (`off_sum`, per cent), spread,
    cost (a dash for a scorer without any in `costs`)."""
    of_scorer = group_by(judgements, lambda judgement: (scorer_of(judgement).name, judgement.language))
    paid = {cost.judge: cost.each() for cost in costs}
    rows: list[tuple[Cell, ...]] = []
    for (scorer, language), verdicts in of_scorer.items():
        read = 100 * sum(judgement.value is not None for judgement in verdicts) / len(verdicts)
        figures = (len(verdicts), read, off_sum(verdicts), _spread(verdicts))
        rows.append((scorer, language, *figures, *paid.get(scorer, (None, None, None))))
    paid_for = ("calls per dialogue", "prompt tokens per dialogue", "completion tokens per dialogue")
    return Table(
        key="feel_methods",
        title="Rounds of band probabilities and token probabilities",
        columns=("scorer", "language", "verdicts", "read %", "sum off %", "spread of the rounds", *paid_for),
        rows=tuple(rows),
        notes=(
            "Spread: standard deviation of a dialogue's rounds on an aspect, averaged, [95 % percentile bootstrap over "
            "dialogues], n = dialogues. Sum off: verdicts whose numbers could be read and do not sum to 1 ± 0.02.",
            "Costs are over all languages that were asked together.",
        ),
        section=FEEL,
    )


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
            who = PARTED.join([judge, *(f"{key}={value}" for key, value in condition)])
            for aspect in (aspect for aspect in bands if aspect in tokens):
                ids = sorted(set(bands[aspect]) & set(tokens[aspect]))
                gaps = {i: [bands[aspect][i] - tokens[aspect][i]] for i in ids}
                both = _mean(gaps), _mean({i: [abs(gap)] for i, (gap,) in gaps.items()})
                rows.append((who, *aspect, correlated(bands[aspect], tokens[aspect], ids)["spearman"], *both))
    return Table(
        key="feel_method_agreement",
        title="Band probabilities against token probabilities",
        columns=("judge", "language", "aspect", "Spearman", "bands − tokens", "|bands − tokens|"),
        rows=tuple(rows),
        notes=(
            "On the scores of equation 1, in points; [95 % percentile bootstrap over dialogues], n = dialogues that both "
            "scored.",
        ),
        section=FEEL,
        decimals=3,
    )
