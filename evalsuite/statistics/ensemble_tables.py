"""What FEEL's ensemble comes to beside its judges (tables 1, 2 and 4 of FEEL): correlation with people, aspect by aspect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import Language
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.coefficients import Coefficient, figures
from evalsuite.statistics.ensemble import ENSEMBLE, Mode, Panel, Scores, Weights, ensemble_scores, fit, lacking, part, without

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

    def record(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("mode", "language", "dimension", "scorer")}
        return fields | {"spearman": self.spearman.record(), "kendall": self.kendall.record()}


def report(panel: Panel, people: Scores, weights: Weights, dialogues: Iterable[str]) -> list[Row]:
    """Every judge, their unweighted mean, the ensemble, and with three or more judges the ensembles that lack one (table 4)."""
    chosen, rows = set(dialogues), []
    by_aspect, judges = weights.by_aspect(), sorted(panel)
    fewer = {lacking(judge): without(weights, judge) for judge in judges} if len(judges) > 2 else {}
    for aspect, weight in by_aspect.items():
        able = [judge for judge in judges if panel[judge].get(aspect)]
        shared = chosen & {i for i in people[aspect] if all(i in panel[judge][aspect] for judge in able)}
        contestants = {judge: panel[judge].get(aspect, {}) for judge in judges}
        sets = {EVEN: dict.fromkeys(able, 1 / len(able)), ENSEMBLE: weight}
        sets |= {name: shares[aspect] for name, shares in fewer.items()}
        for name, shares in sets.items():
            contestants[name] = ensemble_scores(panel, {aspect: shares})[aspect]
        for name, scores in contestants.items():
            both = correlated(scores, people[aspect], sorted(shared & set(scores)))
            rows.append(Row(weights.mode, *aspect, name, both["spearman"], both["kendall"]))
    return rows


def fit_modes(
    panel: Panel, people: Scores, rubric: str, known: Mapping[str, str] | None, share: float, seed: int, needed: Mode
) -> tuple[list[Weights], list[Row], str | None]:
    """Weights of both modes with their rows, and why native mode is left out where it cannot be had and is not `needed`.

    `known` maps dialogue → its group, which stays in one part; without it, each is on its own. Raises `UserError` for a
    dialogue that it lacks.
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
    paper = fit(panel, people, shared, rubric, "paper")
    weights, rows = [paper], report(panel, people, paper, shared)
    try:
        chosen = part({i: groups[i] for i in shared}, share, seed)
    except UserError as error:
        if needed == "native":
            raise
        return weights, rows, str(error)
    native = fit(panel, people, chosen, rubric, "native", seed)
    return [paper, native], rows + report(panel, people, native, shared - chosen), None


def correlated(one: Mapping[str, float], other: Mapping[str, float], dialogues: Sequence[str]) -> dict[Coefficient, Estimate]:
    """How two scores of the same dialogues go together: coefficients, −1 to 1, with 95 % bootstrap intervals over dialogues."""
    x, y = (np.array([side[i] for i in dialogues], dtype=np.float64) for side in (one, other))
    by_coefficient = figures(x, y, np.arange(len(dialogues), dtype=np.intp), "dataset")
    return {name: estimate for name, (estimate, _, _) in by_coefficient.items()}


def fit_tables(fitted: Sequence[Weights], rows: Sequence[Row]) -> list[Table]:
    """Weights, and tables 1 and 2 of the paper (scorers × aspects), one a mode, language and coefficient."""
    tables = [_weight_table(fitted)]
    for (mode, language), of_language in group_by(rows, lambda row: (row.mode, row.language)).items():
        aspects = list(dict.fromkeys(row.dimension for row in of_language))
        for name in ("spearman", "kendall"):
            cells = {(row.scorer, row.dimension): getattr(row, name) for row in of_language}
            tables.append(
                Table(
                    key=f"feel_{name}_{mode}_{language}",
                    title=f"Judges and ensemble against people ({name}), {language}, {mode} mode",
                    columns=("scorer", *aspects),
                    rows=tuple(
                        (s, *(cells.get((s, a)) for a in aspects)) for s in group_by(of_language, lambda row: row.scorer)
                    ),
                    notes=(FITTED[mode], NOTE),
                    section=FEEL,
                )
            )
    return tables


def _weight_table(fitted: Sequence[Weights]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    uneven = True
    for weight in fitted:
        none_positive = {
            aspect
            for aspect in weight.by_aspect()
            if not any((w.correlation or 0) > 0 for w in weight.weights if (w.language, w.dimension) == aspect)
        }
        uneven = uneven and not none_positive
        for w in weight.weights:
            rule = "even" if (w.language, w.dimension) in none_positive else "equation 2" if w.weight else "0 by rule"
            rows.append((weight.mode, w.language, w.dimension, w.judge, w.correlation, w.n, w.weight, rule))
    notes = ["Weight: Spearman's correlation over the sum of the judges' (equation 2); negative and undefined ones count 0."]
    notes += [] if uneven else ["even: no judge of that aspect goes with people, all weigh the same."]
    return Table(
        key="feel_weights",
        title="Weights of the judges",
        columns=("mode", "language", "aspect", "judge", "Spearman", "n", "weight", "by"),
        rows=tuple(rows),
        notes=tuple(notes),
        section=FEEL,
    )
