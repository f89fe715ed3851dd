"""Tests between judges on shared items: differences in ACC on every dimension and on the average, over clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from core.errors import UserError
from core.records import HumanScore, Judgement
from core.statistics.bootstrap import SEED, SMOOTHED, Floats, estimate
from core.statistics.inference import ALPHA, TEST, beside_interval, cluster_error, contributions, holds, holm_of, student_p
from core.tables import Cell, Estimate, Table, per_cent
from evalsuite.statistics.agreement import Item, Paired, item_of, paired, unreadable
from evalsuite.statistics.agreement_intervals import Dimensions, drawn_units, hit_counts, ratio_draws
from evalsuite.statistics.clusters import DIALOGUES, Clusters
from evalsuite.statistics.judges import Judges, gold_of
from evalsuite.statistics.paired import yes_or_no
from evalsuite.statistics.summary import AGREEMENT, AVERAGE


@dataclass(frozen=True)
class JudgeDifference:
    """ACC of `a` minus ACC of `b` (−1 to 1) on `n` shared items in `clusters`, on a dimension or the average of all.

    Figures are None without a shared item (the average: on some dimension); interval and p (`core.statistics.inference`) are
    None for a single cluster. `p_holm` is corrected over the averages of all pairs of a language, or over the dimensions of all
    pairs.
    """

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
    """Every two judges, by pair, language and dimension, the average last. Items on which either verdict was lost with a server
    are not compared, nor, in native mode, items on which either is unreadable.

    `seeds` maps a name to the judges that their mean replaces under it. `references`: only pairs with one of these.
    `over_languages`: also the difference in the mean over languages (`ALL`).
    Raises `UserError` for two judges that share no item.
    """
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
            raise UserError(
                f"judges {a} and {b} have no item in common: give judgements of the same dialogues and dimensions "
                "(where they are on several rubrics, choose one with --rubric)"
            )
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


@dataclass(frozen=True)
class _Gaps:
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
    accuracies, p_value = (float(first), float(second)), None if np.isnan(p[0]) else float(p[0])
    return JudgeDifference(language, dimension, a, b, n, on, *accuracies, difference, interval.low, interval.high, p_value)


def beaten(differences: Sequence[JudgeDifference]) -> set[tuple[str, str, str]]:
    """(language, dimension, judge) of every judge that another significantly outperforms."""
    return {(d.language, d.dimension, d.b if (d.difference or 0) > 0 else d.a) for d in differences if holds(d.p_holm)}


def comparison_tables(differences: Sequence[JudgeDifference], mode: str, labels: Mapping[str, str]) -> list[Table]:
    """A table of differences in the average and one in the dimensions, in per cent and points; none for a single judge."""
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
