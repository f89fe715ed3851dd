"""FEEL's tables: the ensemble compared with its judges (tables 1, 2 and 4: correlation with people, aspect by aspect), and
rounds of band probabilities compared with one call for token probabilities.

- Spread of the rounds: the standard deviation (n − 1) of the rounds' scores per dialogue and aspect, averaged; it needs two
  readable rounds, so a single call has a dash.
- Agreement of the two methods of one model and persona: on the scores of equation 1, over dialogues that both scored.
"""

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
    "paper": "As in the paper, weights are fitted on the same dialogues that are reported on, which flatters the ensemble.",
    "native": "On dialogues that were not used to fit the weights.",
}
NOTE = "From -1 to 1, [95 % percentile bootstrap over dialogues], n = dialogues that people and all judges scored."


@dataclass(frozen=True)
class Row:
    """One scorer's correlation with people on one aspect: coefficients (−1 to 1) with 95 % bootstrap intervals over dialogues.

    All rows of an aspect and mode are over the same dialogues: those scored by every judge that has any score on the aspect.
    """

    mode: Mode
    language: Language
    dimension: str
    scorer: str
    spearman: Estimate
    kendall: Estimate


def report(panel: Panel, people: Scores, weights: Weights, dialogues: Iterable[str]) -> list[Row]:
    """Every judge, their unweighted mean, the ensemble, and with three or more judges the ensembles without one (table 4)."""
    chosen, rows = set(dialogues), []
    by_aspect, judges = weights.by_aspect(), sorted(panel)
    fewer = {ensemble.lacking(judge): ensemble.without(weights, judge) for judge in judges} if len(judges) > 2 else {}
    for aspect, weight in by_aspect.items():
        scoring = [judge for judge in judges if panel[judge].get(aspect)]
        shared = chosen & {i for i in people[aspect] if all(i in panel[judge][aspect] for judge in scoring)}
        contestants = {judge: panel[judge].get(aspect, {}) for judge in judges}
        sets = {EVEN: dict.fromkeys(scoring, 1 / len(scoring)), ENSEMBLE: weight}
        for name, shares in (sets | {name: shares[aspect] for name, shares in fewer.items()}).items():
            contestants[name] = ensemble.ensemble_scores(panel, {aspect: shares})[aspect]
        for name, scores in contestants.items():
            coefficients = correlated(scores, people[aspect], sorted(shared & set(scores)))
            rows.append(Row(weights.mode, *aspect, name, coefficients["spearman"], coefficients["kendall"]))
    return rows


def fit_modes(
    panel: Panel, people: Scores, rubric: str, groups: Mapping[str, str] | None
) -> tuple[list[Weights], list[Row], str | None]:
    """Weights of both modes with their rows, and why native mode is left out, if it is.

    `groups`: dialogue → its group, which is never split; None: every dialogue is a group. Native mode fits on about half of the
    dialogues. Raises `UserError` for a dialogue that `groups` lacks.
    """
    by_aspect = [pair for scores in panel.values() for pair in scores.items()]
    shared = {i for aspect, scores in by_aspect for i in set(scores) & set(people.get(aspect, {}))}
    groups = {i: f"dialogue {i}" for i in shared} if groups is None else groups
    if missing := sorted(shared - set(groups)):
        raise UserError(f"--dialogues: no dialogue {missing[0]!r}, which judges and people scored ({len(missing)} are missing)")
    paper = ensemble.fit(panel, people, shared, rubric, "paper")
    weights, rows = [paper], report(panel, people, paper, shared)
    try:
        chosen = ensemble.part({i: groups[i] for i in shared}, 0.5, 0)
    except UserError as error:
        return weights, rows, str(error)
    native = ensemble.fit(panel, people, chosen, rubric, "native", 0)
    return [paper, native], rows + report(panel, people, native, shared - chosen), None


def correlated(a: Mapping[str, float], b: Mapping[str, float], dialogues: Sequence[str]) -> dict[Coefficient, Estimate]:
    """The correlation of two scores of the same dialogues: coefficients, −1 to 1, with 95 % bootstrap intervals over them."""
    x, y = (np.array([scores[i] for i in dialogues], dtype=np.float64) for scores in (a, b))
    found = figures(x, y, np.arange(len(dialogues), dtype=np.intp), "dataset")
    return {name: estimate for name, (estimate, _, _) in found.items()}


def fit_tables(fitted: Sequence[Weights], rows: Sequence[Row]) -> Iterator[Table]:
    """Weights, and tables 1 and 2 of the paper (scorers × aspects), one per mode, language and coefficient."""
    weight_rows: list[tuple[Cell, ...]] = []
    for weights in fitted:
        positive = {(w.language, w.dimension) for w in weights.weights if (w.correlation or 0) > 0}
        for w in weights.weights:
            rule = "even" if (w.language, w.dimension) not in positive else "equation 2" if w.weight else "0 by rule"
            weight_rows.append((weights.mode, w.language, w.dimension, w.judge, w.correlation, w.n, w.weight, rule))
    notes = (
        "Weight: Spearman's correlation over the sum of the judges' (equation 2); negative and undefined ones count 0. even: "
        "no judge of that aspect correlates with people above 0, so all have equal weights.",
    )
    columns = ("mode", "language", "aspect", "judge", "Spearman", "n", "weight", "by")
    yield Table("feel_weights", "Weights of the judges", columns, tuple(weight_rows), notes, FEEL, decimals=3)
    for (mode, language), part in group_by(rows, lambda row: (row.mode, row.language)).items():
        scorers, aspects = dict.fromkeys(row.scorer for row in part), dict.fromkeys(row.dimension for row in part)
        for name in ("spearman", "kendall"):
            cells = {(row.scorer, row.dimension): getattr(row, name) for row in part}
            title = f"Judges and ensemble against people ({name}), {language}, {mode} mode"
            body = tuple((scorer, *(cells.get((scorer, aspect)) for aspect in aspects)) for scorer in scorers)
            yield Table(
                f"feel_{name}_{mode}_{language}", title, ("scorer", *aspects), body, (FITTED[mode], NOTE), FEEL, decimals=3
            )


# --- band and token probabilities -------------------------------------------------------------------------------------------


class Cost(Record):
    """A line of costs.jsonl: one scorer's (`Scorer.name`) cost on all dialogues together, as its server counted."""

    judge: Annotated[Name, Spelt("judge")]
    dialogues: Annotated[Count, Field(gt=0)]
    calls: Count
    prompt_tokens: Count
    completion_tokens: Count


def method_table(
    judgements: Sequence[Judgement], costs: Sequence[Cost], off_sum: Callable[[Sequence[Judgement]], float | None]
) -> Table:
    """One row per scorer and language: verdicts, shares read and not summing to 1 (`off_sum`), both in per cent, spread, and
    cost (a dash for a scorer that is not in `costs`)."""
    by_scorer = group_by(judgements, lambda judgement: (scorer_of(judgement).name, judgement.language))
    prices = {c.judge: [n / c.dialogues for n in (c.calls, c.prompt_tokens, c.completion_tokens)] for c in costs}
    rows: list[tuple[Cell, ...]] = []
    for (scorer, language), verdicts in by_scorer.items():
        read = 100 * sum(judgement.value is not None for judgement in verdicts) / len(verdicts)
        figures = (len(verdicts), read, off_sum(verdicts), _spread(verdicts))
        rows.append((scorer, language, *figures, *prices.get(scorer, (None, None, None))))
    units = ("calls per dialogue", "prompt tokens per dialogue", "completion tokens per dialogue")
    columns = ("scorer", "language", "verdicts", "read %", "sum off %", "spread of the rounds", *units)
    notes = (
        "Spread: standard deviation of a dialogue's rounds on an aspect, averaged, [95 % percentile bootstrap over dialogues], "
        "n = dialogues. Sum off: verdicts whose numbers could be read and do not sum to 1 ± 0.02.",
        "Costs are per dialogue over all languages of the run.",
    )
    return Table("feel_methods", "Rounds of band probabilities and token probabilities", columns, tuple(rows), notes, FEEL)


def _spread(judgements: Sequence[Judgement]) -> Estimate:
    read = [judgement for judgement in judgements if judgement.value is not None]
    spreads: dict[str, list[float]] = defaultdict(list)
    for (dialogue, _), rounds in group_by(read, lambda judgement: (judgement.dialogue_id, judgement.dimension)).items():
        if len(rounds) > 1:
            spreads[dialogue].append(statistics.stdev(judgement.value or 0.0 for judgement in rounds))
    return _mean(spreads)


def _mean(values: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean of all numbers, with an interval over dialogues, which are resampled whole; n counts dialogues."""
    if not values:
        return Estimate(None, None, None, 0)
    sums, counts = (np.array([[f(numbers)] for numbers in values.values()], dtype=np.float64) for f in (sum, len))
    return estimate(float(sums.sum() / counts.sum()), resampled_means(sums, counts)[:, 0], len(values), len(values))


def agreement_table(judgements: Sequence[Judgement]) -> Table:
    """The two methods of every judge against each other, one row per aspect; no row for a judge asked by one method only."""
    by_judge = group_by(map(scorer_of, judgements), lambda scorer: (scorer.judge, scorer.condition))
    panel = panel_of(judgements)
    rows: list[tuple[Cell, ...]] = []
    for (judge, condition), scorers in by_judge.items():
        methods = {scorer.method: scorer.name for scorer in scorers}
        if {"bands", "tokens"} <= methods.keys():
            bands, tokens = panel[methods["bands"]], panel[methods["tokens"]]
            name = PARTED.join([judge, *(f"{key}={value}" for key, value in condition)])
            for aspect in (aspect for aspect in bands if aspect in tokens):
                ids = sorted(set(bands[aspect]) & set(tokens[aspect]))
                gaps = {i: [bands[aspect][i] - tokens[aspect][i]] for i in ids}
                means = _mean(gaps), _mean({i: [abs(gap)] for i, (gap,) in gaps.items()})
                rows.append((name, *aspect, correlated(bands[aspect], tokens[aspect], ids)["spearman"], *means))
    columns = ("judge", "language", "aspect", "Spearman", "bands − tokens", "|bands − tokens|")
    note = "On the scores of equation 1, in points; [95 % percentile bootstrap over dialogues], n = dialogues that both scored."
    title = "Band probabilities against token probabilities"
    return Table("feel_method_agreement", title, columns, tuple(rows), (note,), FEEL, decimals=3)
