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
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, stdtrit

from core.errors import UserError
from core.grouping import group_by
from core.languages import name_of
from core.records import Identifier, Judgement, JudgeName, Language, Number, Record
from core.rubrics import Rubric
from core.statistics.accuracy import round_half_up
from core.statistics.bootstrap import LEVEL, SHARES, SMOOTHED, Floats
from core.statistics.inference import cluster_error, contributions
from core.tables import Cell, Estimate, Table
from evalsuite.report.charts import Chart
from evalsuite.report.figures import curve, panels
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.agreement import Paired
from evalsuite.statistics.clusters import Clusters
from evalsuite.statistics.judges import POOLED
from evalsuite.statistics.paired import by_card, over_cards
from evalsuite.statistics.summary import AGREEMENT, dimension_label

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
    whole = (one for one in judgements if one.turn is None and not (one.lost or one.unasked))
    for one in sorted(whole, key=lambda one: (one.language, place(one.dimension), one.dialogue_id)):
        kept = found.get(one.language, SILENT).speaks(max((one.distribution or {}).values(), default=0.0))
        names = {"dialogue_id": one.dialogue_id, "language": one.language, "judge": one.judge, "dimension": one.dimension}
        yield Spoken.model_validate(names | {"value": one.value if kept else None})


# --- a part of a judge's card -----------------------------------------------------------------------------------------------


def with_kept(
    card: Sheet,
    cases: Cases,
    found: Mapping[Language, AcceptThreshold],
    spoken: Sequence[Spoken],
    clusters: Clusters,
    rubric: Rubric,
    accuracy: float,
) -> Sheet:
    """A judge's card, with the verdicts to keep so that they are right as often as `accuracy` (0–1) says."""
    tables = [spoken_table(cases, found, rubric, accuracy), *([kept_table(spoken, rubric, clusters)] if spoken else [])]
    charts = [_step_chart(language, of_one) for language, of_one in by_language(cases).items()]
    return replace(
        card,
        findings=[*card.findings, *(_spoken(cases, language, one, accuracy) for language, one in found.items())],
        main=[*card.main, "spoken"],
        tables=[*card.tables, *tables],
        charts=[*card.charts, *charts],
        figures={**card.figures, "accuracy": accuracy, "thresholds": {language: one.least for language, one in found.items()}},
    )


def _spoken(cases: Cases, language: Language, found: AcceptThreshold, accuracy: float) -> str:
    every = by_language(cases)[language]
    kept = [case for case in every if found.speaks(case.sure)]
    name, whole = name_of(language), right(every)
    if found.bound is None:
        return (
            f"{name}: no threshold is shown to reach {100 * accuracy:g} %, so the judge says nothing; it is right on "
            f"{whole.mean:.0f} % of all {whole.n} verdicts on gold."
        )
    return (
        f"{name}: the judge speaks on {100 * len(kept) / len(every):.0f} % of the verdicts on gold and is right on "
        f"{right(kept).mean:.0f} % of these, at least {100 * found.bound:.0f} % ({100 * LEVEL:g} % sure), against "
        f"{whole.mean:.0f} % of all."
    )


def spoken_table(cases: Cases, found: Mapping[Language, AcceptThreshold], rubric: Rubric, accuracy: float) -> Table:
    """How much is kept and how right it is, by dimension and together, beside all verdicts."""
    rows: list[dict[str, Cell]] = []
    for language, every in by_language(cases).items():
        threshold = found[language]
        least, bound = (None if one is None else 100 * one for one in (threshold.least, threshold.bound))
        parts = [(dimension_label(rubric, name), None, of_one) for (own, name), of_one in cases.items() if own == language]
        for name, at_least, of_one in (*parts, (POOLED, bound, every)):
            flags = [(case.cluster, threshold.speaks(case.sure)) for case in of_one]
            kept = [case for case in of_one if threshold.speaks(case.sure)]
            row: dict[str, Cell] = {"language": language, "dimension": name, "spoken from %": least, "kept %": share(flags)}
            rows.append(row | {"ACC when it speaks %": right(kept), "at least %": at_least, "ACC of all %": right(of_one)})
    notes = (
        "Spoken from: the least probability of a verdict's most probable score, one for all dimensions of a language. At "
        f"least: the lower bound of the accuracy of what is spoken, {100 * LEVEL:g} % sure, of all dimensions together: "
        "one by itself may be worse. A dash: no threshold is shown to reach what is asked.",
        f"n = verdicts, [{SMOOTHED} over cards, or dialogues without a card]. For dialogues like those of the gold set.",
    )
    return Table.of("spoken", f"Verdicts that are right {100 * accuracy:g} times in 100", rows, notes, AGREEMENT)


def kept_table(spoken: Sequence[Spoken], rubric: Rubric, clusters: Clusters) -> Table:
    """Of a run's own verdicts: how much is kept."""
    rows = [
        {
            "language": language,
            "dimension": dimension_label(rubric, dimension),
            "kept %": share((clusters[one.dialogue_id], one.value is not None) for one in of_one),
        }
        for (language, dimension), of_one in group_by(spoken, lambda one: (one.language, one.dimension)).items()
    ]
    note = f"Calibrated on the whole gold set. n = verdicts, [{SMOOTHED} over cards, or dialogues without a card]."
    return Table.of("spoken-run", "What of the run's verdicts is kept", rows, [note], AGREEMENT)


def _step_chart(language: Language, cases: Sequence[SelectiveCase]) -> Chart:
    """How right verdicts are by the share of them that is kept, surest first."""
    points = []
    for threshold in steps(cases):
        kept = [case for case in cases if threshold.speaks(case.sure)]
        at, hits = round(100 * len(kept) / len(cases)), right(kept)
        if hits.mean is not None:
            points.append((at, hits, f"of the surest {at} % {hits.mean:.0f} % are right (n = {hits.n})"))
    lines = curve("right, of what is kept", 0, points, step=False, band=True)
    lines = [line if "fill" in line else line | {"hovertemplate": "%{text}<extra></extra>"} for line in lines]
    axes = {"xaxis": {"title": {"text": "kept, % of verdicts"}}, "yaxis": {"title": {"text": "right, %"}}}
    return Chart(
        f"kept-{language}",
        f"How right the surest verdicts are, {name_of(language)}",
        "All dimensions together, surest first, with 95 % bands over cards.",
        "spoken",
        panels("curves", [name_of(language)], [lines], 1, 260, **axes),
    )
