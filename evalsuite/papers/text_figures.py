"""A supporter's figures on the reference metrics, with n and intervals over dialogues, as tables and as JSON."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from core.grouping import group_by
from core.records import Language
from core.statistics.bootstrap import LEVEL, PERCENTILE, POINTS, SMOOTHED, Floats, estimate, resampled_means, smoothed_means
from core.tables import Cell, Estimate, Table, json_record
from data_prep.responses import Response
from evalsuite.papers.text_metrics import BLEU_ORDERS, DISTINCT_ORDERS, LABELS, Sample, Unit, bleu_of, signature

SECTION = "Reference metrics"  # heading of the report

Level = Literal["corpus", "responses"]
# What a table's signature is about: the metrics it shows.
_LEVELS: dict[Level, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "corpus": ("over all replies at once", (*BLEU_ORDERS, *DISTINCT_ORDERS), ("bleu", "distinct")),
    "responses": ("means over replies", tuple(LABELS), ("bleu of one reply", "rouge", "meteor", "distinct")),
}


@dataclass(frozen=True)
class Figure:
    """One metric of one supporter. `corpus`: over all replies at once; `responses`: the mean of the replies' own values.

    The estimate's n counts replies, `dialogues` the dialogues they come from, which is what the interval resamples.
    """

    language: Language
    supporter: str
    unit: Unit
    metric: str
    level: Level
    estimate: Estimate
    dialogues: int


def figures(samples: Iterable[Sample]) -> Iterator[Figure]:
    """Every metric of every supporter, language and unit, with 95 % intervals over dialogues (None with fewer than two).

    Means: `smoothed_means`; BLEU: percentile bootstrap. All replies of a dialogue are drawn together, and supporters that
    answered the same dialogues get the same draws. Corpus-level Distinct: jackknife, since a drawn-twice dialogue would count
    as repetition.
    """
    groups: dict[tuple[Language, str, Unit], dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        key = sample.response.language, sample.response.supporter, sample.unit
        groups[key][sample.response.dialogue_id].append(sample)
    for (language, supporter, unit), by_dialogue in sorted(groups.items()):
        dialogues = [by_dialogue[id] for id in sorted(by_dialogue)]
        corpus = _corpus_bleu(dialogues) | {metric: _corpus_distinct(dialogues, metric) for metric in DISTINCT_ORDERS}
        levels: tuple[tuple[Level, _Found], ...] = (("corpus", corpus), ("responses", _means(dialogues)))
        for level, values in levels:
            yield from (Figure(language, supporter, unit, metric, level, *values[metric]) for metric in values)


_Found = dict[str, tuple[Estimate, int]]  # metric → its estimate, and how many dialogues that rests on
_NOTHING = Estimate(None, None, None, 0), 0


def _means(dialogues: Sequence[Sequence[Sample]]) -> _Found:
    """The means over replies with a value, each reply counting once."""
    sums, counts = np.zeros((2, len(dialogues), len(LABELS)))
    for row, dialogue in enumerate(dialogues):
        for column, metric in enumerate(LABELS):
            values = [value for sample in dialogue if (value := sample.values[metric]) is not None]
            sums[row, column], counts[row, column] = math.fsum(values), len(values)
    draws = smoothed_means(sums, counts, POINTS)
    means: _Found = {}
    for column, metric in enumerate(LABELS):
        n, valued = int(counts[:, column].sum()), int((counts[:, column] > 0).sum())
        means[metric] = (estimate(sums[:, column].sum() / n, draws[:, column], n, valued), valued) if n else _NOTHING
    return means


def _corpus_bleu(dialogues: Sequence[Sequence[Sample]]) -> _Found:
    """BLEU over all replies with a reference. Like sacrebleu's, it is 0 where no reply is as long as its order."""
    stats = [known for dialogue in dialogues if (known := [sample.bleu for sample in dialogue if sample.bleu is not None])]
    if not stats:
        return dict.fromkeys(BLEU_ORDERS, _NOTHING)
    sums = np.array([np.sum(stats_of, axis=0) for stats_of in stats], dtype=np.float64)
    # The mean of a resample times its size is its sum, which BLEU is counted from.
    draws = np.rint(resampled_means(sums, np.ones_like(sums)) * len(sums)).astype(np.int64).tolist()
    total = sums.sum(axis=0).astype(np.int64).tolist()
    bleu: _Found = {}
    for metric, order in BLEU_ORDERS.items():
        mean, *drawn = (bleu_of(counts, order, effective=False) for counts in (total, *draws))
        bleu[metric] = estimate(mean, np.array(drawn), sum(map(len, stats)), len(sums)), len(sums)
    return bleu


def _corpus_distinct(dialogues: Sequence[Sequence[Sample]], metric: str) -> tuple[Estimate, int]:
    order = DISTINCT_ORDERS[metric]
    counted = [sum((sample.ngrams[order] for sample in dialogue), Counter()) for dialogue in dialogues]
    counted = [ngrams for ngrams in counted if ngrams]
    n = sum(bool(sample.ngrams[order]) for dialogue in dialogues for sample in dialogue)
    if not counted:
        return _NOTHING
    spread = Counter(ngram for ngrams in counted for ngram in ngrams)  # in how many dialogues each occurs
    total = sum(ngrams.total() for ngrams in counted)
    mean = 100 * len(spread) / total
    if len(counted) < 2:
        return Estimate(mean, None, None, n), len(counted)
    alone = np.array([sum(spread[ngram] == 1 for ngram in ngrams) for ngrams in counted])
    without: Floats = 100 * (len(spread) - alone) / (total - np.array([ngrams.total() for ngrams in counted]))
    half = NormalDist().inv_cdf(0.5 + LEVEL / 2) * math.sqrt((len(counted) - 1) * without.var())
    return Estimate(mean, max(mean - half, 0.0), min(mean + half, 100.0), n), len(counted)


def figures_json(rows: Sequence[Figure]) -> dict[str, Any]:
    """`metrics`: one object a figure; `signatures`: unit → metric → how it was counted."""
    signatures = {unit: signature(unit) for unit in dict.fromkeys(row.unit for row in rows)}
    return {"metrics": [json_record(row, "estimate") for row in rows], "signatures": signatures}


def metric_tables(figure_rows: Sequence[Figure], responses: Sequence[Response]) -> Iterator[Table]:
    """Two tables a language, on 0–100: over all replies at once, and means over replies. `responses` are what was measured."""
    for language, part in group_by(figure_rows, lambda row: row.language).items():
        units = list(dict.fromkeys(f.unit for f in part))
        left_out = [*_left_out([r for r in responses if r.language == language])]
        for level, (title, metrics, signed) in _LEVELS.items():
            body = []
            for (supporter, unit), figures_of in group_by(part, lambda f: (f.supporter, f.unit)).items():
                own = {f.metric: f.estimate for f in figures_of if f.level == level}
                unit_cell: dict[str, Cell] = {"counted in": unit} if len(units) > 1 else {}
                body.append({"supporter": supporter, **unit_cell, **{LABELS[metric]: own[metric] for metric in metrics}})
            intervals = f"{PERCENTILE}, Distinct: jackknife," if level == "corpus" else SMOOTHED
            notes = [
                f"0–100. n counts replies; [{intervals} over dialogues].",
                *left_out,
                *(f"{unit}: {name}: {signature(unit)[name]}" for unit in units for name in signed),
            ]
            yield Table.of(
                f"metrics_{level}_{language}", f"Replies against references, {language}: {title}", body, notes, SECTION
            )


def _left_out(responses: Sequence[Response]) -> Iterator[str]:
    """What the figures rest on, a note a matter: replies that never came, that are empty, that have no reference."""
    ends = Counter(r.termination for r in responses if r.termination is not None and not r.lost)
    lost = sum(r.lost for r in responses)
    if lost:
        yield f"{lost} of {len(responses)} replies were never given (the server failed): they are in no figure."
    if ends:
        listed = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        yield f"Among the {len(responses)} replies: {listed}. They count with the text there is; without any, as 0."
    if bare := sum(r.reference is None for r in responses if not r.lost):
        yield f"{bare} replies have no reference: only Distinct counts them."
