"""Several judges on the same items: table 4 of ESC-Eval, confusion matrices, calibration (for tests see `judge_figures`).

Verdicts are of one judge if they have the same judge, rubric, method and condition. One file may hold several judges.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError
from core.grouping import exact_mean, group_by
from core.records import HumanScore, Judgement
from core.rubrics import Rubric, Scale
from core.statistics.accuracy import AGREEMENT as INTERVALS
from core.statistics.accuracy import majority, probability_rows, round_half_up, spearman, sureness
from core.statistics.bootstrap import RESAMPLES, SEED, SHARES, SMOOTHED, Floats, estimate, smoothed_means
from core.tables import Cell, Estimate, Table, per_cent
from data_prep.scores.annotator_agreement import ScoredItem, agreement_on
from evalsuite.statistics.agreement import (
    Dimensions,
    Pair,
    agreement,
    columns_of,
    drawn_units,
    item_of,
    mean_gold,
    paired,
    refuse_partnerless,
    shown,
    unreadable,
)
from evalsuite.statistics.contestants import DIALOGUES, Clusters
from evalsuite.statistics.summary import AGREEMENT, AVERAGE, Scorer, counted_note, dimension_label, languages_of, scorer_of

Judges = dict[str, list[Judgement]]  # name → verdicts
Figures = Mapping[str, Any]  # what `agreement` gives for one judge
POOLED = "all dimensions"
BINS = 10  # of probabilities, as in a calibration error


def source_of(judgement: Judgement) -> tuple[str, ...]:
    """What distinguishes judges: name, rubric, method, condition."""
    condition = ", ".join(f"{key}={value}" for key, value in scorer_of(judgement).condition)
    return judgement.judge, judgement.rubric, judgement.method, condition


def source_names(sources: Collection[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Names for judges, with whichever of rubric, method and condition differ. Raises `UserError` for two of one name."""
    names: dict[tuple[str, ...], str] = {}
    for source in sources:
        namesakes = [other for other in sources if other[0] == source[0]]
        parts = [part for place, part in enumerate(source) if place and len({other[place] for other in namesakes}) > 1 and part]
        name = " · ".join([source[0], *parts])
        if name in names.values():
            raise UserError(f"two judges would be called {name!r}: rename one in its file (field judge)")
        names[source] = name
    return names


def by_judge(judgements: Iterable[Judgement]) -> Judges:
    """Verdicts by judge (`source_names`), in order of appearance."""
    groups = group_by(judgements, source_of)
    names = source_names(groups)
    return {names[source]: verdicts for source, verdicts in groups.items()}


def against_gold(judges: Judges, gold: Sequence[HumanScore], clusters: Clusters = DIALOGUES) -> dict[str, dict[str, Any]]:
    """The figures of `agreement` for every judge. Raises `UserError` for a verdict without gold and gold without a verdict."""
    golden = set(map(item_of, gold))
    items = {item_of(j) for verdicts in judges.values() for j in verdicts if not j.unasked or item_of(j) in golden}
    refuse_partnerless(items, golden)
    return {name: agreement(verdicts, gold_of(verdicts, gold), clusters) for name, verdicts in judges.items()}


def gold_of(judgements: Iterable[Judgement], gold: Iterable[HumanScore]) -> list[HumanScore]:
    """The gold scores of the items that were judged."""
    items = {item_of(j) for j in judgements}
    return [score for score in gold if item_of(score) in items]


def table4(
    figures: Mapping[str, Figures],
    gold: Sequence[HumanScore],
    mode: str,
    labels: Mapping[str, str],
    note: str = "",
    same_items: bool = True,
    beaten: Collection[tuple[str, str, str]] = (),
) -> Iterator[Table]:
    """Table 4 of ESC-Eval, one per language: judges × dimensions and their average, ACC and ACC_soft in per cent, the majority
    class last. In columns where some judge is `beaten` (language, dimension or average, judge), the others are bold. A judge
    that lacks a dimension has no average: averages over different dimensions are not comparable."""
    for language in sorted({language for languages in figures.values() for language in languages}):
        judges = {name: languages[language] for name, languages in figures.items() if language in languages}
        dimensions = [*dict.fromkeys(name for rows in judges.values() for name in rows if name != AVERAGE)]
        tested = {column for where, column, _ in beaten if where == language}
        body: list[dict[str, Cell]] = []
        bold: list[tuple[int, int]] = []
        for name, rows in judges.items():
            line: dict[str, Cell] = {"Judge": name}
            for column in (*dimensions, AVERAGE):
                lacking = column not in rows or (column == AVERAGE and len(rows) <= len(dimensions))
                acc, soft = (Estimate(None, None, None, 0),) * 2 if lacking else shown(rows[column], mode)
                if column in tested and acc.mean is not None and (language, column, name) not in beaten:
                    bold.append((len(body), len(line)))
                label = labels.get(column, column)
                line |= {f"{label} ACC": acc, f"{label} ACC_soft": soft.mean}
            body.append(line | {"Clusters": rows[AVERAGE]["clusters"], "Read %": per_cent(rows[AVERAGE]["parse_rate"])})
        body.append({"Judge": "majority class"})
        for column, row in zip((*dimensions, AVERAGE), _majorities(gold, language, dimensions), strict=True):
            label, acc = labels.get(column, column), Estimate(row["majority_acc"], None, None, row["n"]).times(100)
            body[-1] |= {f"{label} ACC": acc, f"{label} ACC_soft": 100 * row["majority_acc_soft"]}
        unit = next(iter(judges.values()))[AVERAGE]["clustered_by"]
        notes = [
            f"In per cent. {unreadable(mode)} n: ratings. Clusters: {unit}, drawn whole: [{SMOOTHED}]. Majority class: always "
            "the most frequent gold score. Bold: no judge has a significantly higher ACC (where some judge is beaten).",
            *["The judges' figures are over different items: compare them by the tests, which use shared ones."]
            * (not same_items),
        ]
        title = f"Judges against gold, {language}" + (f" ({note})" if note else "")
        yield replace(Table.of(f"table4_{language}", title, body, notes, AGREEMENT), bold=tuple(bold))


def _majorities(gold: Sequence[HumanScore], language: str, dimensions: Sequence[str]) -> list[dict[str, Any]]:
    """The ACC of always giving the most frequent gold score, on every dimension and on average."""
    golden = mean_gold(score for score in gold if score.language == language)
    figures = [majority([mean for (_, dimension, _), mean in golden.items() if dimension == name]) for name in dimensions]
    whole = {name: sum(row[name] for row in figures) / len(figures) for name in ("majority_acc", "majority_acc_soft")}
    return [*figures, {**whole, "n": sum(row["n"] for row in figures)}]


# --- confusion ------------------------------------------------------------------------------------------------------------


class Confusion(NamedTuple):
    """Verdicts by gold: `counts[i][j]` items of gold `scores[i]` got `scores[j]`, and `unread[i]` got no readable verdict. Gold
    and verdicts between two scores count as the nearest, halves up; a scale of more than 11 scores is reduced to eleven."""

    scores: list[float]
    counts: list[list[int]]
    unread: list[int]


def confusion(
    judgements: Sequence[Judgement], gold: Sequence[HumanScore], scales: Mapping[str, Scale] | None = None
) -> dict[str, dict[str, Confusion]]:
    """{language: {dimension, and `POOLED` where all are on one scale: its matrix}} of one judge. Without `scales`, rows and
    columns are all scores from the lowest to the highest that occur. Raises `UserError` like `agreement.paired`, and for a
    score off the scale."""
    cells: dict[str, dict[str, Counter[tuple[float, float | None]]]] = {}
    for language, dimensions in paired(judgements, gold).items():
        cells[language] = {dimension: Counter() for dimension in dimensions}
        for dimension, pairs in dimensions.items():
            scale = scales[dimension] if scales else None
            nearest = scale.counted.nearest if scale else round_half_up
            for j, mean in pairs:
                if scale and not all(value is None or scale.min <= value <= scale.max for value in (mean, j.value)):
                    raise UserError(
                        f"dialogue {j.dialogue_id}, dimension {dimension}: {j.judge} gave {j.value}, gold is {mean:g}, but "
                        f"rubric {j.rubric} runs from {scale.min} to {scale.max}: are both on the same rubric?"
                    )
                cells[language][dimension][nearest(mean), None if j.value is None else nearest(j.value)] += 1
    pairs_seen = chain.from_iterable(chain.from_iterable(by_dimension.values() for by_dimension in cells.values()))
    every = {score for score in chain.from_iterable(pairs_seen) if score is not None}
    anywhere = range(round(min(every)), round(max(every)) + 1) if every else ()
    matrices: dict[str, dict[str, Confusion]] = {}
    for language, by_dimension in cells.items():
        axes = {dimension: [*(scales[dimension].counted.scores if scales else anywhere)] for dimension in by_dimension}
        matrices[language] = {dimension: _matrix(counts, axes[dimension]) for dimension, counts in by_dimension.items()}
        if len({*map(tuple, axes.values())}) == 1:
            matrices[language][POOLED] = _matrix(sum(by_dimension.values(), Counter()), next(iter(axes.values())))
    return matrices


def _matrix(counts: Counter[tuple[float, float | None]], axis: list[float]) -> Confusion:
    return Confusion(axis, [[counts[g, v] for v in axis] for g in axis], [counts[g, None] for g in axis])


def confusion_tables(
    matrices: Mapping[str, Mapping[str, Confusion]],
    labels: Mapping[str, str],
    note: str = "",
    key: str = "confusion",
    rubric: Rubric | None = None,
) -> Iterator[Table]:
    """One table per language: a row per dimension and gold score, a column per verdict and one for unreadable verdicts."""
    for language, dimensions in matrices.items():
        rows: list[dict[str, Cell]] = []
        axis = sorted({score for matrix in dimensions.values() for score in matrix.scores})
        name = {score: f"{score:g}" for score in axis} | (rubric.counted if rubric else {})
        for dimension, matrix in dimensions.items():
            for score, counts, unread in zip(*matrix, strict=True):
                count_of = dict(zip(matrix.scores, counts, strict=True))
                rows.append({"Dimension": labels.get(dimension, dimension), "Gold": name[score]})
                rows[-1] |= {name[verdict]: count_of.get(verdict) for verdict in axis}
                rows[-1] |= {"unreadable": unread, "n": sum(counts) + unread}
        counts_note = "Counts. Columns are the judge's verdicts. Fractional scores count as the nearest score, halves up."
        title = f"Verdicts by gold score, {language}" + (f" ({note})" if note else "")
        heads = ("Dimension", "Gold", *(name[verdict] for verdict in axis), "unreadable", "n")
        yield Table.of(f"{key}_{language}", title, rows, [counts_note, *counted_note(rubric)], AGREEMENT, heads=heads)


# --- calibration ----------------------------------------------------------------------------------------------------------


class Bin(NamedTuple):
    """Verdicts whose most probable score has a probability in (low, high]: its mean (`confidence`) and how often that score is
    the gold (`hit_rate`, with its 95 % interval over clusters; None for a single cluster). Shares are 0–1."""

    language: str
    dimension: str  # or POOLED
    low: float
    high: float
    n: int
    confidence: float
    hit_rate: float
    hit_low: float | None
    hit_high: float | None
    clusters: int


def calibration(judgements: Sequence[Judgement], gold: Sequence[HumanScore], clusters: Clusters = DIALOGUES) -> list[Bin]:
    """One judge's bins with any verdict, by language, dimension (`POOLED` last) and probability, without verdicts that have no
    probabilities. Errors are those of `agreement.paired`."""
    filled: list[Bin] = []
    edges = np.linspace(0, 1, BINS + 1).tolist()
    for language, dimensions in paired(judgements, gold).items():
        if not (units := drawn_units([dimensions], clusters)):
            continue
        sums: dict[str, Floats] = {}  # by dimension: items, probabilities and hits, each [clusters, bins]
        for dimension, pairs in dimensions.items():
            sums[dimension] = np.zeros((3, len(units), BINS))
            if columns := _sureness(pairs, clusters):
                confidence, hits, place, own = columns
                for part, figures in zip(sums[dimension], (np.ones(len(confidence)), confidence, hits), strict=True):
                    np.add.at(part, (np.searchsorted(units, own), place), figures)
        sums[POOLED] = np.sum([*sums.values()], axis=0)
        for dimension, (counts, confidence, right) in sums.items():
            n, sizes = counts.sum(axis=0), (counts > 0).sum(axis=0)
            draws = smoothed_means(right, counts, SHARES)
            for place in np.flatnonzero(n):
                rate = estimate(float(right[:, place].sum() / n[place]), draws[:, place], int(n[place]), int(sizes[place]))
                assert rate.mean is not None, "a bin with verdicts"
                ends = edges[place], edges[place + 1], rate.n, float(confidence[:, place].sum() / n[place])
                filled.append(Bin(language, dimension, *ends, rate.mean, rate.low, rate.high, int(sizes[place])))
    return filled


def _sureness(
    pairs: Sequence[Pair], clusters: Clusters
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.intp], list[str]] | None:
    """`sureness` of the verdicts with probabilities, and the cluster of each; None if no verdict has any."""
    pairs = [(j, gold) for j, gold in pairs if j.value is not None and j.distribution]
    if not pairs:
        return None
    return *sureness(*probability_rows(*columns_of(pairs)), BINS), [clusters[j.dialogue_id] for j, _ in pairs]


class CalibrationError(NamedTuple):
    """The expected calibration error over all dimensions' verdicts, 0–1. With true probabilities, 95 of 100 samples lie at or
    below `chance`, and a share `p` at or above `value`. `n` counts verdicts."""

    value: float
    chance: float
    p: float
    n: int
    clusters: int


def calibration_error(dimensions: Dimensions, clusters: Clusters = DIALOGUES) -> CalibrationError | None:
    """The calibration error of one language's verdicts with gold; None if no verdict has probabilities.

    Chance is drawn by a wild cluster bootstrap under true probabilities (Cameron, Gelbach and Miller 2008), which flips the
    sign of the excess of hits over probabilities for whole clusters. Every draw has one unseen cluster, with the probabilities
    of an observed one and verdicts that are right or wrong together: without it, a judge that is rarely wrong is found at fault
    in up to 16 of 100 samples of ten clusters."""
    parts = [part for pairs in dimensions.values() if (part := _sureness(pairs, clusters))]
    if not parts:
        return None
    confidence, hits, places, own = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    confidence = np.minimum(confidence, 1)
    names, own = np.unique(own, return_inverse=True)
    inside = np.eye(BINS)[places]
    excess = np.zeros((len(names), BINS))
    np.add.at(excess, own, (hits - confidence)[:, None] * inside)
    rng = np.random.default_rng(SEED)
    drawn = rng.choice((-1.0, 1.0), (RESAMPLES, len(names))) @ excess
    twin, (luck, weight) = rng.integers(len(names), size=RESAMPLES), rng.random((2, RESAMPLES, 1))
    for cluster in range(len(names)):
        draws, members = np.flatnonzero(twin == cluster), own == cluster
        hit = luck[draws] < confidence[members]
        drawn[draws] -= np.log1p(-weight[draws]) * ((hit - confidence[members]) @ inside[members])
    errors = np.abs(drawn).sum(axis=1) / len(confidence)
    value = float(np.abs(excess.sum(axis=0)).sum() / len(confidence))
    p = (1 + int((errors >= value - 1e-12).sum())) / (1 + RESAMPLES)
    return CalibrationError(value, float(np.quantile(errors, 0.95)), p, len(confidence), len(names))


def calibration_table(bins: Sequence[Bin], labels: Mapping[str, str], note: str = "") -> Table:
    """The bins as a table, in per cent."""
    rows = [
        {"language": b.language, "dimension": labels.get(b.dimension, b.dimension), "over %": 100 * b.low}
        | {"up to %": 100 * b.high, "mean probability %": 100 * b.confidence}
        | {"right %": Estimate(b.hit_rate, b.hit_low, b.hit_high, b.n).times(100), "clusters": b.clusters}
        for b in bins
    ]
    below = f"By the probability of the most probable score; right: that score is the gold, [{SMOOTHED} over clusters]."
    return Table.of("calibration", "Calibration" + (f" ({note})" if note else ""), rows, [below], AGREEMENT)


def between_judges(verdicts: Sequence[Judgement], rubric: Rubric) -> Iterator[Table]:
    """One table per language with several judges: every pair of judges on every dimension, over the dialogues on which both
    have readable verdicts; a judge's repeats are averaged first."""
    for language in languages_of(verdicts):
        of_dimensions = group_by((j for j in verdicts if j.language == language), lambda j: j.dimension)
        scorers = sorted({scorer_of(j) for j in verdicts if j.language == language})
        unique = len({scorer.judge for scorer in scorers}) == len(scorers)
        names = {scorer: scorer.judge if unique else scorer.name for scorer in scorers}
        rows = [
            {"dimension": dimension_label(rubric, name), **row}
            for pair in combinations(scorers, 2)
            for name in rubric.dimensions
            if (row := _row(names, pair, of_dimensions.get(name, [])))
        ]
        if rows:
            note = (
                f"On dialogues (n) with two readable verdicts. Kappa: quadratic weights. Intervals over dialogues: 95 % "
                f"{INTERVALS}; of shares: {SMOOTHED}. Minus: the mean of the first judge's scores minus the other's, points. "
                "A dash: nothing varies. Judges that agree may both be wrong: compare them with gold."
            )
            title = f"Judges against each other, {language}"
            yield Table.of(f"between-judges-{language}", title, rows, [note], AGREEMENT)


def _row(names: Mapping[Scorer, str], pair: tuple[Scorer, Scorer], verdicts: Sequence[Judgement]) -> dict[str, Cell]:
    """Two judges on one dimension; empty if they share no dialogue."""
    read: dict[ScoredItem, dict[str, list[float]]] = {}
    places = {key: place for place, key in enumerate(sorted({(j.dialogue_id, j.turn or 0) for j in verdicts}))}
    for j in verdicts:
        if j.value is not None and (scorer := scorer_of(j)) in pair:
            item = ScoredItem(j.dialogue_id, places[j.dialogue_id, j.turn or 0])
            read.setdefault(item, {}).setdefault(names[scorer], []).append(j.value)
    shared = {item: by_judge for item, by_judge in read.items() if len(by_judge) == 2}
    values = {item: {judge: exact_mean(by_judge[judge]) for judge in by_judge} for item, by_judge in shared.items()}
    figures = agreement_on(values)
    if figures is None:
        return {}
    a, b = (names[scorer] for scorer in pair)
    first, second = ([by_judge[name] for _, by_judge in sorted(values.items(), key=str)] for name in (a, b))
    return {
        **{"judge": a, "and": b, "weighted kappa": figures.kappa, "Spearman": spearman(first, second)},
        **{"equal %": figures.equal.times(100), "within 1 %": figures.near.times(100)},
        "minus, points": exact_mean([x - y for x, y in zip(first, second, strict=True)]),
    }
