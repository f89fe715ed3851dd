"""What happens along a dialogue, as charts: who is still there (figure 6 of EmoHarbor), and scores by round (figures 7, 9,
10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from core.errors import clean
from core.grouping import group_by
from core.languages import name_of
from core.rubrics import Rubric
from core.tables import Estimate, Table, fmt
from evalsuite.report.charts import Chart
from evalsuite.report.figures import Figure, curve, panels, trace
from evalsuite.runs.judgement_sets import JudgementSet
from evalsuite.statistics import survival, trends
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import AVERAGE, dimension_label
from evalsuite.statistics.survival import Curve, estimate_of
from evalsuite.statistics.trends import Trend

_BANDS = 4  # lines in a panel up to which their bands can be distinguished


def along(judges: Sequence[JudgementSet], tally: Tally, may_leave: bool) -> tuple[list[Table], list[Chart]]:
    """Survival if seekers may leave, and scores by round if single turns were judged."""
    may_leave = may_leave or any(dialogue.termination == "seeker_ended" for dialogue in tally.dialogues)
    curves = survival.curves(tally.dialogues) if may_leave else []
    tests = survival.log_ranks(tally.dialogues) if curves else []
    drawn = {dialogue.id for dialogue in tally.dialogues}
    of_turns = [
        verdict for judge in judges for verdict in judge.records("turn_judgements.jsonl") if verdict.dialogue_id in drawn
    ]
    by_round = trends.trends(tally.dialogues, of_turns, tally.rubric)
    tables = [*survival.tables(curves, tests), *trends.tables(by_round, tally.rubric)]
    return tables, [*survival_charts(curves), *trend_charts(by_round, tally.rubric)]


def survival_charts(curves: Sequence[Curve]) -> Iterator[Chart]:
    """One panel per language: the share of dialogues that go on after each round, a step line per supporter."""
    for language, of_language in group_by(curves, lambda curve: curve.language).items():
        bands, traces = len(of_language) <= _BANDS, []
        for place, line in enumerate(of_language):
            points = [(0, Estimate(100.0, None, None, line.dialogues), f"{line.dialogues} dialogues")]
            for step in line.steps:
                text = f"{fmt(100 * step.survival)} % go on; {step.left} of {step.at_risk} left in it"
                points.append((step.round, estimate_of(step), text))
            traces += curve(clean(f"{line.supporter}, n = {line.dialogues}"), place, points, step=True, band=bands)
        yield Chart(
            f"survival-{language}",
            f"Dialogues that go on, {name_of(language)}",
            "Share of dialogues in which the seeker has not left after each round (Kaplan-Meier)"
            + (", with pointwise 95 % bands." if bands else "; the table has the intervals."),
            f"survival-{language}",
            _panels([name_of(language)], [traces], 300, "dialogues that go on, %", len(of_language)),
        )


def trend_charts(trends: Sequence[Trend], rubric: Rubric) -> Iterator[Chart]:
    """One chart per language and scorer: a panel per dimension, a line per supporter, bars for the dialogues that came so
    far."""
    numbers = Counter[str]()
    for (language, scorer), rivals in group_by(trends, lambda trend: (trend.language, trend.scorer)).items():
        several = len({trend.scorer for trend in trends if trend.language == language}) > 1
        reached = Counter[int]()
        for trend in rivals:
            reached.update(dict(enumerate(trend.reached, start=1)))
        rounds, most = sorted(reached), max(reached.values())
        texts = [f"{reached[at]} dialogues" for at in rounds]
        bars = trace("count", x=rounds, y=[100 * reached[at] / most for at in rounds], text=texts)
        names, traces = [*rubric.dimensions, AVERAGE], []
        for name in names:
            lines = [bars]
            for place, trend in enumerate(rivals):
                estimates = enumerate(trend.means[name], start=1)
                points = [(at, estimate, fmt(estimate)) for at, estimate in estimates if estimate.mean is not None]
                lines += curve(clean(trend.supporter), place, points, step=False, band=len(rivals) <= _BANDS)
            traces.append(lines)
        titles = [AVERAGE.capitalize() if name == AVERAGE else dimension_label(rubric, name) for name in names]
        yield Chart(
            f"trends-{language}-{numbers[language]}",
            f"Scores by round, {name_of(language)}" + (f", {clean(scorer.name)}" if several else ""),
            "Means on 0–100 of the dialogues that came so far"
            + (" with 95 % intervals" if len(rivals) <= _BANDS else "")
            + ". Grey: how many that are, the highest bar being all of them.",
            f"slopes-{language}",
            _panels(titles, traces, 170, "score", len(rivals)),
        )
        numbers[language] += 1


def _panels(titles: Sequence[str], traces: Sequence[list[Figure]], inside: int, axis: str, lines: int) -> Figure:
    return panels("curves", titles, traces, 4, inside, showlegend=lines > 1, yaxis={"title": {"text": axis}})
