"""The page of `esc-eval study`: several frameworks on the same supporters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from core.records import Language
from core.tables import Estimate, Table, clean, fmt
from evalsuite.report.charts import LANGUAGES, Chart, dot_panels
from evalsuite.report.figures import dots
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.between_frameworks import (
    STUDY,
    Examined,
    Framework,
    call_table,
    dimension_table,
    rank_tables,
)
from evalsuite.statistics.summary import languages_of


def study_sheet(
    frameworks: Sequence[Framework], examined: Examined | None, supporters: Sequence[str], judge: str, plumbing: bool
) -> Sheet:
    """The page; `frameworks` begin with ESC-Eval and end with FEEL, which judged the same dialogues."""
    every: list[Framework | Examined] = [*frameworks, *([examined] if examined else [])]
    tables: list[Table] = []
    charts: list[Chart] = []
    findings: list[str] = []
    for language in languages_of(frameworks[0].dialogues):
        findings += [f"{LANGUAGES[language]}, {one.title}: {reason}." for one in frameworks if (reason := one.unread(language))]
        ranks = rank_tables(every, language)
        others = [call_table(every, language), dimension_table(frameworks[0], frameworks[-1], language)]
        tables += [*ranks, *(table for table in others if table is not None)]
        if ranks:
            findings += [*_same(ranks[0], language), *_findings(ranks[1], language)]
            charts.append(_averages(every, language))
    return Sheet(
        title=STUDY,
        cautions=[PLUMBING] if plumbing else [],
        findings=findings,
        facts=[
            ("Supporters", ", ".join(supporters)),
            ("Seeker and judge", judge),
            *((one.title, f"{len(one.dialogues):,} dialogues, {one.calls:,} calls") for one in frameworks),
            *([(examined.title, f"{examined.questions:,} questions")] if examined else []),
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        tables=tables,
        charts=charts,
        figures={"plumbing": plumbing},
    )


def _same(averages: Table, language: Language) -> Iterator[str]:
    """Frameworks that rank nobody."""
    for title, *cells in zip(averages.columns[1:], *(row[1:] for row in averages.rows), strict=True):
        means = [cell.mean for cell in cells if isinstance(cell, Estimate)]
        if len(means) > 1 and len(set(means)) == 1:
            yield f"{LANGUAGES[language]}, {title}: all supporters have the same average, so it ranks nobody."


def _findings(ranks: Table, language: Language) -> Iterator[str]:
    """What is known of every two frameworks, in a sentence."""
    for one, other, tau, _ in ranks.rows:
        if isinstance(tau, Estimate) and tau.mean is not None and tau.low is not None and tau.high is not None:
            told = "this study cannot tell whether they rank supporters alike"
            told = "they rank supporters alike" if tau.low > 0 else "they rank supporters differently" if tau.high < 0 else told
            yield f"{LANGUAGES[language]}, {one} and {other}: {told} (Kendall's tau {fmt(tau)})."


def _averages(every: Sequence[Framework | Examined], language: Language) -> Chart:
    """A panel a framework, a line a supporter."""
    found = [averages for one in every if (averages := one.averages(language))]
    names = sorted({name for one in found for name in one.names})
    rows = [clean(name) for name in names]
    traces = []
    for one in found:
        estimates = one.estimates()
        there = [(place, estimates[name]) for place, name in enumerate(names) if name in estimates]
        traces.append([dots("dot", rows, [(place, each) for place, each in there if each.mean is not None], alone=True)])
    return Chart(
        f"averages-{language}",
        f"Averages by framework, {LANGUAGES[language]}",
        "Means on 0–100 with 95 % intervals, supporters by name. Open marks rest on one card alone.",
        f"study-averages-{language}",
        dot_panels(rows, [one.title for one in found], traces, columns=4),
    )
