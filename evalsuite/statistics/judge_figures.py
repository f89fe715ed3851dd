"""Everything that `esc-eval agree` reports: judges' figures as JSON and as tables, means over seeds and languages, and tests
between judges on shared items (differences in ACC on every dimension and on the average, over clusters)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from core.errors import UserError, near
from core.grouping import mean_of_all
from core.records import HumanScore, Judgement
from core.rubrics import Rubric
from core.statistics.accuracy import FIGURES
from core.statistics.bootstrap import SEED, SMOOTHED, Floats, estimate, interval
from core.statistics.inference import ALPHA, TEST, beside_interval, cluster_error, contributions, holds, holm_of, student_p
from core.tables import Cell, Estimate, Table, file_keys, per_cent
from evalsuite.statistics.agreement import (
    Dimensions,
    Item,
    Paired,
    agreement_tables,
    average_draws,
    drawn_units,
    hit_counts,
    in_steps,
    item_of,
    noted,
    paired,
    ratio_draws,
    step_notes,
    unreadable,
)
from evalsuite.statistics.contestants import DIALOGUES, Clusters
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
from evalsuite.statistics.paired import yes_or_no
from evalsuite.statistics.summary import AGREEMENT, AVERAGE, dimension_label, scorer_of

SYNTHETIC = "construction"  # the annotator that the synthetic gold set names
SYNTHETIC_NOTE = "synthetic gold, scores hold by construction"
Families = dict[str, list[str]]  # name of a mean over seeds → its judges


@dataclass(frozen=True)
class JudgeSettings:
    """How judges are compared with gold. In `mode` paper unreadable verdicts count as wrong, in native they are left out.
    `rubric` gives labels and scales; `left_out` says what was left out beforehand. With `seeds`, judges called NAME@SEED are
    runs of one judge, whose mean is tested in their place; `references`: test only against these judges. `averages` adds tables
    of averages over dimensions and languages; `seconds` maps judge and method → seconds per dialogue."""

    mode: str
    rubric: Rubric | None = None
    left_out: str = ""
    seeds: bool = False
    references: Sequence[str] = ()
    clusters: Clusters = DIALOGUES
    averages: bool = False
    seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)


class JudgeTables(NamedTuple):
    """Table 4 and averages, tests between judges, each judge's figures, and confusion matrices."""

    first: list[Table]
    tests: list[Table]
    judges: list[Table]
    counts: list[Table]


def judge_figures(judges: Judges, scores: Sequence[HumanScore], settings: JudgeSettings) -> tuple[dict[str, Any], JudgeTables]:
    """The figures as JSON, and as tables."""
    mode, rubric = settings.mode, settings.rubric
    labels = {key: dimension_label(rubric, key) for key in rubric.dimensions} if rubric else {}
    is_synthetic = {score.annotator for score in scores} == {SYNTHETIC}
    note = SYNTHETIC_NOTE if is_synthetic else ""
    families = seed_families(judges) if settings.seeds else {}
    references = [name for reference in settings.references for name in _named(reference, [*families, *judges])]
    own_verdicts, judges = judges, {name: in_steps(verdicts, (), rubric)[0] for name, verdicts in judges.items()}
    own_scores, scores = scores, in_steps((), scores, rubric)[1]
    figures = against_gold(judges, scores, settings.clusters)
    means = {name: _mean_of_runs([figures[member] for member in members]) for name, members in families.items()}
    differences = compare(judges, scores, mode, families, references, settings.clusters, settings.averages)
    counted = ({item_of(j) for j in verdicts if mode == "paper" or j.value is not None} for verdicts in judges.values())
    same = len(set(map(frozenset, counted))) == 1
    # A judge that was tested against only some of the others is not known to be the best.
    worse = () if references else beaten(differences)
    first = [*table4(means | figures, scores, mode, labels, note, same, worse)]
    if settings.averages or families:
        first += average_tables(judges, families, scores, means | figures, settings)
    tables = JudgeTables(noted(first, step_notes(rubric)), comparison_tables(differences, mode, labels), judges=[], counts=[])
    described: dict[str, Any] = {}
    keys = file_keys(judges)
    for name, verdicts in judges.items():
        golden = gold_of(verdicts, scores)
        matrices = confusion(own_verdicts[name], gold_of(verdicts, own_scores), rubric.scales if rubric else None)
        tail = f"_{keys[name]}" if len(judges) > 1 else ""
        caption = "; ".join(part for part in (name if tail else "", note) if part)
        of_judge = agreement_tables(figures[name], mode, labels, caption, f"agreement{tail}")
        tables.judges.extend(noted(of_judge, step_notes(rubric)))
        tables.counts.extend(confusion_tables(matrices, labels, caption, f"confusion{tail}", rubric))
        described[name] = {
            **{"judge": verdicts[0].judge, "rubric": verdicts[0].rubric, "method": verdicts[0].method},
            "condition": dict(scorer_of(verdicts[0]).condition),
            "agreement": figures[name],
            "confusion": {language: {d: m._asdict() for d, m in matrices[language].items()} for language in matrices},
            "calibration": [part._asdict() for part in calibration(verdicts, golden, settings.clusters)],
        }
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
        tables = JudgeTables(*(noted(part, [settings.left_out]) for part in tables))
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
    """The judges that a name refers to, with all their methods, conditions and means over seeds."""
    matches = [name for name in names if name == reference or name.startswith((f"{reference} · ", f"{reference}, mean of "))]
    if not matches:
        raise UserError(f"--reference: no judge {reference!r}: {near(reference, names)}")
    return matches


def _mean_of_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of `agreement` averaged over runs of one judge on the same items, without intervals."""
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
    """Averages over dimensions: a table per language, and one of the mean over languages. Judges that lack a dimension are left
    out: averages over different dimensions are not comparable."""
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


# --- tests between judges -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgeDifference:
    """ACC of `a` minus ACC of `b` (−1 to 1) on `n` shared items in `clusters`, on a dimension or the average of all; None
    without a shared item, interval and p also for a single cluster. `p_holm` is corrected over the averages of all pairs of a
    language, or over their dimensions."""

    language: str
    dimension: str
    a: str
    b: str
    n: int
    clusters: int
    acc_a: float | None = None
    acc_b: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None


ALL = "all"  # the mean over languages


def compare(
    judges: Judges,
    gold: Sequence[HumanScore],
    mode: str,
    seeds: Mapping[str, Sequence[str]] | None = None,
    references: Sequence[str] = (),
    clusters: Clusters = DIALOGUES,
    over_languages: bool = False,
) -> list[JudgeDifference]:
    """Every two judges (with `references`: pairs with one of these), by pair, language and dimension, the average last; with
    `over_languages` also in the mean over languages (`ALL`). `seeds` maps a name to the judges that their mean replaces. Items
    with a verdict that was lost, or in native mode unreadable, are not compared. Raises `UserError` for two judges that share
    no item."""
    families = seeds or {}
    runs = {name: [judges[member] for member in members] for name, members in families.items()}
    members = {member for family in families.values() for member in family}
    runs |= {name: [verdicts] for name, verdicts in judges.items() if name not in members}
    differences: list[JudgeDifference] = []
    for a, b in combinations(runs, 2):
        if references and not {a, b} & set(references):
            continue
        both = [*runs[a], *runs[b]]
        shared = set.intersection(*({item_of(j) for j in run} for run in both))
        if not shared:
            raise UserError(f"judges {a} and {b} have no item in common (of several rubrics, choose one with --rubric)")
        sides, gaps = [*_on_shared(both, gold, shared, mode)], []
        for number, (language, dimensions) in enumerate(sides[0].items()):
            gaps.append(_gaps([side[language] for side in sides], len(runs[a]), clusters, SEED + number))
            columns = enumerate([*dimensions, AVERAGE])
            differences += (_difference(language, name, a, b, gaps[-1:], column) for column, name in columns)
        if over_languages and len(gaps) > 1:
            differences.append(_difference(ALL, AVERAGE, a, b, gaps, -1))
    corrected = holm_of([d.p for d in differences], [(d.language, d.dimension == AVERAGE) for d in differences])
    return [replace(d, p_holm=p) for d, p in zip(differences, corrected, strict=True)]


def _on_shared(
    runs: Sequence[Sequence[Judgement]], gold: Sequence[HumanScore], shared: set[Item], mode: str
) -> Iterator[Paired]:
    """Every run's verdicts on shared items: the same languages, dimensions and items in the same order."""
    unread = {item_of(j) for run in runs for j in run if (j.value is None if mode == "native" else j.lost or j.unasked)}
    order = {item: place for place, item in enumerate(item_of(j) for j in runs[0])}
    for run in runs:
        kept = sorted((j for j in run if item_of(j) in shared), key=lambda j: order[item_of(j)])
        yield {
            language: {name: [p for p in pairs if item_of(p[0]) not in unread] for name, pairs in dimensions.items()}
            for language, dimensions in paired(kept, gold_of(kept, gold)).items()
        }


class _Gaps(NamedTuple):
    """Two sides of one language by column (dimensions, then the average): the numbers of items and of clusters, and the fewest
    clusters of a dimension; ACC of each side [2, columns], draws of the difference, and its parts [clusters, columns]."""

    items: Floats
    clusters: Floats
    fewest: Floats
    means: Floats
    draws: Floats
    parts: Floats


def _gaps(runs: Sequence[Dimensions], of_a: int, clusters: Clusters, seed: int) -> _Gaps | None:
    """`runs` are all judges' verdicts, the first `of_a` of them `a`'s; None without verdicts. As in ACC itself, every
    rating has the same weight, so clusters with many ratings weigh more."""
    units = drawn_units(runs, clusters)
    if not units:
        return None
    counts = [hit_counts(run, units, clusters) for run in runs]
    rated = counts[0].rated
    sides = [np.mean([counts_of.right for counts_of in part], axis=0) for part in (counts[:of_a], counts[of_a:])]
    _, parts, fewest = contributions(sides[0] - sides[1], rated)
    means = np.array([contributions(side, rated)[0] for side in sides])
    (draws,) = ratio_draws([(sides[0] - sides[1], rated)], seed, sides=2)
    means, parts = (np.column_stack([counts_of, counts_of.mean(axis=1)]) for counts_of in (means, parts))
    items, on = np.append(rated.sum(axis=0), rated.sum()), np.append(fewest, len(units))
    return _Gaps(items, on, np.append(fewest, fewest.min()), means, draws, parts)


def _difference(language: str, dimension: str, a: str, b: str, gaps: Sequence[_Gaps | None], column: int) -> JudgeDifference:
    """One column of a language, or its mean over several languages, which share no cluster."""
    present = [gap for gap in gaps if gap is not None]
    n, on = sum(int(gap.items[column]) for gap in present), sum(int(gap.clusters[column]) for gap in present)
    first, second = np.mean([gap.means[:, column] for gap in present] or [np.full(2, np.nan)], axis=0)
    if len(present) < len(gaps) or np.isnan(first - second):
        return JudgeDifference(language, dimension, a, b, n, on)
    draws = np.mean([gap.draws[:, column] for gap in present], axis=0)
    rated = [int(gap.fewest[column]) for gap in present]
    errors = [cluster_error(gap.parts[:, column], gap.fewest[column]) / len(gaps) for gap in present]
    difference = float(first - second)
    p = student_p([difference], [np.sqrt(np.square(errors).sum())], [sum(rated)], 1, [min(rated) - 1])
    p = beside_interval(np.where(min(rated) > 1, p, np.nan), draws[:, None])
    interval = estimate(difference, draws, n, min(rated))
    p_value = None if np.isnan(p[0]) else float(p[0])
    bounds = interval.low, interval.high
    return JudgeDifference(language, dimension, a, b, n, on, float(first), float(second), difference, *bounds, p_value)


def beaten(differences: Sequence[JudgeDifference]) -> set[tuple[str, str, str]]:
    """(language, dimension, judge) of every judge that another significantly outperforms."""
    return {(d.language, d.dimension, d.b if (d.difference or 0) > 0 else d.a) for d in differences if holds(d.p_holm)}


def comparison_tables(differences: Sequence[JudgeDifference], mode: str, labels: Mapping[str, str]) -> list[Table]:
    """A table of differences in the average and one in the dimensions; none for a single judge."""
    note = (
        f"On items that both judged, in points of ACC, [{SMOOTHED} over clusters, drawn whole]; n: ratings. p: {TEST}, and "
        f"above {ALPHA:g} wherever the interval contains 0; Holm's correction over the averages of all pairs of a language, "
        f"and separately over their dimensions. Fractional gold is rounded, halves up. {unreadable(mode)}"
    )
    tables = []
    for key, figure, average in (("judge_differences", "average ACC", True), ("judge_dimensions", "ACC by dimension", False)):
        rows: list[dict[str, Cell]] = []
        for d in differences:
            if (d.dimension == AVERAGE) == average:
                label = {} if average else {"Dimension": labels.get(d.dimension, d.dimension)}
                rows.append({"Language": d.language, **label})
                rows[-1] |= {"Judge": d.a, "minus": d.b, "ACC": per_cent(d.acc_a), "Other's ACC": per_cent(d.acc_b)}
                rows[-1] |= {"Points": Estimate(d.difference, d.low, d.high, d.n).times(100), "Clusters": d.clusters}
                rows[-1] |= {"p": _p(d.p), "p (Holm)": _p(d.p_holm), "Significant": yes_or_no(holds(d.p_holm))}
        tables.append(Table.of(key, f"Differences between judges in {figure}", rows, [note], AGREEMENT))
    return tables if differences else []


def _p(p: float | None) -> str | None:
    return None if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
