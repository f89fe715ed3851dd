"""The page of `esc-eval abstain`: what a judge keeps when it may say nothing, and what accuracy or coverage costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from core.grouping import group_by
from core.records import Language
from core.rubrics import Rubric
from core.statistics.bootstrap import LEVEL, SMOOTHED
from core.tables import Cell, Estimate, Table
from evalsuite.report.charts import LANGUAGES, SYNTHETIC_GOLD, Chart, dot_panels
from evalsuite.report.figures import curve, dots, panels
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.conformal import Cases, Tried, decided, right, share, tried
from evalsuite.statistics.judges import POOLED
from evalsuite.statistics.selective import Threshold, by_language, steps
from evalsuite.statistics.summary import AGREEMENT, dimension_label

STATED = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)  # coverages along the lines


def accuracy_sheet(
    judge: str,
    cases: Cases,
    found: Mapping[Language, Threshold],
    rubric: Rubric,
    accuracy: float,
    plumbing: bool,
    synthetic: bool,
) -> Sheet:
    """The page of verdicts that are right as often as `accuracy` (0–1) says, where the judge speaks."""
    return _sheet(
        [("Judge", judge), ("Accuracy when it speaks", f"{100 * accuracy:g} %, {100 * LEVEL:g} % sure")],
        [sentence for language in by_language(cases) for sentence in _spoken(cases, language, found[language], accuracy)],
        [spoken_table(cases, found, rubric, accuracy)],
        [chart for language, of_one in by_language(cases).items() for chart in _step_charts(language, of_one)],
        {"accuracy": accuracy, "thresholds": {language: one.least for language, one in found.items()}},
        plumbing,
        synthetic,
    )


def coverage_sheet(
    judge: str,
    cases: Cases,
    rows: Sequence[Tried],
    tables: Sequence[Table],
    rubric: Rubric,
    stated: tuple[float, int],
    plumbing: bool,
    synthetic: bool,
) -> Sheet:
    """The page of score sets; `stated` is the coverage (0–1) and how many scores a set may hold for the judge to speak."""
    coverage, most = stated
    spoken = "one score is left" if most == 1 else f"at most {most} scores next to each other are left"
    return _sheet(
        [("Judge", judge), ("Coverage", f"{100 * coverage:g} %"), ("It speaks where", spoken)],
        [sentence for of_one in group_by(rows, lambda row: row.language).values() for sentence in _findings(of_one)],
        tables,
        [*_cost_charts(cases, rubric, most), *_dimension_charts(rows, rubric, most)],
        {"coverage": coverage, "most": most},
        plumbing,
        synthetic,
    )


def _sheet(
    facts: list[tuple[str, str]],
    findings: Sequence[str],
    tables: Sequence[Table],
    charts: Sequence[Chart],
    figures: Mapping[str, Any],
    plumbing: bool,
    synthetic: bool,
) -> Sheet:
    cautions = [PLUMBING if plumbing else "", f"{SYNTHETIC_GOLD}: new dialogues are hardly like them." if synthetic else ""]
    return Sheet(
        title="When the judge says nothing",
        cautions=[caution for caution in cautions if caution],
        findings=findings,
        facts=[*facts, ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        tables=tables,
        charts=charts,
        figures={**figures, "plumbing": plumbing, "synthetic_gold": synthetic},
    )


# --- accuracy when it speaks --------------------------------------------------------------------------------------------------


def _spoken(cases: Cases, language: Language, found: Threshold, accuracy: float) -> Iterator[str]:
    every = by_language(cases)[language]
    kept = [case for case in every if found.speaks(case.probabilities)]
    name, whole = LANGUAGES[language], right(every)
    if found.bound is None:
        yield (
            f"{name}: no threshold is shown to reach {100 * accuracy:g} %, so the judge says nothing; it is right on "
            f"{whole.mean:.0f} % of all {whole.n} verdicts on gold."
        )
        return
    yield (
        f"{name}: the judge speaks on {100 * len(kept) / len(every):.0f} % of the verdicts on gold and is right on "
        f"{right(kept).mean:.0f} % of these, at least {100 * found.bound:.0f} % ({100 * LEVEL:g} % sure), against "
        f"{whole.mean:.0f} % of all."
    )


def spoken_table(cases: Cases, found: Mapping[Language, Threshold], rubric: Rubric, accuracy: float) -> Table:
    """How much is kept and how right it is, by dimension and together, beside all verdicts."""
    rows: list[tuple[Cell, ...]] = []
    for language, every in by_language(cases).items():
        threshold = found[language]
        least, bound = (None if one is None else 100 * one for one in (threshold.least, threshold.bound))
        parts = [(dimension_label(rubric, name), None, of_one) for (own, name), of_one in cases.items() if own == language]
        for name, at_least, of_one in (*parts, (POOLED, bound, every)):
            flags = [(case.cluster, threshold.speaks(case.probabilities)) for case in of_one]
            kept = [case for case in of_one if threshold.speaks(case.probabilities)]
            rows.append((language, name, least, share(flags), right(kept), at_least, right(of_one)))
    return Table(
        key="spoken",
        title=f"Verdicts that are right {100 * accuracy:g} times in 100",
        columns=("language", "dimension", "spoken from %", "kept %", "ACC when it speaks %", "at least %", "ACC of all %"),
        rows=tuple(rows),
        notes=(
            "Spoken from: the least probability of a verdict's most probable score, one for all dimensions of a language. At "
            f"least: the lower bound of the accuracy of what is spoken, {100 * LEVEL:g} % sure, of all dimensions together: "
            "one by itself may be worse. A dash: no threshold is shown to reach what is asked.",
            f"n = verdicts, [{SMOOTHED} over cards, or dialogues without a card]. For dialogues like those of the gold set.",
        ),
        section=AGREEMENT,
    )


def _step_charts(language: Language, cases: Sequence[Any]) -> Iterator[Chart]:
    """How right verdicts are by the share of them that is kept, surest first."""
    points = []
    for threshold in steps(cases):
        kept = [case for case in cases if threshold.speaks(case.probabilities)]
        at, hits = round(100 * len(kept) / len(cases)), right(kept)
        if hits.mean is not None:
            points.append((at, hits, f"of the surest {at} % {hits.mean:.0f} % are right (n = {hits.n})"))
    lines = curve("right, of what is kept", 0, points, step=False, band=True)
    lines = [line if "fill" in line else line | {"hovertemplate": "%{text}<extra></extra>"} for line in lines]
    axes = {"xaxis": {"title": {"text": "kept, % of verdicts"}}, "yaxis": {"title": {"text": "right, %"}}}
    yield Chart(
        f"kept-{language}",
        f"How right the surest verdicts are, {LANGUAGES[language]}",
        "All dimensions together, surest first, with 95 % bands over cards.",
        "spoken",
        panels("curves", [LANGUAGES[language]], [lines], 1, 260, **axes),
    )


# --- coverage of sets ---------------------------------------------------------------------------------------------------------


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
        for stated, of_languages in found.items():
            rows = of_languages.get(language, [])
            said = [case for row in rows for case in row.kept]
            at = round(100 * stated)
            sets = (one for row in rows for one in row.sets)
            part, hits = share((case.cluster, decided(scores, most)) for scores, case in sets), right(said)
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
            "95 % bands over cards.",
            "score-sets",
            panels("curves", [LANGUAGES[language]], [lines], 1, 260, showlegend=True, **axes),
        )


def _dimension_charts(rows: Sequence[Tried], rubric: Rubric, most: int) -> Iterator[Chart]:
    for language, of_one in group_by(rows, lambda row: row.language).items():
        names = [dimension_label(rubric, row.dimension) for row in of_one]
        kept = [share((case.cluster, decided(scores, most)) for scores, case in row.sets) for row in of_one]
        spoken, whole = [right(row.kept) for row in of_one], [right([case for _, case in row.sets]) for row in of_one]
        yield Chart(
            f"kept-{language}",
            f"What is kept, {LANGUAGES[language]}",
            "Dots: the judge where it speaks, with 95 % intervals over cards. Bars: the judge on all verdicts.",
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
