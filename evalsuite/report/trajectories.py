"""What happens along a dialogue, as charts: who is still there (figure 6 of EmoHarbor), and scores by round (figures 7, 9, 10).

Both are panels of lines over rounds, with a band around each, and where it helps the number of dialogues behind them as bars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from core.rubrics import Rubric
from core.tables import clean, fmt
from evalsuite.report.charts import LANGUAGES, Chart
from evalsuite.report.figures import curves
from evalsuite.statistics.summary import AVERAGE, dimension_label
from evalsuite.statistics.survival import Curve
from evalsuite.statistics.trends import Trend

_BANDS = 4  # lines in a panel up to which their bands can be told apart

Points = list[list[Any]]  # [round, figure, low, high, what a reader is told], all figures 0–100


def survival_charts(found: Sequence[Curve]) -> Iterator[Chart]:
    """One panel a language: the share of dialogues that go on after each round, a step line a supporter."""
    for language in dict.fromkeys(curve.language for curve in found):
        own = [curve for curve in found if curve.language == language]
        series = []
        for curve in own:
            points: Points = [[0, 100.0, None, None, f"{curve.dialogues} dialogues"]]
            for step in curve.steps:
                low, high = (None if bound is None else 100 * bound for bound in (step.low, step.high))
                told = f"{fmt(100 * step.survival)} % go on; {step.left} of {step.at_risk} left in it"
                points.append([step.round, 100 * step.survival, low, high, told])
            series.append({"name": clean(f"{curve.supporter}, n = {curve.dialogues}"), "points": points})
        yield Chart(
            f"survival-{language}",
            f"Dialogues that go on, {LANGUAGES[language]}",
            "Share of dialogues in which the seeker has not left after each round (Kaplan-Meier)"
            + (", with pointwise 95 % bands." if len(own) <= _BANDS else "; the table has the intervals."),
            f"survival-{language}",
            curves(
                [{"title": LANGUAGES[language], "series": series, "bars": []}],
                "dialogues that go on, %",
                step=True,
                bands=len(own) <= _BANDS,
            ),
        )


def trend_charts(found: Sequence[Trend], rubric: Rubric) -> Iterator[Chart]:
    """One chart a language and scorer: a panel a dimension, a line a supporter, grey bars for the dialogues that came so
    far."""
    for language, scorer in dict.fromkeys((each.language, each.scorer) for each in found):
        own = [each for each in found if (each.language, each.scorer) == (language, scorer)]
        several = len({each.scorer for each in found if each.language == language}) > 1
        reached = [{p.round: p.reached for p in each.points} for each in own]
        bars = [[at, sum(each.get(at, 0) for each in reached)] for at in sorted({at for each in reached for at in each})]
        panels = []
        for name in [*rubric.dimensions, AVERAGE]:
            series = [
                {
                    "name": clean(each.supporter),
                    "points": [
                        [p.round, p.estimate.mean, p.estimate.low, p.estimate.high, fmt(p.estimate)]
                        for p in each.points
                        if p.dimension == name and p.estimate.mean is not None
                    ],
                }
                for each in own
            ]
            title = "Average" if name == AVERAGE else dimension_label(rubric, name)
            panels.append({"title": title, "series": series, "bars": bars})
        number = [each.scorer for each in found if each.language == language].index(scorer)
        yield Chart(
            f"trends-{language}-{number}",
            f"Scores by round, {LANGUAGES[language]}" + (f", {clean(scorer.name)}" if several else ""),
            "Means on 0–100 of the dialogues that came so far"
            + (" with 95 % bootstrap intervals" if len(own) <= _BANDS else "")
            + ". Grey: how many that are, the highest bar being all of them.",
            f"slopes-{language}",
            curves(panels, "score", step=False, bands=len(own) <= _BANDS),
        )
