"""Tests between judges on the items that both saw: McNemar a dimension, differences over dialogues for the average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import HumanScore, Judgement
from core.statistics.accuracy import round_half_up
from core.statistics.bootstrap import SEED, SHARES, SMOOTHED, gap_levels, interval, smoothed_means
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.agreement import Dimensions, Item, Pair, Paired, drawn_units, hit_counts, item_of, paired, unreadable
from evalsuite.statistics.judges import Judges, gold_of
from evalsuite.statistics.paired import ALPHA, holm_of, sign_flip_p
from evalsuite.statistics.summary import AGREEMENT


@dataclass(frozen=True)
class Mcnemar:
    """Two judges on one dimension: `n` shared items, of which `only_a` only the first judge got right, `only_b` only the
    second. `p` is exact and two-sided, `p_holm` corrected over all tests of the language. With n = 0 figures are None."""

    language: str
    dimension: str
    a: str
    b: str
    n: int
    acc_a: float | None
    acc_b: float | None
    only_a: int
    only_b: int
    p: float | None
    p_holm: float | None = None


@dataclass(frozen=True)
class AverageDifference:
    """ACC of `a` minus ACC of `b` (−1 to 1), averaged over dimensions, on shared items; `n` dialogues, drawn whole.

    Figures are None where some dimension has no shared item, the interval where one has a single dialogue. `p` is of a sign-
    flip test over dialogues (`evalsuite.statistics.paired.sign_flip_p`), `p_holm` corrected over all pairs of the language.
    """

    language: str
    a: str
    b: str
    n: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None


ALL = "all"  # the mean over languages
Tested = TypeVar("Tested", Mcnemar, AverageDifference)


def compare(
    judges: Judges,
    gold: Sequence[HumanScore],
    mode: str,
    seeds: Mapping[str, Sequence[str]] | None = None,
    references: Sequence[str] = (),
    groups: Mapping[str, str] | None = None,
    over_languages: bool = False,
) -> tuple[list[Mcnemar], list[AverageDifference]]:
    """Every two judges, by language and pair. Items on which a judge was lost with its server are not compared; in native mode,
    nor are those that either judge left unreadable.

    `seeds`: the mean over these judges stands for them, by its name, in the differences; McNemar's test has no such mean.
    `references`: only pairs with one of these. `groups` of dialogues are drawn whole. `over_languages`: differences in the mean
    over languages as well (`ALL`).

    Raises `UserError` for two judges that share no item.
    """
    families = seeds or {}
    runs = {name: [judges[member] for member in members] for name, members in families.items()}
    seen = {member for members in families.values() for member in members}
    runs |= {name: [verdicts] for name, verdicts in judges.items() if name not in seen}
    tests: list[Mcnemar] = []
    average: list[AverageDifference] = []
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
        sides = [*_on_shared(both, gold, shared, mode)]
        languages = list(sides[0])
        parts = {language: [side[language] for side in sides] for language in languages}
        for language, runs_of in parts.items():
            if len(both) == 2:
                first, second = runs_of
                tests += (_mcnemar(language, name, a, b, first[name], second[name]) for name in first)
            average.append(_average(language, a, b, [runs_of], len(runs[a]), groups or {}))
        if over_languages and len(languages) > 1:
            average.append(_average(ALL, a, b, list(parts.values()), len(runs[a]), groups or {}))
    return list(_holm(tests)), list(_holm(average))


def _on_shared(
    runs: Sequence[Sequence[Judgement]], gold: Sequence[HumanScore], shared: set[Item], mode: str
) -> Iterator[Paired]:
    """All runs' verdicts on shared items, of the same languages, dimensions and items in the same order."""
    unread = {item_of(j) for run in runs for j in run if (j.value is None if mode == "native" else j.lost)}
    order = {item: place for place, item in enumerate(item_of(j) for j in runs[0])}
    for run in runs:
        kept = sorted((j for j in run if item_of(j) in shared), key=lambda j: order[item_of(j)])
        yield {
            language: {name: [p for p in pairs if item_of(p[0]) not in unread] for name, pairs in dimensions.items()}
            for language, dimensions in paired(kept, gold_of(kept, gold)).items()
        }


def _mcnemar(language: str, dimension: str, a: str, b: str, first: Sequence[Pair], second: Sequence[Pair]) -> Mcnemar:
    n = len(first)
    if not n:
        return Mcnemar(language, dimension, a, b, 0, None, None, 0, 0, None)
    from statsmodels.stats.contingency_tables import mcnemar

    one, other = (np.array([j.value == round_half_up(gold) for j, gold in pairs]) for pairs in (first, second))
    only_a, only_b = int((one & ~other).sum()), int((other & ~one).sum())
    p = float(mcnemar(np.array([[0, only_a], [only_b, 0]]), exact=True).pvalue)  # agreement does not enter
    return Mcnemar(language, dimension, a, b, n, float(one.mean()), float(other.mean()), only_a, only_b, p)


def _average(
    language: str, a: str, b: str, parts: Sequence[Sequence[Dimensions]], of_a: int, groups: Mapping[str, str]
) -> AverageDifference:
    """`parts`: by language the verdicts of all runs, those of the first `of_a` runs being `a`'s."""
    units = [drawn_units(runs, groups) for runs in parts]
    n = sum(map(len, units))
    if not all(pairs for runs in parts for pairs in runs[0].values()):
        return AverageDifference(language, a, b, n, None, None, None, None)
    means, draws, shares = [], [], []
    several = True
    for number, (runs, drawn) in enumerate(zip(parts, units, strict=True)):
        counts = [hit_counts(run, drawn, groups) for run in runs]
        rated, right = counts[0].rated, [run.right for run in counts]
        # Every rating weighs the same, as in the ACC that this is a difference of: dialogues with many rated turns weigh more.
        gaps, totals = np.mean(right[:of_a], axis=0) - np.mean(right[of_a:], axis=0), rated.sum(axis=0)
        several &= (rated > 0).sum(axis=0).min() > 1  # one dialogue says nothing of others
        draws.append(smoothed_means(gaps, rated, gap_levels(SHARES), SEED + number).mean(axis=1))
        means.append(float((gaps.sum(axis=0) / totals).mean()))
        shares.append((gaps / totals).mean(axis=1, keepdims=True) / len(parts))
    low, high = interval(np.mean(draws, axis=0)) if several else (None, None)
    p = float(sign_flip_p(np.concatenate(shares))[0])
    return AverageDifference(language, a, b, n, float(np.mean(means)), low, high, p)


def _holm(tests: Sequence[Tested]) -> Iterator[Tested]:
    """The tests by language, corrected within each."""
    for _, family in sorted(group_by(tests, lambda test: test.language).items()):
        corrected = holm_of([test.p for test in family])
        yield from (replace(test, p_holm=p) for test, p in zip(family, corrected, strict=True))


def comparison_tables(
    tests: Sequence[Mcnemar], average: Sequence[AverageDifference], mode: str, labels: Mapping[str, str]
) -> list[Table]:
    """A table of the average's differences and one of McNemar's tests, in per cent and points; none without two judges."""
    if not (tests or average):
        return []
    of_average = Table(
        key="judge_differences",
        title="Differences between judges in average ACC",
        columns=("Language", "Judge", "minus", "Points", "p", "p (Holm)", "Holds"),
        rows=tuple((d.language, d.a, d.b, _points(d), _p(d.p), _p(d.p_holm), _holds(d.p_holm)) for d in average),
        notes=(
            "Mean over dimensions, on items that both judged. Ratings of one dialogue hang together, so dialogues (n) are "
            f"drawn whole: [{SMOOTHED}], p of a sign-flip test, Holm's correction over the pairs of a language.",
            unreadable(mode),
        ),
        section=AGREEMENT,
    )
    of_dimensions = Table(
        key="judge_mcnemar",
        title="McNemar's test between judges",
        columns=(
            *("Language", "Dimension", "Judge", "Other judge", "n", "ACC", "Other's ACC", "Only judge right"),
            *("Only other right", "p", "p (Holm)", "Holds"),
        ),
        rows=tuple(
            (
                *(t.language, labels.get(t.dimension, t.dimension), t.a, t.b, t.n),
                *(None if acc is None else 100 * acc for acc in (t.acc_a, t.acc_b)),
                *(t.only_a, t.only_b, _p(t.p), _p(t.p_holm), _holds(t.p_holm)),
            )
            for t in tests
        ),
        notes=(
            "Exact, two-sided, on items (n) that both judged; Holm's correction over all tests of a language. Gold that is not "
            f"whole is rounded, halves up. {unreadable(mode)} Where single turns were rated, those of one dialogue hang "
            "together, and p is too small.",
        ),
        section=AGREEMENT,
    )
    return [of_average, of_dimensions] if tests else [of_average]


def _points(d: AverageDifference) -> Cell:
    return Estimate(d.difference, d.low, d.high, d.n).times(100)


def _p(p: float | None) -> str | None:
    return None if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _holds(p: float | None) -> str | None:
    return None if p is None else "yes" if p <= ALPHA else "no"
