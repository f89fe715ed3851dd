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

import numpy as np
from scipy.special import betaincinv, stdtrit

from core.grouping import group_by
from core.records import Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import LEVEL, Floats
from core.statistics.inference import cluster_error, contributions
from evalsuite.statistics.conformal import Case, Cases, ScoreSet, whole_verdicts
from evalsuite.statistics.paired import by_card

STEPS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # shares of the verdicts on gold, surest first: where thresholds are tried


@dataclass(frozen=True)
class Threshold:
    """The least probability (0–1) of a verdict's most probable score with which it is spoken, and the lower bound (0–1) of the
    accuracy there; None where no threshold is shown to keep the promise, so that nothing is spoken."""

    least: float | None
    bound: float | None

    def speaks(self, probabilities: Iterable[float]) -> bool:
        """Whether a verdict with these probabilities is spoken."""
        return self.least is not None and max(probabilities, default=0.0) >= self.least


SILENT = Threshold(None, None)


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


def steps(cases: Sequence[Case]) -> Iterator[Threshold]:
    """The thresholds that are tried, with their bounds."""
    sure = np.array([max(case.probabilities) for case in cases])
    hits = np.array([case.value == case.gold for case in cases], dtype=np.float64)
    clusters = [case.cluster for case in cases]
    for step in STEPS:
        least = float(np.sort(sure)[-max(1, round(step * len(sure)))])
        sums, counts = by_card(np.where(sure >= least, hits, np.nan), clusters)
        yield Threshold(least, lower_bound(sums, counts) if np.count_nonzero(counts) > 1 else None)


def threshold_for(cases: Sequence[Case], accuracy: float) -> Threshold:
    """The lowest threshold whose verdicts are shown to be right as often as asked (0–1), of all dimensions together."""
    chosen = SILENT
    for tried in steps(cases):
        if tried.bound is None or tried.bound < accuracy:
            break
        chosen = tried
    return chosen


def by_language(cases: Cases) -> dict[Language, list[Case]]:
    """The cases of all dimensions."""
    groups = group_by(cases, lambda key: key[0])
    return {language: [case for key in keys for case in cases[key]] for language, keys in groups.items()}


def spoken_sets(found: Mapping[Language, Threshold], judgements: Iterable[Judgement], rubric: Rubric) -> Iterator[ScoreSet]:
    """A run's verdicts as score sets: the verdict alone where the judge speaks, else all scores."""
    for one in whole_verdicts(judgements, rubric):
        kept = one.value is not None and found.get(one.language, SILENT).speaks((one.distribution or {}).values())
        scores = (round(one.value),) if kept and one.value is not None else tuple(rubric.scale_of(one.dimension).scores)
        names = {"dialogue_id": one.dialogue_id, "language": one.language, "judge": one.judge, "dimension": one.dimension}
        yield ScoreSet.model_validate(names | {"scores": scores, "kept": kept})
