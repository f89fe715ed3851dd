"""Selective judging: how sure a judge must be for its verdicts to reach a required accuracy, shown on gold.

A verdict is spoken if its most probable score reaches a threshold's probability. The threshold is chosen by testing in a fixed
sequence (Angelopoulos, Bates, Candès, Jordan and Lei 2021, "Learn then Test"): from the judge's surest verdicts to all of them,
as long as the lower bound of their accuracy is at least the required one. The first step that fails is the last, so that a
threshold keeps its promise on new dialogues in `LEVEL` of gold sets, however many steps there are. Verdicts of one cluster are
correlated: the bound is Clopper and Pearson's at the effective sample size (Korn and Graubard 1998, "Confidence intervals for
proportions with small expected number of positive counts estimated from survey data").
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, stdtrit

from core.errors import UserError
from core.grouping import group_by
from core.languages import name_of
from core.records import Identifier, Judgement, JudgeName, Language, Number, Record
from core.rubrics import Rubric
from core.statistics.accuracy import round_half_up
from core.statistics.bootstrap import LEVEL, SMOOTHED, Floats
from core.statistics.inference import cluster_error, contributions
from core.tables import Cell, Estimate, Table
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.agreement import Paired
from evalsuite.statistics.contestants import Clusters
from evalsuite.statistics.judges import POOLED
from evalsuite.statistics.paired import by_card, share
from evalsuite.statistics.summary import AGREEMENT, dimension_label

STEPS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # shares of the verdicts on gold, surest first, at which thresholds are tried


class Spoken(Record):
    """A judge's verdict on a dialogue, or its silence."""

    dialogue_id: Identifier
    """The judged dialogue."""
    language: Language
    judge: JudgeName
    """The judge's name."""
    dimension: Identifier
    """The rubric's dimension."""
    value: Number | None
    """The verdict; null if the judge is silent."""


class SelectiveCase(NamedTuple):
    """A verdict with gold: its dialogue's cluster, the probability of its most probable score, and whether it is right."""

    cluster: str
    confidence: float
    right: bool


Cases = Mapping[tuple[Language, str], Sequence[SelectiveCase]]  # by language and dimension


def cases_of(pairs: Paired, rubric: Rubric, clusters: Clusters) -> dict[tuple[Language, str], list[SelectiveCase]]:
    """The verdicts with probabilities, by language and dimension. Raises `UserError` if there are none."""
    cases: dict[tuple[Language, str], list[SelectiveCase]] = {}
    for judgement, gold in chain.from_iterable(chain.from_iterable(dimensions.values() for dimensions in pairs.values())):
        if judgement.distribution and judgement.value is not None:
            confidence = max(judgement.distribution.values())
            case = SelectiveCase(clusters[judgement.dialogue_id], confidence, judgement.value == round_half_up(gold))
            cases.setdefault((judgement.language, judgement.dimension), []).append(case)
    if not cases:
        raise UserError("no verdict on gold has token probabilities, which this needs (see `esc-eval models --check`)")
    place = list(rubric.dimensions).index
    return dict(sorted(cases.items(), key=lambda item: (item[0][0], place(item[0][1]))))


def right(cases: Iterable[SelectiveCase]) -> Estimate:
    """The share of verdicts, in per cent, that equal the gold score."""
    return share((case.cluster, case.right) for case in cases)


# --- thresholds ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AcceptThreshold:
    """The least probability (0–1) of the most probable score of a verdict that is spoken, and the lower bound (0–1) of the
    accuracy there; None if no threshold is shown to keep the promise, so that nothing is spoken."""

    least: float | None
    bound: float | None

    def speaks(self, confidence: float) -> bool:
        """Whether a verdict whose most probable score has this probability is spoken."""
        return self.least is not None and confidence >= self.least


SILENT = AcceptThreshold(None, None)


def lower_bound(hits: Floats, counts: Floats) -> float:
    """One-sided lower bound (0–1) of a share at `LEVEL`, from each cluster's hits and verdicts [clusters]."""
    share, parts, clusters = contributions(hits, counts)
    n, mean, error = float(counts.sum()), float(share), float(cluster_error(parts, clusters))
    if clusters < 2 or not mean > 0:
        return 0.0
    # If all verdicts are right, the correlation within clusters is unknown: each cluster then counts once.
    effective = float(clusters)
    if error > 1e-9 and mean < 1:
        freedom = float(stdtrit(n - 1, 1 - LEVEL) / stdtrit(clusters - 1, 1 - LEVEL))
        effective = min(n, mean * (1 - mean) / error**2 * freedom**2)
    return float(betaincinv(mean * effective, (1 - mean) * effective + 1, 1 - LEVEL))


def threshold_for(cases: Sequence[SelectiveCase], accuracy: float) -> AcceptThreshold:
    """The lowest threshold whose verdicts are shown to reach an accuracy (0–1), over all dimensions together."""
    confidences = np.array([case.confidence for case in cases])
    hits = np.array([case.right for case in cases], dtype=np.float64)
    clusters, chosen = [case.cluster for case in cases], SILENT
    for step in STEPS:
        least = float(np.sort(confidences)[-max(1, round(step * len(confidences)))])
        bound = lower_bound(*by_card(np.where(confidences >= least, hits, np.nan), clusters))
        if bound < accuracy:
            break
        chosen = AcceptThreshold(least, bound)
    return chosen


def by_language(cases: Cases) -> dict[Language, list[SelectiveCase]]:
    """The cases of all dimensions."""
    groups = group_by(cases, lambda key: key[0])
    return {language: [case for key in keys for case in cases[key]] for language, keys in groups.items()}


def spoken_verdicts(
    thresholds: Mapping[Language, AcceptThreshold], judgements: Iterable[Judgement], rubric: Rubric
) -> Iterator[Spoken]:
    """A run's verdicts on whole dialogues, except lost ones, with None where the judge is silent."""
    place = list(rubric.dimensions).index
    whole = (verdict for verdict in judgements if verdict.turn is None and not (verdict.lost or verdict.unasked))
    for verdict in sorted(whole, key=lambda verdict: (verdict.language, place(verdict.dimension), verdict.dialogue_id)):
        speaks = thresholds.get(verdict.language, SILENT).speaks(max((verdict.distribution or {}).values(), default=0.0))
        fields = verdict.model_dump(include=Spoken.model_fields.keys() - {"value"})
        yield Spoken(**fields, value=verdict.value if speaks else None)


# --- a part of a judge's card -----------------------------------------------------------------------------------------------


def with_kept(
    card: Sheet, cases: Cases, thresholds: Mapping[Language, AcceptThreshold], rubric: Rubric, accuracy: float
) -> Sheet:
    """A judge's card, with the verdicts to keep for an `accuracy` (0–1)."""
    groups = by_language(cases)
    return replace(
        card,
        findings=[*card.findings, *(_spoken(groups[code], code, each, accuracy) for code, each in thresholds.items())],
        main=[*card.main, "spoken"],
        tables=[*card.tables, spoken_table(cases, thresholds, rubric, accuracy)],
        figures={**card.figures, "accuracy": accuracy, "thresholds": {code: each.least for code, each in thresholds.items()}},
    )


def _spoken(every: Sequence[SelectiveCase], language: Language, threshold: AcceptThreshold, accuracy: float) -> str:
    kept = [case for case in every if threshold.speaks(case.confidence)]
    name, whole = name_of(language), right(every)
    if threshold.bound is None:
        share_right = f"it is right on {whole.mean:.0f} % of all {whole.n} verdicts on gold"
        return f"{name}: no threshold is shown to reach {100 * accuracy:g} %, so the judge says nothing; {share_right}."
    return (
        f"{name}: the judge speaks on {100 * len(kept) / len(every):.0f} % of the verdicts on gold and is right on "
        f"{right(kept).mean:.0f} % of these, at least {100 * threshold.bound:.0f} % ({100 * LEVEL:g} % sure), against "
        f"{whole.mean:.0f} % of all."
    )


def spoken_table(cases: Cases, thresholds: Mapping[Language, AcceptThreshold], rubric: Rubric, accuracy: float) -> Table:
    """The share of kept verdicts and their accuracy, by dimension and together, compared with all verdicts."""
    rows: list[dict[str, Cell]] = []
    for language, every in by_language(cases).items():
        threshold = thresholds[language]
        least, bound = (None if figure is None else 100 * figure for figure in (threshold.least, threshold.bound))
        parts = [(dimension_label(rubric, name), None, group) for (code, name), group in cases.items() if code == language]
        for name, at_least, group in (*parts, (POOLED, bound, every)):
            flags = [(case.cluster, threshold.speaks(case.confidence)) for case in group]
            kept = [case for case in group if threshold.speaks(case.confidence)]
            row: dict[str, Cell] = {"language": language, "dimension": name, "spoken from %": least, "kept %": share(flags)}
            rows.append(row | {"ACC when it speaks %": right(kept), "at least %": at_least, "ACC of all %": right(group)})
    notes = (
        "Spoken from: the least probability of a verdict's most probable score, the same for all dimensions of a language. At "
        f"least: the lower bound of the accuracy of spoken verdicts, {100 * LEVEL:g} % sure, over all dimensions: a single one "
        "may be worse. A dash: no threshold is shown to reach the required accuracy.",
        f"n = verdicts, [{SMOOTHED} over cards, or dialogues without a card]. For dialogues like those of the gold set.",
    )
    return Table.of("spoken", f"Verdicts that are right {100 * accuracy:g} times in 100", rows, notes, AGREEMENT)
