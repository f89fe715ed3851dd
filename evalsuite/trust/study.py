"""The page of `esc-eval study`: several frameworks on the same supporters."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from core.languages import name_of
from core.tables import Estimate, Table, fmt
from evalsuite.report.forest import Forest, ForestLine
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.summary import languages_of
from evalsuite.trust.between_frameworks import (
    STUDY,
    Averages,
    Examined,
    FrameworkScores,
    call_table,
    dimension_table,
    rank_tables,
)

ALIKE, DIFFERENTLY, UNKNOWN = "alike", "differently", "unknown"  # how two frameworks rank supporters


def study_sheet(
    frameworks: Sequence[FrameworkScores], examined: Examined | None, supporters: Sequence[str], judge: str, plumbing: bool
) -> Sheet:
    """The page; `frameworks` begin with ESC-Eval and end with FEEL, which judged the same dialogues."""
    every: list[FrameworkScores | Examined] = [*frameworks, *([examined] if examined else [])]
    tables: list[Table] = []
    forests: list[Forest] = []
    findings: list[str] = []
    told: dict[str, list[str]] = {ALIKE: [], DIFFERENTLY: [], UNKNOWN: []}
    for language in languages_of(frameworks[0].dialogues):
        name = name_of(language)
        ranks = rank_tables(every, language)
        others = [call_table(every, language), dimension_table(frameworks[0], frameworks[-1], language)]
        tables += [*ranks, *(table for table in others if table is not None)]
        findings += [f"{name}, {one.title}: {reason}." for one in frameworks if (reason := one.unread(language))]
        if ranks:
            found = [averages for one in every if (averages := one.averages(language))]
            forests.append(_forest(name, found, frameworks[0].floors))
            findings += _highest(name, found)
            for one, other, tau, _ in ranks[1].rows:
                if isinstance(tau, Estimate) and tau.low is not None and tau.high is not None:
                    kind = ALIKE if tau.low > 0 else DIFFERENTLY if tau.high < 0 else UNKNOWN
                    told[kind].append(f"{one} and {other} ({name}, Kendall's tau {fmt(tau)})")
    return Sheet(
        title=STUDY,
        cautions=[PLUMBING] if plumbing else [],
        findings=[_answer(told), *findings],
        facts=[
            ("Supporters", ", ".join(supporters)),
            ("Seeker and judge", judge),
            *((one.title, f"{len(one.dialogues):,} dialogues, {one.calls:,} calls") for one in frameworks),
            *([(examined.title, f"{examined.questions:,} questions")] if examined else []),
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        forests=forests,
        tables=tables,
        figures={"plumbing": plumbing},
    )


def _answer(told: Mapping[str, Sequence[str]]) -> str:
    """Whether the frameworks rank supporters alike; `told` holds pairs of frameworks."""
    if told[DIFFERENTLY]:
        return f"Some frameworks rank these supporters differently: {'; '.join(told[DIFFERENTLY])}."
    if told[ALIKE] and not told[UNKNOWN]:
        return "The frameworks rank these supporters alike."
    if told[ALIKE]:
        return f"Some frameworks rank these supporters alike: {'; '.join(told[ALIKE])}. Of the others this study cannot tell."
    return "This study cannot tell whether the frameworks rank these supporters alike."


def _highest(language: str, found: Sequence[Averages]) -> Iterator[str]:
    """Whom each framework gives the highest average, if it gives several."""
    best: dict[str, list[str]] = {}
    for one in found:
        if len(set(one.seen)) > 1:
            best.setdefault(one.names[int(one.seen.argmax())], []).append(one.title)
        elif len(one.names) > 1:
            yield f"{language}, {one.title}: all supporters have the same average, so it ranks nobody."
    if best:
        named = ", ".join(f"{name} ({', '.join(by)})" for name, by in best.items())
        yield f"{language}, highest average: {named}."


def _forest(title: str, found: Sequence[Averages], floors: Collection[str]) -> Forest:
    """A row per supporter, a column per framework."""
    estimates = [one.estimates() for one in found]
    order = {name: place for place, name in enumerate(np.array(found[0].names)[np.argsort(-found[0].seen)])}
    names = sorted({name for one in estimates for name in one}, key=lambda name: (name in floors, order.get(name, len(order))))
    lines = [ForestLine(name, [[of_one.get(name)] for of_one in estimates], floor=name in floors) for name in names]
    return Forest(f"Average of 0–100, {title}", lines, [one.title for one in found])
