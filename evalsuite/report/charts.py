"""What the report's charts show, as data; templates/charts.js draws them in the page's own fonts and colours.

Kinds: `dots` (panels of points with intervals, one line a row), `bars` (stacked), `heat` (panels of gold × verdict), `line`
(panels of hit rate against probability), `curves` (panels of lines over rounds; see `evalsuite.report.trajectories`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric
from core.tables import DASH, clean, fmt
from evalsuite.statistics.judges import POOLED, Confusion, calibration, confusion
from evalsuite.statistics.leaderboard import Score
from evalsuite.statistics.summary import (
    AVERAGE,
    Scorer,
    checked,
    dimension_label,
    distributions,
    languages_of,
    scorer_of,
    terminations,
)

SYNTHETIC_GOLD = "Synthetic gold, scores hold by construction"
LANGUAGES = {"en": "English", "zh": "Chinese"}
HATCHES = ("", "/", ".", "\\", "x", "-", "+")  # besides colour, so that bars can be told apart in grey

Agreement = Mapping[str, Mapping[str, Mapping[str, float | int | None]]]


@dataclass(frozen=True)
class Chart:
    """What one chart shows: `data` names its kind, rows and figures for charts.js.

    It stands below the table with the key `after`, or at the end of its section where there is none.
    """

    key: str
    title: str
    caption: str
    after: str
    data: dict[str, Any]


def score_charts(cells: Sequence[Score], dialogues: Sequence[Dialogue], rubric: Rubric) -> Iterator[Chart]:
    """One panel a dimension, one line a supporter (and scorer), a dot with its interval: readable in grey and at 20 models."""
    several = len({cell.scorer for cell in cells}) > 1
    for language in languages_of(dialogues):
        own = [cell for cell in cells if cell.language == language]
        lines = {name: place for place, name in enumerate(dict.fromkeys((cell.supporter, cell.scorer) for cell in own))}
        panels = []
        for dimension in [*rubric.dimensions, AVERAGE] if own else []:
            points = [
                [lines[c.supporter, c.scorer], c.estimate.mean, c.estimate.low, c.estimate.high, fmt(c.estimate)]
                for c in own
                if c.dimension == dimension and c.estimate.mean is not None
            ]
            title = "Average" if dimension == AVERAGE else dimension_label(rubric, dimension)
            panels.append({"title": title, "marks": [{"name": "", "baseline": dimension == AVERAGE, "points": points}]})
        if panels:
            rows = [clean(f"{supporter} · {scorer.name}" if several else supporter) for supporter, scorer in lines]
            yield Chart(
                f"scores-{language}",
                f"Scores by dimension, {LANGUAGES[language]}",
                "Means on 0–100 with 95 % bootstrap intervals, best average first. Open circles rest on a single dialogue.",
                f"leaderboard-{language}",
                {"kind": "dots", "columns": 4, "rows": rows, "panels": panels},
            )


def distribution_charts(judgements: Sequence[Judgement], rubric: Rubric) -> Iterator[Chart]:
    """Score counts a dimension as shares of all verdicts; a segment names its score, unreadable ones are hatched."""
    groups: dict[tuple[str, Scorer], list[Judgement]] = {}
    for judgement in checked(judgements, rubric):
        groups.setdefault((judgement.language, scorer_of(judgement)), []).append(judgement)
    several = len({scorer for _, scorer in groups}) > 1
    marks = rubric.scores
    for number, (language, scorer) in enumerate(sorted(groups)):
        table = distributions(groups[language, scorer], rubric)
        end = table.columns.index("verdicts")
        counts = np.array([row[2:end] for row in table.rows], dtype=float)  # dimensions × (scores, reasons without one)
        counts = np.nan_to_num(counts)  # scores that are not on a dimension's scale
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        series = [
            {"name": str(mark), "tone": f"step-{round(4 * place / (len(marks) - 1))}", "hatch": "", "values": column.tolist()}
            | {"texts": [str(mark) if share >= 5 else "" for share in column]}
            for place, (mark, column) in enumerate(zip(marks, shares.T, strict=False))
        ]
        for place, (reason, column) in enumerate(zip(table.columns[2 + len(marks) : end], shares.T[len(marks) :], strict=True)):
            if column.any():
                style = {"tone": f"reason-{place % 5}", "hatch": HATCHES[1 + place % (len(HATCHES) - 1)]}
                series.append({"name": reason, "values": column.tolist(), "texts": [""] * len(shares)} | style)
        yield Chart(
            f"distribution-{number}",
            f"Scores given, {LANGUAGES[language]}" + (f", {clean(scorer.name)}" if several else ""),
            "Each bar is all verdicts on a dimension; the numbers inside are the scores.",
            "distributions",
            {"kind": "bars", "axis": "share of verdicts, %", "rows": [str(row[1]) for row in table.rows], "series": series},
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
                marks.append({"name": name, "baseline": name != "judge", "points": points})
            panels.append({"title": title, "marks": marks})
        unreadable = "are left out" if suffix else "count as wrong"
        yield Chart(
            f"agreement-{language}",
            f"Agreement with gold, {LANGUAGES.get(language, language)}",
            _synthetic(synthetic)
            + "Dots: the judge, with 95 % intervals where given. Bars: always answering the most frequent gold score. "
            + f"Unreadable verdicts {unreadable}.",
            f"agreement_{language}",
            {
                "kind": "dots",
                "columns": 2,
                "rows": [dimension_label(rubric, n) if n in rubric.dimensions else n.capitalize() for n in figures],
                "panels": panels,
            },
        )


def _synthetic(synthetic: bool) -> str:
    return f"{SYNTHETIC_GOLD}. " if synthetic else ""


def termination_charts(dialogues: Sequence[Dialogue]) -> Iterator[Chart]:
    """How the dialogues of each supporter ended, as stacked counts."""
    if all(dialogue.termination is None for dialogue in dialogues):
        return
    table = terminations(dialogues)
    reasons = table.columns[3 : table.columns.index("ended by seeker")]
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
        {"kind": "bars", "axis": "dialogues", "rows": rows, "series": series},
    )


def gold_charts(
    judgements: Sequence[Judgement], gold: Sequence[HumanScore], rubric: Rubric, synthetic: bool
) -> Iterator[Chart]:
    """How one judge's verdicts fall on the gold scores, per dimension, and whether its probabilities can be believed.

    Raises `UserError` where `evalsuite.statistics.judges.confusion` does.
    """
    for language, matrices in confusion(judgements, gold, rubric.scales).items():
        yield Chart(
            f"confusion-{language}",
            f"Verdicts by gold score, {LANGUAGES[language]}",
            _synthetic(synthetic) + "Rows: the gold score. Columns: the judge's verdict, – is unreadable. Figures are counts, "
            "tones shares of a row; what agrees lies on the diagonal.",
            f"confusion_{language}",
            {"kind": "heat", "columns": 4, "panels": [_heat(key, matrix, rubric) for key, matrix in matrices.items()]},
        )
    bins = [each for each in calibration(judgements, gold) if each.dimension == POOLED]
    panels = []
    for language in dict.fromkeys(each.language for each in bins):
        own = [each for each in bins if each.language == language]
        points = [[*(round(100 * f, 2) for f in (b.confidence, b.hit_rate, b.hit_low, b.hit_high)), b.n] for b in own]
        panels.append({"title": f"{LANGUAGES[language]}, n = {sum(b.n for b in own):,}", "points": points})
    if panels:
        yield Chart(
            "calibration",
            "Calibration",
            _synthetic(synthetic) + "How often the judge's most probable score is the gold score, by the probability that the "
            "judge gave it (tenths, all dimensions; 95 % Wilson intervals). On the dashed line probabilities can be taken at "
            "their word; below it the judge is too sure of itself.",
            "calibration",
            {"kind": "line", "columns": 2, "panels": panels},
        )


def _heat(dimension: str, matrix: Confusion, rubric: Rubric) -> dict[str, Any]:
    counts = np.array([[*row, unread] for row, unread in zip(matrix.counts, matrix.unread, strict=True)])
    return {
        "title": dimension_label(rubric, dimension) if dimension in rubric.dimensions else dimension.capitalize(),
        "x": [*map(str, matrix.scores), DASH],
        "y": [str(score) for score in matrix.scores],
        "counts": counts.tolist(),
        "shares": np.round(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), 3).tolist(),
    }
