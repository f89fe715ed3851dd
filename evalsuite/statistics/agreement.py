"""Agreement of one judge with gold scores, in the figures of `core.statistics.accuracy` (for several judges: `judges`).

- The judge's score is `Judgement.value`, whatever its probabilities.
- Several annotators' scores of an item are averaged first (`core.grouping`).
- `average` is the unweighted mean over dimensions; its `n` is the number of ratings.
- Intervals draw clusters whole, for dimensions and for their average: shares by `smoothed_means`, kappa and Spearman by a
  `jackknife`. In small samples a calibration error comes out too large, most of all for a judge whose probabilities are true:
  what chance adds is taken off the lower end, so these cover the truth more often than they promise
  (`tests/bench/truth_gold.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from core.errors import UserError
from core.grouping import comparable, exact_mean, mean_of_all
from core.records import HumanScore, Judgement
from core.rubrics import Rubric
from core.scales import COUNTED
from core.statistics.accuracy import (
    FIGURES,
    JACKKNIFE,
    KAPPA_FROM,
    calibration_gaps,
    dimension_figures,
    jackknife,
    jackknife_error,
    left_out,
    majority,
    probability_rows,
    round_half_up,
    weighed_figures,
)
from core.statistics.bootstrap import SEED, SHARES, SMOOTHED, Floats, estimate, gap_levels, smoothed_means
from core.statistics.inference import cluster_error, contributions
from core.tables import Cell, Estimate, Table, per_cent
from data_prep.scores.human import item_order
from evalsuite.statistics.contestants import DIALOGUES, Clusters
from evalsuite.statistics.summary import AGREEMENT, AVERAGE, scorer_of

Item = tuple[str, str, int | None]  # dialogue id, dimension, turn (None: the dialogue as a whole)
Pair = tuple[Judgement, float]  # a verdict and its mean gold score
Dimensions = dict[str, list[Pair]]  # dimension → verdicts
Paired = dict[str, Dimensions]  # by language
Bounds = dict[str, float | None]
OVER = "over_majority"  # ACC less that of the majority class
SHARE_FIGURES = ("acc", "acc_read", "acc_soft", "acc_soft_read", OVER)
RANK_FROM = 10  # clusters that an interval of Spearman's correlation needs; `KAPPA_FROM` is the same for kappa
FEWEST_CALIBRATED = 3  # clusters, for an interval of a calibration error
INTERVALS = (
    f"[{SMOOTHED}]; of kappa and Spearman [95 % {JACKKNIFE}], given where {KAPPA_FROM} (Spearman: {RANK_FROM}) or more "
    f"clusters are not scored in the most frequent way; of ECE [at least 95 %, jackknife and what chance adds], from "
    f"{FEWEST_CALIBRATED} clusters up"
)


def in_steps(
    judgements: Iterable[Judgement], gold: Iterable[HumanScore], rubric: Rubric | None
) -> tuple[list[Judgement], list[HumanScore]]:
    """Both sides, with scores on scales that are not whole given as steps above the lowest score, so that "equal" and "within
    one" refer to steps."""
    scales = {key: scale for key, scale in (rubric.scales if rubric else {}).items() if not scale.whole}

    def steps(record: Any) -> Any:
        if (scale := scales.get(record.dimension)) is None or record.value is None or record.rubric != rubric.name:  # type: ignore[union-attr]
            return record
        spread = getattr(record, "distribution", None)
        shares = {"distribution": {f"{scale.place(float(s)):g}": p for s, p in spread.items()}} if spread else {}
        return record.model_copy(update={"value": scale.place(record.value)} | shares)

    return [*map(steps, judgements)], [*map(steps, gold)]


def step_notes(rubric: Rubric | None) -> list[str]:
    """Notes on ACC and ACC_soft for scales whose steps are not points, or that are too fine for them."""
    scales = rubric.scales.values() if rubric else ()
    notes = ["ACC and ACC_soft count steps of the scale, not points: ACC_soft is within one step."]
    fine = "A scale has more than 11 scores, so equal ones are rare: Spearman says more than ACC, ACC_soft or kappa."
    return notes * any(not scale.whole for scale in scales) + [fine] * any(len(scale.scores) > COUNTED for scale in scales)


def noted(tables: Iterable[Table], notes: Sequence[str]) -> list[Table]:
    """The tables with more notes."""
    return [replace(table, notes=(*table.notes, *notes)) for table in tables]


def refuse_doubled(where: str, keys: Iterable[tuple[Any, ...]]) -> None:
    """Raise `UserError` if a (dialogue, dimension, …) occurs twice."""
    if doubled := [key for key, count in Counter(keys).items() if count > 1]:
        raise UserError(f"{where}: {len(doubled)} doubled, for example dialogue {doubled[0][0]}, dimension {doubled[0][1]}")


def item_of(record: Judgement | HumanScore) -> Item:
    """What a record scores."""
    return record.dialogue_id, record.dimension, record.turn


def paired(judgements: Sequence[Judgement], gold: Sequence[HumanScore]) -> Paired:
    """One judge's verdicts, sorted by item, with the mean gold score of their items; without those lost with a server or with
    nothing to score. Raises `UserError` for several judges, for items that only one side has, and for gold on several rubrics
    or in another language."""
    sources = {(j.rubric, scorer_of(j)) for j in judgements}
    if len(sources) > 1:
        listed = "; ".join(f"{scorer.name} on {rubric}" for rubric, scorer in sorted(sources))
        raise UserError(f"judgements of several judges, rubrics or methods in one file: {listed}")
    refuse_doubled("judgements", map(item_of, judgements))
    golden = mean_gold(gold)
    judgements = [j for j in judgements if item_of(j) in golden or not j.unasked]  # nothing to score needs no gold
    refuse_partnerless(map(item_of, judgements), golden)
    languages = {item_of(score): score.language for score in gold}
    pairs_of: Paired = {}
    for j in judgements:
        pairs_of.setdefault(j.language, {}).setdefault(j.dimension, [])
    for j in sorted(judgements, key=lambda j: (j.dialogue_id, -1 if j.turn is None else j.turn)):
        item = item_of(j)
        if languages[item] != j.language:
            raise UserError(f"dialogue {j.dialogue_id}: judged as {j.language}, its gold scores are {languages[item]}")
        pairs = pairs_of[j.language][j.dimension]
        if not (j.lost or j.unasked):
            pairs.append((j, golden[item]))
    return dict(sorted(pairs_of.items()))


def mean_gold(gold: Iterable[HumanScore]) -> dict[Item, float]:
    """Every item's mean over annotators, rounded by `comparable`. Raises `UserError` for an item scored on several rubrics."""
    scores: dict[Item, list[float]] = defaultdict(list)
    rubrics: dict[Item, str] = {}
    for score in gold:
        item = item_of(score)
        if rubrics.setdefault(item, score.rubric) != score.rubric:
            where = f"dialogue {score.dialogue_id}, dimension {score.dimension}"
            raise UserError(f"{where}: gold on two rubrics, {rubrics[item]} and {score.rubric}: keep one (--gold-rubric)")
        scores[item].append(score.value)
    return {item: comparable(exact_mean(values)) for item, values in scores.items()}


def refuse_partnerless(judged: Iterable[Item], golden: Iterable[Item]) -> None:
    """Raise `UserError` unless both sides have the same items."""
    have, want = set(judged), set(golden)
    for lone, label in ((have - want, "judgements without gold"), (want - have, "gold without a judgement")):
        if lone:
            first = sorted(lone, key=str)[:3]
            listed = ", ".join(f"{id}/{dimension}" + ("" if turn is None else f"/turn {turn}") for id, dimension, turn in first)
            raise UserError(f"{len(lone)} {label}, for example {listed}; both sides must have the same items (--only-shared)")


def agreement(judgements: Sequence[Judgement], gold: Sequence[HumanScore], clusters: Clusters = DIALOGUES) -> dict[str, Any]:
    """{language: {dimension: {metric: value}, …, "average": {…}}} for one judge.

    Every dimension has `FIGURES`, `n`, `read`, `lost` (with a server; counted in no other figure), `gold_rounded`, and those of
    `interval_figures`. Figures over readable verdicts (kappa, Spearman and ECE among them) are None when nothing could be read;
    kappa is also None where a verdict lies between two scores, and ECE where a readable verdict has no probabilities."""
    result: dict[str, Any] = {}
    lost = Counter[tuple[str, str]]((j.language, j.dimension) for j in judgements if j.lost)
    for language, dimensions in paired(judgements, gold).items():
        rows = {d: dimension_figures(*columns_of(pairs)) | {"lost": lost[language, d]} for d, pairs in dimensions.items()}
        average = {metric: mean_of_all(row[metric] for row in rows.values()) for metric in FIGURES}
        unasked = Counter(j.dimension for j in judgements if j.language == language and j.unasked and j.dimension in rows)
        for name in unasked:
            rows[name]["unasked"] = unasked[name]
        counts: dict[str, Any] = {key: sum(row[key] for row in rows.values()) for key in ("n", "read", "lost", "gold_rounded")}
        rows[AVERAGE] = average | counts | ({"unasked": unasked.total()} if unasked else {})
        for row, intervals in zip(rows.values(), interval_figures(dimensions, clusters), strict=True):
            row |= intervals
        result[language] = rows
    return result


_COUNTED = {  # figures of the average, and the words of their notes
    "lost": "verdicts were lost with a server and are in no figure: run the same command again.",
    "unasked": "verdicts say that the dimension does not apply (or its question was not reached).",
    "gold_rounded": "gold scores are not whole: ACC, ACC_soft and kappa are on the rounded gold (halves up).",
}


def agreement_tables(
    result: dict[str, Any], mode: str, labels: Mapping[str, str], note: str = "", key: str = "agreement"
) -> Iterator[Table]:
    """One table per language, `key`_LANGUAGE, in which ACC and ACC_soft are those of `mode`."""
    for language, rows in result.items():
        body: list[dict[str, Cell]] = []
        for name, row in rows.items():
            acc, soft = shown(row, mode)
            line = {"Dimension": labels.get(name, name), "ACC": acc, "ACC_soft": soft, "Clusters": row["clusters"]}
            line |= {"Majority ACC": per_cent(row["majority_acc"]), "Majority ACC_soft": per_cent(row["majority_acc_soft"])}
            line |= {"Over majority": figure_cell(row, "over_majority", row["n"], 100), "Read %": per_cent(row["parse_rate"])}
            for head, figure in (("kappa", "kappa"), ("Spearman", "spearman"), ("ECE", "ece")):
                line[head] = figure_cell(row, figure, row["read"], 100 if figure == "ece" else 1)
            body.append(line)
        whole = rows[AVERAGE]
        notes = [
            f"In per cent, kappa (quadratic weights) and Spearman from −1 to 1. {unreadable(mode)} kappa, Spearman and ECE are "
            "over readable verdicts. Over majority: points of ACC above the majority class, unreadable verdicts being wrong.",
            f"n: ratings. Clusters: {whole['clustered_by']}, drawn whole: {INTERVALS}.",
        ]
        notes += [f"{whole[figure]} {words}" for figure, words in _COUNTED.items() if whole.get(figure)]
        title = f"Agreement with gold, {language}" + (f" ({note})" if note else "")
        yield Table.of(f"{key}_{language}", title, body, notes, AGREEMENT)


def figure_cell(row: Mapping[str, Any], figure: str, n: int, factor: float = 1) -> Estimate:
    """A figure of `agreement` with its interval."""
    return Estimate(row.get(figure), row.get(f"{figure}_low"), row.get(f"{figure}_high"), n).times(factor)


def shown(row: Mapping[str, Any], mode: str) -> tuple[Estimate, Estimate]:
    """ACC and ACC_soft of a mode, in per cent."""
    read, n = ("", row["n"]) if mode == "paper" else ("_read", row["read"])
    return figure_cell(row, f"acc{read}", n, 100), figure_cell(row, f"acc_soft{read}", n, 100)


def unreadable(mode: str) -> str:
    """A sentence on what a mode does with unreadable verdicts."""
    return f"Unreadable verdicts {'count as wrong' if mode == 'paper' else 'are left out'} ({mode} mode)."


def judgements_in_order(judgements: Iterable[Judgement], rubric: Rubric | None = None) -> list[Judgement]:
    """By judge, `item_order` and repeat: no figure may depend on the order of a file's rows, but the last digits of a mean of
    floats do, and so does a bootstrap, which draws places in a list."""
    return sorted(judgements, key=lambda j: (scorer_of(j), *item_order(j, rubric), j.repeat))


# --- intervals ------------------------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """Counts [clusters, dimensions] of verdicts that are right, within one point, all, readable, and of items whose gold is the
    most frequent score."""

    right: Floats
    near: Floats
    rated: Floats
    read: Floats
    usual: Floats

    def shares(self, figure: str) -> tuple[Floats, Floats]:
        """Numerator and denominator of one of `SHARE_FIGURES`."""
        if figure == OVER:
            return self.right - self.usual, self.rated
        return self.near if "soft" in figure else self.right, self.read if figure.endswith("_read") else self.rated


def columns_of(pairs: Sequence[Pair]) -> tuple[list[float | None], list[float], list[Mapping[str, float] | None]]:
    """Verdicts, gold and probabilities, as `core.statistics.accuracy` takes them."""
    return [j.value for j, _ in pairs], [gold for _, gold in pairs], [j.distribution for j, _ in pairs]


def drawn_units(runs: Iterable[Dimensions], clusters: Clusters) -> list[str]:
    """The clusters with a verdict, which are drawn whole."""
    return sorted({clusters[j.dialogue_id] for dimensions in runs for pairs in dimensions.values() for j, _ in pairs})


def hit_counts(dimensions: Dimensions, units: Sequence[str], clusters: Clusters) -> Counts:
    """One judge's verdicts counted by cluster."""
    row = {unit: index for index, unit in enumerate(units)}
    counts = Counts(*np.zeros((5, len(units), len(dimensions))))
    for column, pairs in enumerate(dimensions.values()):
        usual = majority([gold for _, gold in pairs])["majority"] if pairs else None
        for j, gold in pairs:
            place, right = (row[clusters[j.dialogue_id]], column), round_half_up(gold)
            counts.rated[place] += 1
            counts.usual[place] += right == usual
            if j.value is not None:
                counts.read[place] += 1
                counts.right[place] += j.value == right
                counts.near[place] += comparable(abs(j.value - right)) <= 1
    return counts


def ratio_draws(shares: Sequence[tuple[Floats, Floats]], seed: int = SEED, sides: int = 1) -> list[Floats]:
    """Draws [RESAMPLES, dimensions + 1] of the ratios of sums and counts, both [clusters, dimensions], the average last; each
    draw has the same clusters in all. `sides` is 1 for shares, 2 for differences of shares."""
    sums, counts = (np.concatenate([part[place] for part in shares], axis=1) for place in (0, 1))
    levels = SHARES if sides == 1 else gap_levels(SHARES)
    draws = np.split(smoothed_means(sums, counts, levels, seed, sides=sides), len(shares), axis=1)
    return [np.column_stack([drawn, drawn.mean(axis=1)]) for drawn in draws]


def average_draws(dimensions: Dimensions, figure: str, clusters: Clusters, seed: int = SEED) -> Floats | None:
    """Draws [RESAMPLES] of one of `SHARE_FIGURES`, averaged over dimensions; None where a dimension has a single cluster."""
    shares = hit_counts(dimensions, drawn_units([dimensions], clusters), clusters).shares(figure)
    if not len(shares[1]) or (shares[1] > 0).sum(axis=0).min() < 2:
        return None
    return ratio_draws([shares], seed)[0][:, -1]


def interval_figures(dimensions: Dimensions, clusters: Clusters) -> list[dict[str, Any]]:
    """For every dimension and the average: `over_majority` (ACC minus the majority class's on the same gold), the 95 % bounds
    of all figures (`acc_low`, `acc_high`, …; None for too few clusters), `clusters` and what they are called
    (`clustered_by`)."""
    units = {unit: place for place, unit in enumerate(drawn_units([dimensions], clusters))}
    if not units:
        names = [f"{figure}_{end}" for figure in (*SHARE_FIGURES, "kappa", "spearman", "ece") for end in ("low", "high")]
        undefined = dict.fromkeys([OVER, *names]) | {"clusters": 0, "clustered_by": clusters.name}
        return [undefined] * (len(dimensions) + 1)
    counts = hit_counts(dimensions, list(units), clusters)
    sizes = [*(counts.rated > 0).sum(axis=0), len(units)]
    columns = zip(_share_bounds(counts), _jackknife_bounds(dimensions, units, clusters), sizes, strict=True)
    return [shares | others | {"clusters": int(size), "clustered_by": clusters.name} for shares, others, size in columns]


def _share_bounds(counts: Counts) -> list[Bounds]:
    bounds: list[Bounds] = [{} for _ in range(counts.rated.shape[1] + 1)]
    for sides, figures in ((1, SHARE_FIGURES[:-1]), (2, SHARE_FIGURES[-1:])):
        parts = [counts.shares(figure) for figure in figures]
        for figure, (sums, over), drawn in zip(figures, parts, ratio_draws(parts, sides=sides), strict=True):
            means, _, on = contributions(sums, over)
            columns = np.append(means, means.mean()), drawn.T, np.append(on, on.min())
            for row, mean, draws, clusters in zip(bounds, *columns, strict=True):
                interval = estimate(float(mean), draws, 0, int(clusters))
                row |= {f"{figure}_low": interval.low, f"{figure}_high": interval.high}
                if figure == OVER:
                    row[figure] = interval.mean
    return bounds


def _jackknife_bounds(dimensions: Dimensions, units: Mapping[str, int], clusters: Clusters) -> list[Bounds]:
    weights = left_out(len(units))
    figures = np.full((3, len(weights), len(dimensions) + 1), np.nan)
    chance = np.full(len(dimensions) + 1, np.nan)  # the calibration error expected of true probabilities
    for column, pairs in enumerate(dimensions.values()):
        items = columns_of(pairs)
        rows = [units[clusters[j.dialogue_id]] for j, _ in pairs if j.value is not None]
        figures[:, :, column] = [*weighed_figures(*items, weights[:, rows]).values()]
        if not np.isnan(figures[2, 0, column]):
            member = np.eye(len(units))[rows].T  # [clusters, items]
            gaps = member @ calibration_gaps(*probability_rows(*items))
            _, parts, n = contributions(gaps, np.broadcast_to(member.sum(axis=1, keepdims=True), gaps.shape))
            chance[column] = np.sqrt(2 / np.pi) * cluster_error(parts, n).sum()
    figures[:, :, -1], chance[-1] = figures[:, :, :-1].mean(axis=2), chance[:-1].mean()
    bounds: list[Bounds] = []
    for (kappa, rank, error), by_chance in zip(figures.transpose(2, 0, 1), chance, strict=True):
        intervals = jackknife(kappa, 0), jackknife(rank, 0, RANK_FROM), _calibration(error, by_chance)
        names = zip(("kappa", "spearman", "ece"), intervals, strict=True)
        bounds.append({f"{name}_{end}": getattr(interval, end) for name, interval in names for end in ("low", "high")})
    return bounds


def _calibration(errors: Floats, chance: float) -> Estimate:
    """A calibration error with its interval, from `errors` [1 + groups]: with all clusters, then without each group of them."""
    groups = len(errors) - 1
    if groups < FEWEST_CALIBRATED or np.isnan(errors).any() or np.isnan(chance):
        return Estimate(None, None, None, 0)
    error, half = float(errors[0]), float(stdtrit(groups - 1, 0.975) * jackknife_error(errors[1:]))
    return Estimate(error, max(0.0, error - float(chance) - half), min(1.0, error + half), 0)
