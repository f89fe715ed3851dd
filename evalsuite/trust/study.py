"""The page of `esc-eval study`: several frameworks, or finished runs of any benchmarks, on the same supporters."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from core.errors import UserError
from core.files import digest
from core.languages import name_of
from core.records import Language
from core.statistics.bootstrap import SMOOTHED
from core.tables import Cell, Estimate, Table, fmt
from evalsuite.report.forest import Forest, ForestLine
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run
from evalsuite.runs.framework import ScoredRun, framework_of_run
from evalsuite.runs.judgement_sets import as_of, chosen_set, sets_of
from evalsuite.runs.records import read_run
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import AVERAGE, languages_of, sums_of, supporter_of
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
    frameworks: Sequence[FrameworkScores],
    examined: Examined | None,
    supporters: Sequence[str],
    judge: str,
    plumbing: bool,
    title: str = STUDY,
) -> Sheet:
    """The page: a column per framework. Dimensions are set beside each other where two judged the same dialogues."""
    every: list[FrameworkScores | Examined] = [*frameworks, *([examined] if examined else [])]
    tables: list[Table] = [*judge_tables(frameworks)]
    forests: list[Forest] = []
    findings: list[str] = []
    told: dict[str, list[str]] = {ALIKE: [], DIFFERENTLY: [], UNKNOWN: []}
    for language in languages_of(dialogue for one in frameworks for dialogue in one.dialogues):
        name = name_of(language)
        ranks = rank_tables(every, language)
        found = [averages for one in every if (averages := one.averages(language))]
        pairs = combinations(frameworks, 2)
        dimensions = [table for one, other in pairs if (table := dimension_table(one, other, language))]
        dimensions = [replace(one, key=one.key + f"-{n}" * (n > 1)) for n, one in enumerate(dimensions, start=1)]
        others = [disagreement_table(found, language) if ranks else None, call_table(every, language), *dimensions]
        tables += [*ranks, *(table for table in others if table is not None)]
        findings += [f"{name}, {one.title}: {reason}." for one in frameworks if (reason := one.unread(language))]
        if ranks:
            forests.append(_forest(name, found, {floor for one in frameworks for floor in one.floors}))
            findings += _highest(name, found)
            for one, other, tau, _ in ranks[1].rows:
                if isinstance(tau, Estimate) and tau.mean is not None:  # no bounds: the order of every pair stands
                    low, high = (tau.mean if end is None else end for end in (tau.low, tau.high))
                    kind = ALIKE if low > 0 else DIFFERENTLY if high < 0 else UNKNOWN
                    told[kind].append(f"{one} and {other} ({name}, Kendall's tau {fmt(tau)})")
    return Sheet(
        title=title,
        cautions=[
            *([PLUMBING] if plumbing else []),
            *(text if text.startswith(one.title) else f"{one.title}: {text}" for one in frameworks for text in one.warnings),
        ],
        findings=[_answer(told), *findings],
        facts=[
            ("Supporters", ", ".join(supporters)),
            ("Seeker and judge" if title == STUDY else "Judges", judge),
            *((one.title, f"{len(one.dialogues):,} dialogues, {one.calls:,} calls") for one in frameworks),
            *([(examined.title, f"{examined.questions:,} questions")] if examined else []),
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        forests=forests,
        tables=tables,
        figures={"plumbing": plumbing},
    )


def judge_tables(frameworks: Sequence[FrameworkScores]) -> Iterator[Table]:
    """How far each framework's judge agrees with people, or with what else it was measured on; none where none is named."""
    rows: list[tuple[Cell, ...]] = []
    for one in (one for one in frameworks if one.judge):
        for language in one.agreement or [""]:
            figures = one.agreement.get(language, {}).get(AVERAGE, {})
            acc, low, high, most = (
                None if (part := figures.get(name)) is None else 100 * part
                for name in ("acc", "acc_low", "acc_high", "majority_acc")
            )
            cell = Estimate(acc, low, high, int(figures.get("n", 0)))
            rows.append((one.title, one.judge, one.gold or "nothing", name_of(language) if language else None, cell, most))
    columns = ("framework", "judge", "measured on", "language", "right, %", "most frequent score, %")
    notes = (
        "Right: verdicts that equal the gold score, over all dimensions, [95 % interval], n = verdicts. Beside it: how many "
        "would be right if every verdict were the most frequent score. In a synthetic gold set no person gave the scores.",
    )
    if rows:
        yield Table("study-judges", "How far does each judge agree with people?", columns, tuple(rows), notes, STUDY)


def disagreement_table(found: Sequence[Averages], language: Language) -> Table | None:
    """Two supporters of whom one framework has the one ahead and another the other; None where there are none."""
    rows: list[tuple[Cell, ...]] = []
    for both in combinations(found, 2):
        gaps = [{(side.names[gap.first], side.names[gap.second]): gap for gap in side.differences} for side in both]
        for pair in (pair for pair in gaps[0] if pair in gaps[1]):
            one, other = (side[pair] for side in gaps)
            if (one.estimate.mean or 0) * (other.estimate.mean or 0) < 0:
                sure = [side.title for side, gap in zip(both, (one, other), strict=True) if gap.holds]
                told = "both" if len(sure) == 2 else sure[0] if sure else "neither"
                rows.append((*pair, both[0].title, one.estimate, both[1].title, other.estimate, told))
    columns = ("supporter", "against", "by", "difference", "by", "difference", "significant in")
    note = f"Differences of averages, [{SMOOTHED}]. Where neither or only one is significant, it may be chance."
    title = f"Where do they disagree? {language}"
    return Table(f"study-disagreements-{language}", title, columns, tuple(rows), (note,), STUDY) if rows else None


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


def finished(folders: Sequence[Path]) -> list[FrameworkScores]:
    """What scored run folders hold, of whichever framework: one per folder and judge. Raises `UserError` for a folder that is
    no scored run or given twice, and where no supporter is in two of them."""
    found: list[FrameworkScores] = []
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run folder is given twice: name each run once")
    for folder in folders:
        config = shards.whole(folder)
        with open_run(folder) as run:
            calls = sum(used.calls for used in sums_of(run.usage().values()).values())
        judges: list[str | None] = [one.judge for one in sets_of(folder, config)]
        for judge in judges or [None]:  # without a judge it says what is missing
            one = read_run(folder.name, folder, judge)
            run_config = as_of(config, chosen_set(folder, config, judge))
            scored = ScoredRun(folder, run_config, Tally(one.dialogues, one.judgements, one.rubric, one.floors))
            framework = framework_of_run(scored)
            alarms = [*framework.alarms(scored)] if framework else []
            warnings = [f"{len(alarms)} dialogues that no average may hide, first {alarms[0].what}."] if alarms else []
            title = framework.title if framework else f"Rubric {one.rubric.name}"
            if any(other.title == title for other in found):
                title = f"{title} ({folder.name}, {judge})"
            people = digest(sorted(one.cards)) if one.cards else str(folder)
            records = one.dialogues, one.judgements, one.rubric, calls, one.floors, judge or ""
            gold = ("synthetic" if config.synthetic_gold else config.gold.dialogues) if config.gold else ""
            warnings += framework.cautions(scored) if framework else ()
            found.append(FrameworkScores(title, people, *records, gold, one.agreement, warnings))
    known = [{supporter_of(dialogue) for dialogue in one.dialogues} for one in found]
    if len(found) > 1 and not any(a & b for a, b in combinations(known, 2)):
        raise UserError("no supporter is in two of these runs: give runs of the same supporters")
    return found


def study_of_runs(folders: Sequence[Path]) -> Sheet:
    """Finished runs of any benchmarks side by side."""
    found = finished(folders)
    supporters = sorted({supporter_of(dialogue) for one in found for dialogue in one.dialogues})
    judges = ", ".join(dict.fromkeys(one.judge for one in found))
    plumbing = any(shards.whole(folder).plumbing for folder in folders)
    return study_sheet(found, None, supporters, judges, plumbing, "Several benchmarks on the same supporters")
