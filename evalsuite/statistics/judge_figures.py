"""Everything that `esc-eval agree` reports: judges' figures as JSON and as tables, and means over seeds and languages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from core.errors import UserError, near
from core.records import HumanScore
from core.rubrics import Rubric
from core.statistics.accuracy import FIGURES
from core.statistics.bootstrap import SEED, SMOOTHED, interval
from core.statistics.means import mean_of_all
from core.tables import Cell, Estimate, Table, file_keys, per_cent
from evalsuite.statistics.agreement import agreement_tables, in_steps, item_of, noted, paired, step_notes, unreadable
from evalsuite.statistics.agreement_intervals import average_draws, drawn_units
from evalsuite.statistics.clusters import DIALOGUES, Clusters
from evalsuite.statistics.judge_tests import ALL, beaten, compare, comparison_tables
from evalsuite.statistics.judges import (
    Judges,
    against_gold,
    calibration,
    confusion,
    confusion_tables,
    gold_of,
    source_names,
    source_of,
    table4,
)
from evalsuite.statistics.summary import AGREEMENT, AVERAGE, dimension_label, scorer_of

SYNTHETIC = "construction"  # the annotator that the synthetic gold set names
Families = dict[str, list[str]]  # name of a mean over seeds → its judges


@dataclass(frozen=True)
class JudgeSettings:
    """How judges are compared with gold."""

    mode: str
    """paper: unreadable verdicts count as wrong. native: they are left out."""
    rubric: Rubric | None = None
    """For labels and scales; None if the verdicts' rubric has no file."""
    left_out: str = ""
    """A sentence on what was left out beforehand."""
    seeds: bool = False
    """Treat judges called NAME@SEED as runs of one judge: show their mean, and test it in their place."""
    references: Sequence[str] = ()
    """Test only against these judges."""
    clusters: Clusters = DIALOGUES
    """What intervals and tests draw whole."""
    averages: bool = False
    """Add tables of averages over dimensions and languages."""
    seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Judge and method → seconds per dialogue."""


@dataclass(frozen=True)
class JudgeTables:
    """The tables: table 4 and averages, tests between judges, each judge's figures, and confusion matrices."""

    first: list[Table]
    tests: list[Table]
    judges: list[Table]
    counts: list[Table]

    def all(self) -> list[Table]:
        return [*self.first, *self.tests, *self.judges, *self.counts]


def judge_figures(judges: Judges, scores: Sequence[HumanScore], settings: JudgeSettings) -> tuple[dict[str, Any], JudgeTables]:
    """The figures as JSON, and as tables."""
    mode, rubric = settings.mode, settings.rubric
    labels = {key: dimension_label(rubric, key) for key in rubric.dimensions} if rubric else {}
    is_synthetic = {score.annotator for score in scores} == {SYNTHETIC}
    note = "synthetic gold, scores hold by construction" if is_synthetic else ""
    families = seed_families(judges) if settings.seeds else {}
    references = [name for reference in settings.references for name in _named(reference, [*families, *judges])]
    own_scores = scores
    own_verdicts, judges = judges, {name: in_steps(verdicts, (), rubric)[0] for name, verdicts in judges.items()}
    scores = in_steps((), own_scores, rubric)[1]
    figures = against_gold(judges, scores, settings.clusters)
    means = {name: _mean_of_runs([figures[member] for member in members]) for name, members in families.items()}
    differences = compare(judges, scores, mode, families, references, settings.clusters, settings.averages)
    counted = ({item_of(j) for j in verdicts if mode == "paper" or j.value is not None} for verdicts in judges.values())
    same = len(set(map(frozenset, counted))) == 1
    # A judge that was tested against only some of the others is not known to be the best.
    worse = () if references else beaten(differences)
    first = [*table4(means | figures, scores, mode, labels, note, same, worse)]
    tables = JudgeTables(first, comparison_tables(differences, mode, labels), judges=[], counts=[])
    if settings.averages or families:
        tables.first.extend(average_tables(judges, families, scores, means | figures, settings))
    described: dict[str, Any] = {}
    keys = file_keys(judges)
    for name, verdicts in judges.items():
        golden = gold_of(verdicts, scores)
        matrices = confusion(own_verdicts[name], gold_of(verdicts, own_scores), rubric.scales if rubric else None)
        tail = f"_{keys[name]}" if len(judges) > 1 else ""
        caption = "; ".join(part for part in (name if tail else "", note) if part)
        tables.judges.extend(agreement_tables(figures[name], mode, labels, caption, f"agreement{tail}"))
        tables.counts.extend(confusion_tables(matrices, labels, caption, f"confusion{tail}", rubric))
        described[name] = {
            **{"judge": verdicts[0].judge, "rubric": verdicts[0].rubric, "method": verdicts[0].method},
            "condition": dict(scorer_of(verdicts[0]).condition),
            "agreement": figures[name],
            "confusion": {language: {d: m._asdict() for d, m in matrices[language].items()} for language in matrices},
            "calibration": [part._asdict() for part in calibration(verdicts, golden, settings.clusters)],
        }
    for part in (tables.first, tables.judges):
        part[:] = [noted(table, step_notes(rubric)) for table in part]
    result: dict[str, Any] = {"mode": mode, "synthetic_gold": is_synthetic}
    if len(figures) == 1:
        result["agreement"] = next(iter(figures.values()))
    result["judges"] = described
    for key, average in (("differences", True), ("dimension_differences", False)):
        result[key] = [asdict(d) for d in differences if (d.dimension == AVERAGE) == average]
    if families:
        result["seeds"] = {name: {"judges": families[name], "agreement": mean} for name, mean in means.items()}
    if settings.left_out:
        result["left_out"] = settings.left_out
        tables = JudgeTables(*([noted(table, [settings.left_out]) for table in part] for part in vars(tables).values()))
    return result, tables


def seed_families(judges: Judges) -> Families:
    """The judges called NAME@SEED that differ only in the seed, where there are several."""
    members: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, verdicts in judges.items():
        judge, seed, _ = verdicts[0].judge.partition("@")
        if seed:
            members[judge, *source_of(verdicts[0])[1:]].append(name)
    names = source_names(members)
    return {f"{names[source]}, mean of {len(m)} seeds": m for source, m in members.items() if len(m) > 1}


def _named(reference: str, names: Sequence[str]) -> list[str]:
    """The judges that a name refers to: exactly, with several methods or conditions, or as a mean over seeds."""
    matches = [name for name in names if name == reference or name.startswith((f"{reference} · ", f"{reference}, mean of "))]
    if not matches:
        raise UserError(f"--reference: no judge {reference!r}: {near(reference, names)}")
    return matches


def _mean_of_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of `agreement`, averaged over runs of one judge on the same items; no intervals, counts of the first run."""
    return {
        language: {
            dimension: row
            | dict.fromkeys(name for name in row if name.endswith(("_low", "_high")))
            | {name: mean_of_all(run[language][dimension][name] for run in runs) for name in (*FIGURES, "over_majority")}
            for dimension, row in rows.items()
        }
        for language, rows in runs[0].items()
    }


def average_tables(
    judges: Judges,
    families: Families,
    scores: Sequence[HumanScore],
    figures: Mapping[str, Mapping[str, Any]],
    settings: JudgeSettings,
) -> Iterator[Table]:
    """Averages over dimensions: a table per language, and one of the mean over languages. Several seeds of one judge come after
    their mean. Judges that lack a dimension are left out: averages over different dimensions are not comparable."""
    pairs = {name: paired(verdicts, gold_of(verdicts, scores)) for name, verdicts in judges.items()}
    languages = sorted({language for by_language in pairs.values() for language in by_language})
    dimensions = {language: {d for sets in pairs.values() for d in sets.get(language, {})} for language in languages}
    seeds = {members[0]: (name, members) for name, members in families.items()}
    # The mean over seeds comes before the first of them.
    rows = [row for name in judges for row in (seeds.get(name), (name, [name])) if row]
    suffix, counted = ("", "n") if settings.mode == "paper" else ("_read", "read")
    for language in [*languages, ALL] if len(languages) > 1 else languages:
        parts = languages if language == ALL else [language]
        body: list[dict[str, Cell]] = []
        for name, members in rows:
            if any(set(pairs[members[0]].get(part, {})) != dimensions[part] for part in parts):
                continue
            averages = [figures[name][part][AVERAGE] for part in parts]
            n = sum(average[counted] for average in averages)
            row: dict[str, Cell] = {"judge": name}
            for head, figure in (("ACC %", f"acc{suffix}"), ("ACC_soft %", f"acc_soft{suffix}")):
                sides = [(pairs[member][part], SEED + number) for member in members for number, part in enumerate(parts)]
                draws = [average_draws(side, figure, settings.clusters, seed) for side, seed in sides]
                defined = [draw for draw in draws if draw is not None]
                low, high = interval(np.mean(defined, axis=0)) if len(defined) == len(draws) else (None, None)
                row[head] = Estimate(mean_of_all(average[figure] for average in averages), low, high, n).times(100)
            kappa, spearman, ece = (mean_of_all(average[f] for average in averages) for f in ("kappa", "spearman", "ece"))
            row |= {"kappa": kappa, "Spearman": spearman, "ECE %": per_cent(ece)}
            if settings.seconds:
                sources = [(judges[member][0].judge, judges[member][0].method) for member in members]
                row["s a dialogue"] = mean_of_all(settings.seconds.get(source) for source in sources)
            body.append(row)
        drawn = drawn_units((sets[part] for sets in pairs.values() for part in parts if part in sets), settings.clusters)
        note = (
            f"Means over dimensions; n counts ratings. [{SMOOTHED} over {settings.clusters.name} ({len(drawn)}), the same "
            f"draws for every judge]. {unreadable(settings.mode)} A dash: undefined on some dimension."
        )
        title = f"Judges on average, {'mean over languages' if language == ALL else language}"
        heads = ("judge", "ACC %", "ACC_soft %", "kappa", "Spearman", "ECE %", *["s a dialogue"] * bool(settings.seconds))
        yield Table.of(f"judge_averages_{language}", title, body, [note], AGREEMENT, heads=heads)
