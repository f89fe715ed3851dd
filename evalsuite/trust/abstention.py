"""What of a judge's verdicts is kept when it may say nothing, and what accuracy costs: a part of its card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.grouping import group_by
from core.records import Language
from core.rubrics import Rubric
from core.statistics.bootstrap import LEVEL, SMOOTHED
from core.tables import Cell, Table
from evalsuite.report.charts import LANGUAGES, Chart
from evalsuite.report.figures import curve, panels
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.clusters import Clusters
from evalsuite.statistics.judges import POOLED
from evalsuite.statistics.summary import AGREEMENT, dimension_label
from evalsuite.trust.selective import AcceptThreshold, Cases, Spoken, by_language, right, share, steps


def with_kept(
    card: Sheet,
    cases: Cases,
    found: Mapping[Language, AcceptThreshold],
    spoken: Sequence[Spoken],
    clusters: Clusters,
    rubric: Rubric,
    accuracy: float,
) -> Sheet:
    """A judge's card, with the verdicts to keep so that they are right as often as `accuracy` (0–1) says."""
    tables = [spoken_table(cases, found, rubric, accuracy), *([kept_table(spoken, rubric, clusters)] if spoken else [])]
    steps = [chart for language, of_one in by_language(cases).items() for chart in _step_charts(language, of_one)]
    return replace(
        card,
        findings=[
            *card.findings,
            *(line for language in found for line in _spoken(cases, language, found[language], accuracy)),
        ],
        main=[*card.main, "spoken"],
        tables=[*card.tables, *tables],
        charts=[*card.charts, *steps],
        figures={**card.figures, "accuracy": accuracy, "thresholds": {language: one.least for language, one in found.items()}},
    )


def _spoken(cases: Cases, language: Language, found: AcceptThreshold, accuracy: float) -> Iterator[str]:
    every = by_language(cases)[language]
    kept = [case for case in every if found.speaks(case.sure)]
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


def spoken_table(cases: Cases, found: Mapping[Language, AcceptThreshold], rubric: Rubric, accuracy: float) -> Table:
    """How much is kept and how right it is, by dimension and together, beside all verdicts."""
    rows: list[tuple[Cell, ...]] = []
    for language, every in by_language(cases).items():
        threshold = found[language]
        least, bound = (None if one is None else 100 * one for one in (threshold.least, threshold.bound))
        parts = [(dimension_label(rubric, name), None, of_one) for (own, name), of_one in cases.items() if own == language]
        for name, at_least, of_one in (*parts, (POOLED, bound, every)):
            flags = [(case.cluster, threshold.speaks(case.sure)) for case in of_one]
            kept = [case for case in of_one if threshold.speaks(case.sure)]
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


def kept_table(spoken: Sequence[Spoken], rubric: Rubric, clusters: Clusters) -> Table:
    """Of a run's own verdicts: how much is kept."""
    groups = group_by(spoken, lambda one: (one.language, one.dimension))
    return Table(
        key="spoken-run",
        title="What of the run's verdicts is kept",
        columns=("language", "dimension", "kept %"),
        rows=tuple(
            (
                language,
                dimension_label(rubric, dimension),
                share((clusters[one.dialogue_id], one.value is not None) for one in of_one),
            )
            for (language, dimension), of_one in groups.items()
        ),
        notes=(f"Calibrated on the whole gold set. n = verdicts, [{SMOOTHED} over cards, or dialogues without a card].",),
        section=AGREEMENT,
    )


def _step_charts(language: Language, cases: Sequence[Any]) -> Iterator[Chart]:
    """How right verdicts are by the share of them that is kept, surest first."""
    points = []
    for threshold in steps(cases):
        kept = [case for case in cases if threshold.speaks(case.sure)]
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
