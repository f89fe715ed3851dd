"""The page of `esc-eval leaderboard --against`: whether a later run is better, and what changed."""

import time
from collections.abc import Callable, Iterator
from itertools import groupby

from core.languages import name_of
from core.settings import changed_leaves, differing_leaves
from core.specs import EMBEDDED_PREFIX
from evalsuite.report.forest import Forest, ForestLine, gap_forest, reach
from evalsuite.report.headlines import belief, found_in, unit_of, verdict
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.runs.records import made_with
from evalsuite.runs.texts import is_hash, text_diffs
from evalsuite.statistics.comparison import Pair, RunComparison, agreements_of, as_json, tables
from evalsuite.statistics.summary import dimension_at, dimension_label

SETTINGS_SHOWN = 3  # of those that changed, beside the table of all


def comparison_sheet(comparison: RunComparison) -> Sheet:
    """The page: a verdict on every pair of models, their differences, and other changes."""
    first, *others = comparison.runs
    decisive = comparison.decisive
    # A single supporter is called by its runs.
    runs = len(decisive) == 1 and decisive[0][0].contestant.supporter == decisive[0][1].contestant.supporter
    level = max(run.level for run in comparison.runs)
    verdicts = [_verdict(pair, runs, level) for pair in decisive]
    return Sheet(
        title=f"{others[0].name if len(others) == 1 else f'{len(others)} runs'} compared with {first.name}",
        cautions=[*_cautions(comparison)],
        findings=[
            *(verdicts or ["Nothing could be compared: no model of one run belongs to one of another."]),
            *(sentence for sure, sentence in _beliefs(comparison) if sure),
            *_dimensions(comparison),
            *_changes(comparison),
        ],
        facts=[
            ("Runs", ", ".join(str(run.folder) for run in comparison.runs)),
            ("Rubric", comparison.rubric.name),
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        forests=[*_forests(comparison)],
        texts=[
            diff._replace(what=f"{diff.what}, {run.name}" if len(others) > 1 else diff.what)
            for run in others
            for diff in text_diffs(first.folder, run.folder, (first.config, run.config))
        ],
        tables=tables(comparison),
        figures=as_json(comparison),
    )


def _verdict(pair: Pair, by_run: bool, level: float) -> str:
    late, early = (side.run if by_run else side.name for side in pair[:2])
    first, second, gap = pair[0].contestant, pair[1].contestant, pair[2]
    if first.alike(second):
        return f"{late} and {early} gave the same replies on every card that both have: there is nothing to test."
    judges = dict.fromkeys((first.scorer.judge, second.scorer.judge))
    return f"{verdict(late, early, gap, unit_of(first), level)}, judged by {' and '.join(judges)}."


def _dimensions(comparison: RunComparison) -> Iterator[str]:
    """The dimensions on which the models of a pair differ."""
    found = [pair for pair in comparison.models(comparison.pooled) if pair[2].holds and pair[2].dimension is not None]
    for name, of_pair in groupby(found, key=_labels(comparison)):
        rises = [f"{_dimension(comparison, pair)} {pair[2].estimate.mean:+.1f}" for pair in of_pair]
        yield f"{name}, by dimension: {', '.join(rises)}; on the others no difference was found."


def _changes(comparison: RunComparison) -> Iterator[str]:
    """The changes in the configs, without hashes; a whole part is only reported as added or removed."""
    first, *others = comparison.runs
    for run in others:
        lines = []
        for where, old, new in changed_leaves(first.config, run.config):
            whole = "removed" if isinstance(old, dict) else "added" if isinstance(new, dict) else ""
            if not is_hash(where):
                lines.append(f"{where} {whole}" if whole else differing_leaves({where: old}, {where: new})[0])
        more = f"; {len(lines) - SETTINGS_SHOWN} more" if len(lines) > SETTINGS_SHOWN else ""
        yield f"Changed from {first.name} to {run.name}: {'; '.join(lines[:SETTINGS_SHOWN]) or 'no setting'}{more}."


def _beliefs(comparison: RunComparison) -> list[tuple[bool, str]]:
    """For every judge, whether it is reliable, and why."""
    entries = comparison.pooled.entries if comparison.pooled else []
    judges = dict.fromkeys(entry.contestant.scorer.judge for entry in entries)
    languages = [part.language for part in comparison.languages]
    return [belief(agreements_of(comparison.runs), judge, languages) for judge in judges]


def _cautions(comparison: RunComparison) -> Iterator[str]:
    first, *others = comparison.runs
    if any(EMBEDDED_PREFIX in str(run.config) for run in comparison.runs):
        yield PLUMBING
    yield from (sentence for sure, sentence in _beliefs(comparison) if not sure)
    for run in others:
        changed = [where for where, *_ in changed_leaves(made_with(first.config), made_with(run.config))]
        if settings := dict.fromkeys(".".join(where.split(".")[:2]) for where in changed):
            yield f"{run.name} differs from {first.name} also in {', '.join(settings)}. The difference may come from there."


def _forests(comparison: RunComparison) -> Iterator[Forest]:
    """Differences in the average and on every dimension, for a single pair also per language; empty if no pair was compared."""
    averages, rubric = comparison.decisive, comparison.rubric
    own = [pair for pair in comparison.models(comparison.pooled) if pair[2].dimension is not None]
    ends = reach(gap.estimate for *_, gap in (*averages, *own))
    if len(averages) == 1:
        several = comparison.languages if len(comparison.languages) > 1 else []
        whole = {"all languages" if several else "average": averages}
        parts = whole | {name_of(part.language): comparison.models(part)[-1:] for part in several}
        yield gap_forest("Average", [_line(name, pair) for name, pairs in parts.items() for pair in pairs], ends, "")
        yield gap_forest("Each dimension", [_line(_dimension(comparison, pair), pair) for pair in own], ends, "")
    elif averages:
        label = _labels(comparison)
        yield gap_forest("Average", [_line(label(pair), pair) for pair in averages], ends, "compared")
        estimates = {name: [[pair[2].estimate] for pair in of_pair] for name, of_pair in groupby(own, key=label)}
        columns = [dimension_label(rubric, name) for name in rubric.dimensions]
        lines = [ForestLine(label(pair), estimates[label(pair)]) for pair in averages]
        yield gap_forest("Each dimension", lines, ends, "compared", columns)


def _line(name: str, pair: Pair) -> ForestLine:
    same = pair[0].contestant.alike(pair[1].contestant)
    return ForestLine(name, [[pair[2].estimate]], said="the same replies" if same else found_in(pair[2]))


def _labels(comparison: RunComparison) -> Callable[[Pair], str]:
    """The names of pairs: only the supporter's name if it is compared with itself."""
    short = {
        (late.name, early.name): " against ".join(dict.fromkeys((late.contestant.supporter, early.contestant.supporter)))
        for late, early, _ in comparison.decisive
    }
    if len(set(short.values())) < len(short):
        short = {names: " against ".join(names) for names in short}
    return lambda pair: short[pair[0].name, pair[1].name]


def _dimension(comparison: RunComparison, pair: Pair) -> str:
    return dimension_label(comparison.rubric, dimension_at(comparison.rubric, pair[2].dimension))
