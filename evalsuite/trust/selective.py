"""Accuracy when it speaks: how sure a judge must be for its verdicts to be right as often as asked, shown on gold.

A verdict is spoken where its most probable score has at least a threshold's probability. The threshold is chosen by testing in
a fixed sequence (Angelopoulos, Bates, Candès, Jordan and Lei 2021, "Learn then Test"): from the verdicts that the judge is
surest of to all of them, as long as the lower bound of their accuracy is at least what is asked. The first step that fails is
the last, so that a threshold keeps its promise on new dialogues in `LEVEL` of gold sets, however many steps there are. Verdicts
of one cluster go together: the bound is Clopper and Pearson's at the effective sample size (Korn and Graubard 1998, "Confidence
intervals for proportions with small expected number of positive counts estimated from survey data").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, stdtrit

from core.errors import UserError
from core.grouping import group_by
from core.records import Identifier, Judgement, JudgeName, Language, Number, Record
from core.rubrics import Rubric
from core.statistics.accuracy import round_half_up
from core.statistics.bootstrap import LEVEL, SHARES, Floats
from core.statistics.inference import cluster_error, contributions
from core.tables import Estimate
from evalsuite.statistics.agreement import Paired
from evalsuite.statistics.clusters import Clusters
from evalsuite.statistics.paired import by_card, over_cards

STEPS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # shares of the verdicts on gold, surest first: where thresholds are tried


class Spoken(Record):
    """What a judge says of a dialogue, or that it says nothing."""

    dialogue_id: Identifier
    """The judged dialogue."""
    language: Language
    judge: JudgeName
    """The judge's name."""
    dimension: Identifier
    """The rubric's dimension."""
    value: Number | None
    """The verdict; null where the judge says nothing."""


class SelectiveCase(NamedTuple):
    """A verdict with gold: its dialogue's cluster, the probability of its most probable score, and whether it is right."""

    cluster: str
    sure: float
    right: bool


Cases = Mapping[tuple[Language, str], Sequence[SelectiveCase]]  # by language and dimension


def cases_of(pairs: Paired, rubric: Rubric, clusters: Clusters) -> dict[tuple[Language, str], list[SelectiveCase]]:
    """The verdicts with probabilities, by language and dimension. Raises `UserError` where a judge gave none."""
    cases: dict[tuple[Language, str], list[SelectiveCase]] = {}
    for dimensions in pairs.values():
        for dimension, of_one in dimensions.items():
            for judgement, gold in of_one:
                if judgement.distribution and judgement.value is not None:
                    sure = max(judgement.distribution.values())
                    case = SelectiveCase(clusters[judgement.dialogue_id], sure, judgement.value == round_half_up(gold))
                    cases.setdefault((judgement.language, dimension), []).append(case)
    if not cases:
        raise UserError("no verdict on gold has token probabilities: this needs them (see `esc-eval models --check`)")
    place = list(rubric.dimensions).index
    return dict(sorted(cases.items(), key=lambda item: (item[0][0], place(item[0][1]))))


def right(cases: Sequence[SelectiveCase]) -> Estimate:
    """The share of verdicts, in per cent, that are the gold score."""
    return share((case.cluster, case.right) for case in cases)


def share(flags: Iterable[tuple[str, bool]]) -> Estimate:
    """The share, in per cent, of flags that are given with their clusters, which are drawn whole for its interval."""
    given = [*flags]
    if not given:
        return Estimate(None, None, None, 0)
    hits = 100 * np.array([hit for _, hit in given], dtype=np.float64)
    return over_cards(hits[:, None], [cluster for cluster, _ in given], 100 * SHARES)[0]


# --- thresholds ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AcceptThreshold:
    """The least probability (0–1) of a verdict's most probable score with which it is spoken, and the lower bound (0–1) of the
    accuracy there; None where no threshold is shown to keep the promise, so that nothing is spoken."""

    least: float | None
    bound: float | None

    def speaks(self, sure: float) -> bool:
        """Whether a verdict is spoken whose most probable score has this probability."""
        return self.least is not None and sure >= self.least


SILENT = AcceptThreshold(None, None)


def lower_bound(hits: Floats, counts: Floats) -> float:
    """One-sided lower bound (0–1) of a share at `LEVEL`, from each cluster's hits and verdicts [clusters]."""
    share, parts, clusters = contributions(hits, counts)
    n, mean, error = float(counts.sum()), float(share), float(cluster_error(parts, clusters))
    if clusters < 2 or not mean > 0:
        return 0.0
    # Verdicts that are all right do not tell how far those of a cluster go together: each cluster then counts once.
    effective = float(clusters)
    if error > 1e-9 and mean < 1:
        freedom = float(stdtrit(n - 1, 1 - LEVEL) / stdtrit(clusters - 1, 1 - LEVEL))
        effective = min(n, mean * (1 - mean) / error**2 * freedom**2)
    return float(betaincinv(mean * effective, (1 - mean) * effective + 1, 1 - LEVEL))


def steps(cases: Sequence[SelectiveCase]) -> Iterator[AcceptThreshold]:
    """The thresholds that are tried, with their bounds."""
    sure = np.array([case.sure for case in cases])
    hits = np.array([case.right for case in cases], dtype=np.float64)
    clusters = [case.cluster for case in cases]
    for step in STEPS:
        least = float(np.sort(sure)[-max(1, round(step * len(sure)))])
        sums, counts = by_card(np.where(sure >= least, hits, np.nan), clusters)
        yield AcceptThreshold(least, lower_bound(sums, counts) if np.count_nonzero(counts) > 1 else None)


def threshold_for(cases: Sequence[SelectiveCase], accuracy: float) -> AcceptThreshold:
    """The lowest threshold whose verdicts are shown to be right as often as asked (0–1), of all dimensions together."""
    chosen = SILENT
    for tried in steps(cases):
        if tried.bound is None or tried.bound < accuracy:
            break
        chosen = tried
    return chosen


def by_language(cases: Cases) -> dict[Language, list[SelectiveCase]]:
    """The cases of all dimensions."""
    groups = group_by(cases, lambda key: key[0])
    return {language: [case for key in keys for case in cases[key]] for language, keys in groups.items()}


def spoken_verdicts(
    found: Mapping[Language, AcceptThreshold], judgements: Iterable[Judgement], rubric: Rubric
) -> Iterator[Spoken]:
    """A run's verdicts on whole dialogues that were not lost, where the judge speaks and where it says nothing."""
    place = list(rubric.dimensions).index
    whole = (one for one in judgements if one.turn is None and not one.lost)
    for one in sorted(whole, key=lambda one: (one.language, place(one.dimension), one.dialogue_id)):
        kept = found.get(one.language, SILENT).speaks(max((one.distribution or {}).values(), default=0.0))
        names = {"dialogue_id": one.dialogue_id, "language": one.language, "judge": one.judge, "dimension": one.dimension}
        yield Spoken.model_validate(names | {"value": one.value if kept else None})
