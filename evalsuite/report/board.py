"""Pages over several runs: one board, and why some runs are not on it; boards from people's scores (table 2); whether a later
run is better (`leaderboard --against`), and what changed."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from core.languages import name_of
from core.records import Dialogue, HumanScore
from core.rubrics import Rubric
from core.settings import changed_leaves, differing_leaves
from core.specs import EMBEDDED_PREFIX
from core.tables import Table
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import RubricCheck, gold_scores_of
from evalsuite.report import charts
from evalsuite.report.headlines import belief, found_in, unit_of, verdict
from evalsuite.report.report import PLUMBING, ReportContent
from evalsuite.report.sheet import Forest, ForestLine, Sheet, gap_forest, reach
from evalsuite.runs.records import SharedCards, made_with, shared_cards
from evalsuite.runs.texts import is_hash, text_diffs
from evalsuite.statistics.comparison import Pair, RunComparison, RunRecords, agreements_of, as_json, tables
from evalsuite.statistics.contestants import verdicts_of_people
from evalsuite.statistics.leaderboard import Tally, leaderboard, pairwise_differences
from evalsuite.statistics.summary import dimension_at, dimension_label, distributions

RUNS = "Runs"  # heading of the page
SETTINGS_SHOWN = 5  # the most of a run that is not comparable


def board(runs: Sequence[RunRecords], cluster: str | None = None) -> ReportContent:
    """The content of the page. Raises `UserError` if the runs share no card."""
    together = shared_cards(runs, cluster)
    tally, first = together.tally, together.runs[0].config
    scores_given = distributions(tally.verdicts, tally.rubric)
    return ReportContent(
        title="Leaderboard over " + (f"{len(together.runs)} runs" if len(together.runs) > 1 else "one run"),
        framework=first.get("simulate", {}).get("framework", "given dialogues"),
        mode=first["score"].get("mode", "native"),
        plumbing=any(f"'checkpoint': '{EMBEDDED_PREFIX}" in str(run.config) for run in together.runs),
        synthetic_gold=False,
        tally=tally,
        cards={},
        agreements=agreements_of(together.runs),
        tables=[*leaderboard(tally.boards, tally.rubric), *pairwise_differences(tally.boards), scores_given, *_runs(together)],
        charts=[*charts.distribution_charts(scores_given, tally.rubric)],
        generated=time.strftime("%Y-%m-%d %H:%M"),
        warnings=[*_warnings(together)],
    )


def _runs(together: SharedCards) -> Iterator[Table]:
    rows = [
        {"run": run.name, "folder": str(run.folder), "dialogues": len(run.dialogues)}
        | {"left out": together.left_out.get(run.name, 0)}
        for run in together.runs
    ]
    shared = ", ".join(f"{language} {count}" for language, count in together.shared.items())
    note = f"Cards (times trials) that all these runs have: {shared}. Only they count."
    yield Table.of("runs", "Runs on this board", rows, [note], RUNS)
    if together.apart:
        others = [{"run": run, "setting: first run's → its own": line} for run, of in together.apart.items() for line in of]
        yield Table.of("runs-apart", f"Runs that do not compare with {together.runs[0].name}", others, section=RUNS)


def _warnings(together: SharedCards) -> Iterator[str]:
    for run, lines in together.apart.items():
        more = f" and {len(lines) - SETTINGS_SHOWN} more" if len(lines) > SETTINGS_SHOWN else ""
        yield f"{run} is not on this board: it was made with other settings ({'; '.join(lines[:SETTINGS_SHOWN])}{more})."
    if left_out := {run: count for run, count in together.left_out.items() if count}:
        counts = ", ".join(f"{count:,} of {run}" for run, count in left_out.items())
        yield f"Left out are dialogues on cards that not all runs have: {counts}."


SECTION = "Scores by people"


def people_scores(
    paths: Sequence[Path], rubrics: Sequence[Path | Rubric], dialogues: Sequence[Dialogue] | None
) -> tuple[list[HumanScore], dict[str, Rubric]]:
    """The scores in files, checked against dialogues and rubrics (first those given); and these rubrics by name."""
    check = RubricCheck(rubrics, dialogues)
    scores = gold_scores_of(paths, check)
    return scores, {name: check.rubrics[name] for name in dict.fromkeys(score.rubric for score in scores)}


def by_people(
    dialogues: Sequence[Dialogue],
    scores: Sequence[HumanScore],
    rubrics: Mapping[str, Rubric],
    floors: Collection[str],
) -> Iterator[Table]:
    """For each rubric: a leaderboard per language, the differences between supporters, and people's agreement."""
    for name, rubric in rubrics.items():
        of_rubric = [score for score in scores if score.rubric == name]
        tally = Tally(dialogues, verdicts_of_people(of_rubric), rubric, floors)
        several = f"-{name}" if len(rubrics) > 1 else ""
        for table in (*leaderboard(tally.boards, rubric), *pairwise_differences(tally.boards)):
            title = f"{table.title}, by people" + (f" ({name})" if several else "")
            yield replace(table, key=f"people-{table.key}{several}", title=title, section=SECTION)
    if agreed := agreement(scores, list(rubrics.values())):
        yield replace(agreement_table(agreed), key="people-agreement", section=SECTION)


# --- the page of leaderboard --against ------------------------------------------------------------------------------------


CHANGES_SHOWN = 3  # of those that changed, beside the table of all


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
        more = f"; {len(lines) - CHANGES_SHOWN} more" if len(lines) > CHANGES_SHOWN else ""
        yield f"Changed from {first.name} to {run.name}: {'; '.join(lines[:CHANGES_SHOWN]) or 'no setting'}{more}."


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
