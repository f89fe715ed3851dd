"""How well scores tell models apart, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from core.rubrics import Rubric
from core.tables import Cell, Table
from evalsuite.statistics import paired
from evalsuite.statistics.discrimination import CORRECTION, TEST, Discrimination, RunDiscrimination
from evalsuite.statistics.summary import dimension_label

DISCRIMINATION = "Discrimination"  # heading of the report
_COLUMNS = ("users", "models", "MSR", "MAC", "F (paper)", "F", "p", "pairs", "told apart")
_NOTES = (
    "MSR: variance of the models' means by the mean variance among a model's users; MAC: MSR / (1 + MSR); both with [95 % "
    "interval by the noncentral F distribution] and n = ratings. F (paper): the paper's formula 13; F and p: one-way analysis "
    "of variance, which does not know that the same users rated all models. Chance alone lifts MSR: where models hardly "
    "differ, the interval lies below the figure.",
    f"Told apart: share of the pairs of models whose difference holds ({TEST}; {CORRECTION}'s correction over the pairs, "
    f"{paired.ALPHA:g}).",
)


def tables(discrimination: Discrimination) -> list[Table]:
    """Of one set of ratings: its figures, and every pair."""
    heads = ("scores",)
    return [
        _figures_table("discrimination", "Discrimination", heads, [(("given",), discrimination)]),
        *_pair_tables(discrimination),
    ]


def run_tables(rows_of_run: Sequence[RunDiscrimination], rubric: Rubric) -> list[Table]:
    """Of a run: one table a language. (Its pairs are in the leaderboard's table of differences and in the JSON.)"""
    result = []
    for language, group in groupby(rows_of_run, key=lambda row: row.language):
        lines = list(group)
        several = len({row.scorer for row in lines}) > 1
        heads = (*["judged by"] * several, "dimension")
        rows = [((*[row.scorer.name] * several, _label(rubric, row.dimension)), row.discrimination) for row in lines]
        result.append(_figures_table(f"discrimination-{language}", f"Discrimination, {language}", heads, rows))
    return result


def _label(rubric: Rubric, dimension: str) -> str:
    return dimension_label(rubric, dimension) if dimension in rubric.dimensions else dimension


def _figures_table(
    key: str, title: str, heads: tuple[str, ...], lines: Sequence[tuple[tuple[str, ...], Discrimination]]
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for names, figures in lines:
        tests = figures.f_paper, figures.f, _p(figures.p)
        rows.append(
            (
                *names,
                figures.users,
                len(figures.models),
                figures.msr,
                figures.mac,
                *tests,
                len(figures.pairs),
                figures.proportion,
            )
        )
    missing = sum(figures.missing for _, figures in lines)
    reasons: dict[str, list[str]] = {}
    for names, figures in lines:
        for reason in dict.fromkeys(figures.undefined.values()):
            what = ", ".join(name for name, why in figures.undefined.items() if why == reason)
            reasons.setdefault(f"{what} undefined: {reason}", []).append(" ".join(names))
    notes = (
        *_NOTES,
        *([f"Missing ratings: {missing}; a model's mean and variance are over its own users."] if missing else []),
        *(f"{told} ({', '.join(who)})." for told, who in reasons.items()),
    )
    return Table(key, title, (*heads, *_COLUMNS), tuple(rows), notes, DISCRIMINATION)


def _pair_tables(discrimination: Discrimination) -> list[Table]:
    rows = [
        (discrimination.models[pair.first], discrimination.models[pair.second], *paired.cells(pair))
        for pair in discrimination.pairs
    ]
    note = f"Difference in the scores' own unit, [95 % bootstrap interval over users], n = users who rated both. {TEST}."
    columns = ("model", "against", *paired.COLUMNS)
    return [Table("discrimination-pairs", "Pairs of models", columns, tuple(rows), (note,), DISCRIMINATION)] if rows else []


def _p(p: float | None) -> str | None:
    return None if p is None else "< 0.0001" if p < 1e-4 else f"{p:.4f}"
