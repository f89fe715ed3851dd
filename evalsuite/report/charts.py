"""What the report's charts show; `evalsuite.report.figures` makes plotly figures of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from core.rubrics import Rubric
from core.tables import DASH, Table, clean, fmt
from evalsuite.report.figures import HATCHES, Figure, bars, dots, heat, hit_rates
from evalsuite.statistics.judges import POOLED, Bin, Confusion
from evalsuite.statistics.summary import AVERAGE, dimension_label
from evalsuite.statistics.tally import Tally

SYNTHETIC_GOLD = "Synthetic gold, scores hold by construction"
LANGUAGES = {"en": "English", "zh": "Chinese"}

Agreement = Mapping[str, Mapping[str, Mapping[str, float | int | None]]]


@dataclass(frozen=True)
class Chart:
    """One chart: a plotly figure (see `evalsuite.report.figures`) with its title and caption.

    It stands below the table with the key `after`, or at the end of its section where there is none.
    """

    key: str
    title: str
    caption: str
    after: str
    figure: Figure


def score_charts(tally: Tally) -> Iterator[Chart]:
    """One panel a dimension, one line a supporter (and scorer), a dot with its interval: readable in grey and at 20 models."""
    rubric = tally.rubric
    several = len({board.scorer for board in tally.boards}) > 1
    for language in dict.fromkeys(board.language for board in tally.boards):
        cells = [cell for cell in tally.scores if cell.language == language]
        lines = {name: place for place, name in enumerate(dict.fromkeys((cell.supporter, cell.scorer) for cell in cells))}
        panels = []
        for dimension in [*rubric.dimensions, AVERAGE]:
            points = [
                [lines[c.supporter, c.scorer], c.estimate.mean, c.estimate.low, c.estimate.high, fmt(c.estimate)]
                for c in cells
                if c.dimension == dimension and c.estimate.mean is not None
            ]
            title = "Average" if dimension == AVERAGE else dimension_label(rubric, dimension)
            style = "average" if dimension == AVERAGE else "dot"
            panels.append({"title": title, "marks": [{"name": "", "style": style, "points": points}]})
        rows = [clean(f"{supporter} · {scorer.name}" if several else supporter) for supporter, scorer in lines]
        yield Chart(
            f"scores-{language}",
            f"Scores by dimension, {LANGUAGES[language]}",
            "Means on 0–100 with 95 % bootstrap intervals, best average first. Open circles rest on a single dialogue.",
            f"leaderboard-{language}",
            dots(rows, panels, columns=4),
        )


def distribution_charts(table: Table, rubric: Rubric) -> Iterator[Chart]:
    """Score counts a dimension (`summary.distributions`) as shares of all verdicts; a segment names its score, unreadable ones
    are hatched."""
    names, end = table.columns.index("dimension"), table.columns.index("verdicts")
    marks = rubric.scores
    reasons = table.columns[names + 1 + len(marks) : end]
    for number, (names_of_group, group) in enumerate(groupby(table.rows, key=lambda row: row[:names])):
        rows = list(group)
        counts = np.array([row[names + 1 : end] for row in rows], dtype=float)  # dimensions × (scores, reasons without one)
        counts = np.nan_to_num(counts)  # scores that are not on a dimension's scale
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        series = [
            {"name": str(mark), "tone": f"step-{round(4 * place / (len(marks) - 1))}", "hatch": "", "values": column.tolist()}
            | {"texts": [str(mark) if share >= 5 else "" for share in column]}
            for place, (mark, column) in enumerate(zip(marks, shares.T, strict=False))
        ]
        for place, (reason, column) in enumerate(zip(reasons, shares.T[len(marks) :], strict=True)):
            if column.any():
                style = {"tone": f"reason-{place % 5}", "hatch": HATCHES[1 + place % (len(HATCHES) - 1)]}
                series.append({"name": reason, "values": column.tolist(), "texts": [""] * len(shares)} | style)
        scorer = f", {clean(str(names_of_group[1]))}" if names > 1 else ""
        yield Chart(
            f"distribution-{number}",
            f"Scores given, {LANGUAGES[str(names_of_group[0])]}{scorer}",
            "Each bar is all verdicts on a dimension; the numbers inside are the scores.",
            "distributions",
            bars([str(row[names]) for row in rows], series, "share of verdicts, %"),
        )


def agreement_charts(agreement: Agreement, rubric: Rubric, mode: str, synthetic: bool) -> Iterator[Chart]:
    """ACC and ACC_soft beside what always answering the most frequent gold score would reach."""
    suffix = "" if mode == "paper" else "_read"
    for language, figures in agreement.items():
        panels = []
        for metric, title in (("acc", "ACC, %"), ("acc_soft", "ACC_soft (within one), %")):
            marks = []
            for key, name in ((metric + suffix, "judge"), (f"majority_{metric}", "majority class")):
                found = [
                    (
                        place,
                        [None if (v := row.get(field)) is None else 100 * v for field in (key, f"{key}_low", f"{key}_high")],
                    )
                    for place, row in enumerate(figures.values())
                ]
                points = [[place, *bounds, f"{name} {fmt(bounds[0])}"] for place, bounds in found if bounds[0] is not None]
                marks.append({"name": name, "style": "dot" if name == "judge" else "baseline", "points": points})
            panels.append({"title": title, "marks": marks})
        unreadable = "are left out" if suffix else "count as wrong"
        yield Chart(
            f"agreement-{language}",
            f"Agreement with gold, {LANGUAGES.get(language, language)}",
            _synthetic(synthetic)
            + "Dots: the judge, with 95 % intervals where given. Bars: always answering the most frequent gold score. "
            + f"Unreadable verdicts {unreadable}.",
            f"agreement_{language}",
            dots([_label(rubric, name) for name in figures], panels, columns=2),
        )


def _synthetic(synthetic: bool) -> str:
    return f"{SYNTHETIC_GOLD}. " if synthetic else ""


def termination_charts(table: Table) -> Iterator[Chart]:
    """How the dialogues of each supporter ended (`summary.terminations`), as stacked counts; none where nothing is recorded."""
    reasons = table.columns[3 : table.columns.index("ended by seeker")]
    if set(reasons) <= {"not recorded"}:
        return
    series = []
    for place, reason in enumerate(reasons):
        counts = [row[3 + place] for row in table.rows]
        style = {"tone": f"reason-{place % 5}", "hatch": HATCHES[place % len(HATCHES)]}
        series.append({"name": reason, "values": counts, "texts": [str(count or "") for count in counts]} | style)
    rows = [clean(f"{row[1]} · {row[0]}") for row in table.rows]
    yield Chart(
        "terminations",
        "Why dialogues ended",
        "In brackets: whose reply ended the dialogue.",
        "terminations",
        bars(rows, series, "dialogues"),
    )


def confusion_charts(matrices: Mapping[str, Mapping[str, Confusion]], rubric: Rubric, synthetic: bool) -> Iterator[Chart]:
    """How one judge's verdicts fall on the gold scores, per dimension."""
    for language, of_language in matrices.items():
        yield Chart(
            f"confusion-{language}",
            f"Verdicts by gold score, {LANGUAGES[language]}",
            _synthetic(synthetic) + "Rows: the gold score. Columns: the judge's verdict, – is unreadable. Figures are counts, "
            "tones shares of a row; what agrees lies on the diagonal.",
            f"confusion_{language}",
            heat([_heat(key, matrix, rubric) for key, matrix in of_language.items()]),
        )


def calibration_charts(bins: Sequence[Bin], synthetic: bool) -> Iterator[Chart]:
    """Whether one judge's probabilities can be believed."""
    pooled = [each for each in bins if each.dimension == POOLED]
    panels = []
    for language in dict.fromkeys(each.language for each in pooled):
        of_language = [each for each in pooled if each.language == language]
        points = [[*(round(100 * f, 2) for f in (b.confidence, b.hit_rate, b.hit_low, b.hit_high)), b.n] for b in of_language]
        panels.append({"title": f"{LANGUAGES[language]}, n = {sum(b.n for b in of_language):,}", "points": points})
    if panels:
        yield Chart(
            "calibration",
            "Calibration",
            _synthetic(synthetic) + "How often the judge's most probable score is the gold score, by the probability that the "
            "judge gave it (tenths, all dimensions; 95 % Wilson intervals). On the dashed line probabilities can be taken at "
            "their word; below it the judge is too sure of itself.",
            "calibration",
            hit_rates(panels),
        )


def _label(rubric: Rubric, name: str) -> str:
    """The label of a dimension, or of what is over several."""
    return dimension_label(rubric, name) if name in rubric.dimensions else name.capitalize()


def _heat(dimension: str, matrix: Confusion, rubric: Rubric) -> dict[str, Any]:
    counts = np.array([[*row, unread] for row, unread in zip(matrix.counts, matrix.unread, strict=True)])
    return {
        "title": _label(rubric, dimension),
        "x": [*map(str, matrix.scores), DASH],
        "y": [str(score) for score in matrix.scores],
        "counts": counts.tolist(),
        "shares": np.round(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), 3).tolist(),
    }
