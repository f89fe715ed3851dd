"""Runs side by side, as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson

from core.rubrics import Rubric
from core.specs import EMBEDDED_PREFIX
from core.tables import Cell, Table
from evalsuite.statistics import paired
from evalsuite.statistics.comparison import Comparison, LanguageComparison, ambiguous_cards
from evalsuite.statistics.leaderboard import score_cells, score_columns, score_notes
from evalsuite.statistics.summary import AVERAGE, SCORES, checked, dimension_label, scorer_of

CONFIGS = "Configuration"


def tables(comparison: Comparison) -> list[Table]:
    """The runs, per language scores and differences, and what else changed."""
    made = [_runs_table(comparison)]
    for part in comparison.languages:
        made.append(_scores_table(comparison, part))
        if part.differences:
            made.append(_differences_table(comparison, part))
    rows: list[tuple[Cell, ...]] = [
        (name, other, line) for name, other, lines in comparison.changed for line in lines or ["no difference"]
    ]
    columns = ("run", "compared with", "setting: old → new")
    return [*made, Table("compare-config", "What else changed", columns, tuple(rows), section=CONFIGS)]


def _runs_table(comparison: Comparison) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for run in comparison.runs:
        scorers = sorted({scorer_of(judgement).name for judgement in checked(run.judgements, run.rubric)})
        counts = [part.cards.get(run.name, 0) for part in comparison.languages]
        rows.append((run.name, len(run.dialogues), *counts, "; ".join(scorers)))
    shared = ", ".join(f"{part.language} {part.shared}" for part in comparison.languages)
    notes = [f"Cards (dialogues without a card: themselves) that all runs have: {shared}."]
    if ambiguous := ambiguous_cards(comparison.runs):
        notes.append(f"Cards of the same id but other contents in several runs, counted as different cards: {len(ambiguous)}.")
    if plumbing := [run.name for run in comparison.runs if f'"{EMBEDDED_PREFIX}' in orjson.dumps(run.config).decode()]:
        notes.append(
            f"Plumbing: scores that involve the embedded 135M model say nothing about quality ({', '.join(plumbing)})."
        )
    heads = [f"cards, {part.language}" for part in comparison.languages]
    return Table("compare-runs", "Runs", ("run", "dialogues", *heads, "judged by"), tuple(rows), tuple(notes), SCORES)


def _scores_table(comparison: Comparison, part: LanguageComparison) -> Table:
    cells = [cell for entry in part.entries for cell in entry.scores]
    several = len({entry.contestant.scorer for entry in part.entries}) > 1
    return Table(
        key=f"compare-scores-{part.language}",
        title=f"Scores side by side, {part.language}" + (" (expected scores)" if comparison.value == "expected" else ""),
        columns=("supporter", "run", *["judged by"] * several, *score_columns(comparison.rubric)),
        rows=tuple(
            (entry.name, entry.run, *[entry.contestant.scorer.name] * several, *score_cells(entry.scores))
            for entry in part.entries
        ),
        notes=tuple(score_notes(cells, comparison.rubric, comparison.value)),
        section=SCORES,
    )


def _differences_table(comparison: Comparison, part: LanguageComparison) -> Table:
    """Pairs without shared cards are named in a note: their rows would be dashes only."""
    dimensions = len(comparison.rubric.dimensions)
    rows: list[tuple[Cell, ...]] = []
    apart: list[str] = []
    mixed = False
    for start in range(0, len(part.differences), dimensions + 1):
        block = part.differences[start : start + dimensions + 1]
        first, second = part.entries[block[0].first], part.entries[block[0].second]
        if not block[-1].estimate.n:
            apart.append(f"{first.name} with {second.name}")
            continue
        mixed |= first.contestant.scorer != second.contestant.scorer
        for one in block:
            dimension = _dimension(comparison.rubric, one)
            label = dimension if dimension == AVERAGE else dimension_label(comparison.rubric, dimension)
            rows.append((first.name, second.name, label, one.first_mean, one.second_mean, *paired.cells(one)))
    notes = (
        [paired.NOTE, "Both means are over the shared cards only, so they may differ from the scores side by side."]
        if rows
        else []
    )
    if mixed:
        notes.append("Where the judges differ, a difference is the judges' as well as the supporters'.")
    if apart:
        notes.append(f"Not compared, since they share no cards: {', '.join(apart)}.")
    return Table(
        key=f"compare-differences-{part.language}",
        title=f"Differences between runs, {part.language}",
        columns=("supporter", "against", "dimension", "mean", "mean against", *paired.COLUMNS),
        rows=tuple(rows),
        notes=tuple(notes),
        section=SCORES,
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values in full precision."""
    return {
        "rubric": comparison.rubric.name,
        "value": comparison.value,
        "runs": [
            {"name": run.name, "dialogues": len(run.dialogues), "judgements": len(run.judgements)} for run in comparison.runs
        ],
        "languages": {
            part.language: {
                "cards": part.cards | {"shared": part.shared},
                "scores": [
                    {"name": entry.name, "run": entry.run, "supporter": cell.supporter, "judged_by": cell.scorer.name}
                    | {"dimension": cell.dimension, "asked": cell.asked, "read": cell.read}
                    | asdict(cell.estimate)
                    for entry in part.entries
                    for cell in entry.scores
                ],
                "differences": [
                    {"name": part.entries[one.first].name, "against": part.entries[one.second].name}
                    | {"dimension": _dimension(comparison.rubric, one)}
                    | {"mean_first": one.first_mean, "mean_against": one.second_mean}
                    | {"difference": one.estimate.mean, "low": one.estimate.low, "high": one.estimate.high}
                    | {"cards": one.estimate.n, "p": one.p, "p_holm": one.holm, "holds": one.holds}
                    for one in part.differences
                ],
            }
            for part in comparison.languages
        },
        "config_differences": [
            {"run": name, "compared_with": other, "differences": lines} for name, other, lines in comparison.changed
        ],
    }


def _dimension(rubric: Rubric, difference: paired.Difference) -> str:
    return AVERAGE if difference.dimension is None else list(rubric.dimensions)[difference.dimension]
