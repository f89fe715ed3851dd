"""The page of `esc-eval abstain`: what a judge keeps when it may say nothing, and what the stated coverage costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from core.grouping import group_by
from core.rubrics import Rubric
from core.statistics.accuracy import share
from core.tables import Estimate, Table
from evalsuite.report.charts import LANGUAGES, SYNTHETIC_GOLD, Chart, dot_panels
from evalsuite.report.figures import curve, dots, panels
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.conformal import Cases, Tried, right, tried
from evalsuite.statistics.summary import dimension_label

STATED = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)  # coverages along the lines


def abstention_sheet(
    judge: str,
    cases: Cases,
    rows: Sequence[Tried],
    tables: Sequence[Table],
    rubric: Rubric,
    stated: tuple[float, int],
    plumbing: bool,
    synthetic: bool,
) -> Sheet:
    """The page; `stated` is the coverage (0–1) and how many scores a set may hold for the judge to speak."""
    coverage, most = stated
    cautions = [PLUMBING if plumbing else "", f"{SYNTHETIC_GOLD}: new dialogues are hardly like them." if synthetic else ""]
    return Sheet(
        title="When the judge says nothing",
        cautions=[caution for caution in cautions if caution],
        findings=[sentence for of_one in group_by(rows, lambda row: row.language).values() for sentence in _findings(of_one)],
        facts=[
            ("Judge", judge),
            ("Coverage", f"{100 * coverage:g} %"),
            ("It speaks where", "one score is left" if most == 1 else f"at most {most} scores next to each other are left"),
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        tables=tables,
        charts=[*_cost_charts(cases, rubric, most), *_dimension_charts(rows, rubric)],
        figures={"coverage": coverage, "most": most, "plumbing": plumbing, "synthetic_gold": synthetic},
    )


def _findings(rows: Sequence[Tried]) -> Iterator[str]:
    name = LANGUAGES[rows[0].language]
    every, kept = [case for row in rows for _, case in row.sets], [case for row in rows for case in row.kept]
    if not every:
        return
    if not kept:
        yield f"{name}: the judge says nothing at all; it is right on {right(every).mean:.0f} % of all verdicts on gold."
        return
    yield (
        f"{name}: the judge speaks on {100 * len(kept) / len(every):.0f} % of the verdicts on gold and is right on "
        f"{right(kept).mean:.0f} % of these, against {right(every).mean:.0f} % of all."
    )


def _cost_charts(cases: Cases, rubric: Rubric, most: int) -> Iterator[Chart]:
    """For each language: what is kept, and how right it is, by the stated coverage."""
    found = {stated: group_by(tried(cases, rubric, stated, most), lambda row: row.language) for stated in STATED}
    for language in dict.fromkeys(language for language, _ in cases):
        kept, rightly = [], []
        for stated, by_language in found.items():
            rows = by_language.get(language, [])
            every, said = [case for row in rows for _, case in row.sets], [case for row in rows for case in row.kept]
            at = round(100 * stated)
            part, hits = share(len(said), len(every)), right(said)
            if part.mean is not None:
                kept.append((at, part, f"at {at} % coverage {part.mean:.0f} % are kept"))
            if hits.mean is not None:
                rightly.append((at, hits, f"at {at} % coverage {hits.mean:.0f} % of what is kept is right (n = {hits.n})"))
        lines = []
        for place, (name, points) in enumerate((("kept", kept), ("right, of what is kept", rightly))):
            for line in curve(name, place, points, step=False, band=True):
                lines.append(line if "fill" in line else line | {"hovertemplate": "%{text}<extra></extra>"})
        axes = {"xaxis": {"title": {"text": "stated coverage, %"}}, "yaxis": {"title": {"text": "% of verdicts"}}}
        yield Chart(
            f"coverage-{language}",
            f"What coverage costs, {LANGUAGES[language]}",
            "The more often a set is to hold the right score, the less often one score is left. All dimensions together, with "
            "95 % Wilson bands.",
            "score-sets",
            panels("curves", [LANGUAGES[language]], [lines], 1, 260, showlegend=True, **axes),
        )


def _dimension_charts(rows: Sequence[Tried], rubric: Rubric) -> Iterator[Chart]:
    for language, of_one in group_by(rows, lambda row: row.language).items():
        names = [dimension_label(rubric, row.dimension) for row in of_one]
        kept = [share(len(row.kept), len(row.sets)) for row in of_one]
        spoken, whole = [right(row.kept) for row in of_one], [right([case for _, case in row.sets]) for row in of_one]
        yield Chart(
            f"kept-{language}",
            f"What is kept, {LANGUAGES[language]}",
            "Dots: the judge where it speaks, with 95 % Wilson intervals. Bars: the judge on all verdicts.",
            "score-sets",
            dot_panels(
                names,
                ["kept, %", "right, %"],
                [
                    [dots("dot", names, _there(kept))],
                    [dots("dot", names, _there(spoken)), dots("baseline", names, _there(whole))],
                ],
                columns=2,
            ),
        )


def _there(estimates: Sequence[Estimate]) -> list[tuple[int, Estimate]]:
    return [(place, one) for place, one in enumerate(estimates) if one.mean is not None]
