"""Agreement of one judge with gold scores, by the figures that `core.statistics.accuracy` defines (several: judges).

- The judge's score is `Judgement.value`: its most probable score.
- Several annotators of one item are averaged first (`core.statistics.means`).
- `average` is the unweighted mean over dimensions; its `n` is the number of ratings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from core.errors import UserError, near
from core.files import CONFIGS, read_bytes, read_jsonl
from core.records import HumanScore, Judgement
from core.rows import read_table
from core.rubrics import Rubric, load_rubric
from core.statistics.accuracy import FIGURES, dimension_figures, probability_rows, round_half_up
from core.statistics.bootstrap import SEED, SHARES, SMOOTHED, Floats, interval, smoothed_means
from core.statistics.means import comparable, exact_mean, mean_of_all
from core.tables import Cell, Estimate, Table
from data_prep.scores.human import read_scores
from evalsuite.statistics.summary import AGREEMENT, AVERAGE, scorer_of

Item = tuple[str, str, int | None]  # dialogue id, dimension, turn (None: the dialogue as a whole)
Pair = tuple[Judgement, float]  # a verdict and its mean gold score
Dimensions = dict[str, list[Pair]]  # dimension → verdicts
Paired = dict[str, Dimensions]  # by language


def read_gold(path: Path, check: Callable[[HumanScore], None] | None = None) -> list[HumanScore]:
    """Gold scores from JSONL or CSV (`data_prep.scores.human`); a score that one annotator gave twice is an error."""
    read_bytes(path, "gold scores")  # says what is missing
    return read_scores(path, check)


def read_judgements(path: Path, rubric: Rubric | None = None) -> list[Judgement]:
    """Judges' verdicts from JSONL or CSV, in the order of `judgements_in_order`; a verdict given twice is an error."""
    if path.suffix.lower() == ".csv":
        judgements = [judgement for _, judgement in read_table(path, Judgement, "judgements")]
    else:
        judgements = read_jsonl(path, Judgement, "judgements")
    _refuse_doubled(str(path), ((*item_of(j), j.rubric, scorer_of(j), j.repeat) for j in judgements))
    return judgements_in_order(judgements, rubric)


def judgements_of(paths: Iterable[Path], rubric: Rubric | None = None) -> list[Judgement]:
    """Verdicts from several files, one file after the other; one that was given twice, in two files too, is an error."""
    read = [(path, judgement) for path in paths for judgement in read_judgements(path, rubric)]
    _refuse_twice((path, j.dialogue_id, j.dimension, j.judge, scorer_of(j), j.rubric, j.turn, j.repeat) for path, j in read)
    return [judgement for _, judgement in read]


def gold_scores_of(paths: Iterable[Path], check: Callable[[HumanScore], None] | None = None) -> list[HumanScore]:
    """Gold scores from several files, each given to `check`: one file after the other, each in the order of
    `scores_in_order`; one that an annotator gave twice, in two files too, is an error."""
    read = [(path, score) for path in paths for score in scores_in_order(read_gold(path, check))]
    _refuse_twice((path, s.dialogue_id, s.dimension, s.annotator, s.rubric, s.turn) for path, s in read)
    return [score for _, score in read]


def _refuse_twice(scores: Iterable[tuple[Any, ...]]) -> None:
    """Raise `UserError` for (file, dialogue, dimension, who, …) of which all but the file came before."""
    seen: dict[Hashable, Path] = {}
    for path, *rest in scores:
        key = tuple(rest)
        if key in seen:
            raise UserError(f"{path}: {key[2]} scored dialogue {key[0]}, dimension {key[1]} twice (first in {seen[key]})")
        seen[key] = path


def of_annotators(scores: Sequence[HumanScore], annotators: Sequence[str]) -> list[HumanScore]:
    """The scores that these annotators gave (all scores when none is named); `UserError` for one who gave none."""
    known = {score.annotator for score in scores}
    for name in annotators:
        if name not in known:
            raise UserError(f"--annotator {name}: gave none of the scores: {near(name, known)}")
    return [score for score in scores if not annotators or score.annotator in annotators]


def _refuse_doubled(where: str, keys: Iterable[tuple[Any, ...]]) -> None:
    doubled = [key for key, count in Counter(keys).items() if count > 1]
    if doubled:
        raise UserError(f"{where}: {len(doubled)} doubled, for example dialogue {doubled[0][0]}, dimension {doubled[0][1]}")


def item_of(record: Judgement | HumanScore) -> Item:
    """What was scored."""
    return record.dialogue_id, record.dimension, record.turn


def paired(judgements: Sequence[Judgement], gold: Sequence[HumanScore]) -> Paired:
    """One judge's verdicts with the mean gold of their items: dimensions in their order of appearance, verdicts sorted by item.
    Those that were lost with a server are left out: nobody knows what they would have been.

    Raises `UserError` when the verdicts are of several judges, for items without a partner on the other side, and for gold on
    several rubrics or in another language.
    """
    sources = {(j.rubric, scorer_of(j)) for j in judgements}
    if len(sources) > 1:
        listed = "; ".join(f"{scorer.name} on {rubric}" for rubric, scorer in sorted(sources))
        raise UserError(f"judgements of several judges, rubrics or methods in one file: {listed}")
    _refuse_doubled("judgements", map(item_of, judgements))
    golden = mean_gold(gold)
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
        if not j.lost:
            pairs.append((j, golden[item]))
    return dict(sorted(pairs_of.items()))


def mean_gold(gold: Iterable[HumanScore]) -> dict[Item, float]:
    """The mean over annotators of every item, as `comparable` has it. Raises `UserError` where an item was scored on several
    rubrics."""
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
    """Raise `UserError` unless both sides hold the same items."""
    have, want = set(judged), set(golden)
    for alone, what in ((have - want, "judgements without gold"), (want - have, "gold without a judgement")):
        if alone:
            examples = ", ".join(
                f"{dialogue}/{dimension}" + ("" if turn is None else f"/turn {turn}")
                for dialogue, dimension, turn in sorted(alone, key=str)[:3]
            )
            raise UserError(f"{len(alone)} {what}, for example {examples}; both sides must hold the same items (--only-shared)")


def agreement(
    judgements: Sequence[Judgement], gold: Sequence[HumanScore], groups: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """{language: {dimension: {metric: value}, …, "average": {…}}} for one judge.

    Every dimension has `FIGURES`, `n`, `read`, `lost` (with a server, and in no other figure), `gold_rounded` and 95 %
    intervals of the two accuracies (`acc_low`, `acc_high`, `acc_read_low`, `acc_read_high`: Wilson; for the average,
    `smoothed_means` over dialogues, or over `groups` of them, none where a dimension has fewer than two). Figures over the
    readable verdicts (kappa, Spearman and ECE among them) are None when nothing could be read. kappa is None too where a
    verdict lies between two scores, ECE where a readable verdict came without probabilities. Errors are those of `paired`.
    """
    result: dict[str, Any] = {}
    lost = Counter[tuple[str, str]]((j.language, j.dimension) for j in judgements if j.lost)
    for language, dimensions in paired(judgements, gold).items():
        rows = {name: _figures(pairs) | {"lost": lost[language, name]} for name, pairs in dimensions.items()}
        result[language] = rows | {AVERAGE: _average(rows) | _average_interval(dimensions, groups or {})}
    return result


def _figures(pairs: Sequence[Pair]) -> dict[str, Any]:
    return dimension_figures([j.value for j, _ in pairs], [gold for _, gold in pairs], [j.distribution for j, _ in pairs])


def probabilities(pairs: Sequence[Pair]) -> tuple[list[list[float]], list[int]]:
    """`probability_rows` of paired verdicts."""
    return probability_rows([j.value for j, _ in pairs], [gold for _, gold in pairs], [j.distribution for j, _ in pairs])


def _average(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Unweighted means over dimensions (`mean_of_all`); counts are added up."""
    average = {metric: mean_of_all(row[metric] for row in rows.values()) for metric in FIGURES}
    return average | {key: sum(row[key] for row in rows.values()) for key in ("n", "read", "lost", "gold_rounded")}


def _average_interval(dimensions: Dimensions, groups: Mapping[str, str]) -> dict[str, float | None]:
    """Intervals of both average accuracies: a dialogue's (a group's) ratings are drawn together."""
    bounds: dict[str, float | None] = {}
    for name in ("acc", "acc_read"):
        draws = average_draws(dimensions, name, groups)
        low, high = (None, None) if draws is None else interval(draws)
        bounds |= {f"{name}_low": low, f"{name}_high": high}
    return bounds


def average_draws(dimensions: Dimensions, figure: str, groups: Mapping[str, str], seed: int = SEED) -> Floats | None:
    """Draws [RESAMPLES] of acc, acc_soft, acc_read or acc_soft_read, averaged over dimensions: dialogues, or groups of
    them, are drawn whole. None where a dimension is on one of them alone: nothing is known of others."""
    counts = hit_counts(dimensions, drawn_units([dimensions], groups), groups)
    rated = counts.read if figure.endswith("_read") else counts.rated
    if not len(rated) or (rated > 0).sum(axis=0).min() < 2:
        return None
    return smoothed_means(counts.near if "soft" in figure else counts.right, rated, SHARES, seed).mean(axis=1)


def drawn_units(runs: Iterable[Dimensions], groups: Mapping[str, str]) -> list[str]:
    """What is drawn whole: the dialogues with a verdict, or their groups."""
    dialogues = {j.dialogue_id for dimensions in runs for pairs in dimensions.values() for j, _ in pairs}
    return sorted({groups.get(dialogue, dialogue) for dialogue in dialogues})


class Counts(NamedTuple):
    """Right verdicts, those within one point, all verdicts, and readable ones, each [units that are drawn, dimensions]."""

    right: Floats
    near: Floats
    rated: Floats
    read: Floats


def hit_counts(dimensions: Dimensions, units: Sequence[str], groups: Mapping[str, str]) -> Counts:
    """Counts of one judge's verdicts by what is drawn whole: dialogues or `groups` of them."""
    row = {unit: index for index, unit in enumerate(units)}
    counts = Counts(*np.zeros((4, len(units), len(dimensions))))
    for column, pairs in enumerate(dimensions.values()):
        for j, gold in pairs:
            place = row[groups.get(j.dialogue_id, j.dialogue_id)], column
            counts.rated[place] += 1
            if j.value is not None:
                counts.read[place] += 1
                counts.right[place] += j.value == round_half_up(gold)
                counts.near[place] += comparable(abs(j.value - round_half_up(gold))) <= 1
    return counts


def agreement_tables(
    result: dict[str, Any], mode: str, labels: dict[str, str], note: str = "", key: str = "agreement"
) -> Iterator[Table]:
    """One table a language: ACC and ACC_soft of `mode` beside the majority class, with n, parse rate, interval, kappa, rank
    correlation and calibration error. Tables are named `key`_LANGUAGE."""
    for language, rows in result.items():
        body: list[tuple[Cell, ...]] = []
        for name, row in rows.items():
            acc, soft, counted = shown(row, mode)
            shares = (soft, *(per_cent(row[figure]) for figure in ("majority_acc", "majority_acc_soft", "parse_rate")))
            # An agreement.json of earlier versions has none of the three.
            further = (row.get("kappa"), row.get("spearman"), per_cent(row.get("ece")))
            body.append((labels.get(name, name), Estimate(*acc, counted), *shares, *further))
        notes = [
            f"In per cent, kappa (quadratic weights) and Spearman from −1 to 1. {unreadable(mode)} kappa, Spearman and ECE are "
            f"over readable verdicts. Intervals: 95 %, Wilson; of the average: {SMOOTHED} over dialogues."
        ]
        if lost := rows[AVERAGE].get("lost"):
            notes.append(f"{lost} verdicts were lost with a server and are in no figure: run the same command again.")
        if rounded := rows[AVERAGE]["gold_rounded"]:
            notes.append(f"{rounded} gold scores are not whole: ACC, ACC_soft and kappa are on the rounded gold (halves up).")
        heads = ("Dimension", "ACC", "ACC_soft", "Majority ACC", "Majority ACC_soft", "Read %", "kappa", "Spearman", "ECE")
        yield Table(
            key=f"{key}_{language}",
            title=f"Agreement with gold, {language}" + (f" ({note})" if note else ""),
            columns=heads,
            rows=tuple(body),
            notes=tuple(notes),
            section=AGREEMENT,
        )


def shown(row: dict[str, Any], mode: str) -> tuple[tuple[float | None, float | None, float | None], float | None, int]:
    """ACC with its bounds and ACC_soft of a mode, in per cent, and the number of verdicts that they are over."""
    read = "" if mode == "paper" else "_read"
    low, high = (per_cent(row[f"acc{read}_{end}"]) for end in ("low", "high"))
    counted = row["n"] if mode == "paper" else row["read"]
    return (per_cent(row[f"acc{read}"]), low, high), per_cent(row[f"acc_soft{read}"]), counted


def unreadable(mode: str) -> str:
    """What a mode does with unreadable verdicts, for people."""
    return f"Unreadable verdicts {'count as wrong' if mode == 'paper' else 'are left out'} ({mode} mode)."


def per_cent(share: float | None) -> float | None:
    return None if share is None else 100 * share


# --- order ------------------------------------------------------------------------------------------------------------------
# No figure, interval or table may depend on the order of the rows of a file. Means of floats differ in their last digits with
# the order of the numbers, and a bootstrap draws places in a list: records are put into this order before any figure is made.


def judgements_in_order(judgements: Iterable[Judgement], rubric: Rubric | None = None) -> list[Judgement]:
    """By judge (name, method, condition, rubric), language, dimension, dialogue, turn and repeat.

    Dimensions come as `rubric`, where it is given, or the bundled rubric of the judgement's name has them, others by name.
    """
    return sorted(judgements, key=lambda j: (scorer_of(j), *_key(j, rubric), j.repeat))


def scores_in_order(scores: Iterable[HumanScore]) -> list[HumanScore]:
    """By rubric, language, dimension (as for judgements), dialogue, turn and annotator."""
    return sorted(scores, key=lambda score: (*_key(score), score.annotator))


def _key(record: Judgement | HumanScore, rubric: Rubric | None = None) -> tuple[object, ...]:
    place = _place(record.rubric, record.dimension, rubric)
    return record.rubric, record.language, place, record.dialogue_id, -1 if record.turn is None else record.turn


def _place(name: str, dimension: str, rubric: Rubric | None = None) -> tuple[int, str]:
    known = _bundled(name) if rubric is None else tuple(rubric.dimensions)
    return known.index(dimension) if dimension in known else len(known), dimension


@cache
def _bundled(name: str) -> tuple[str, ...]:
    """The dimensions of the bundled rubric of that name, none where there is no such rubric."""
    bundled = {path.stem for path in (CONFIGS / "rubrics").glob("*.yaml")}
    return tuple(load_rubric(name).dimensions) if name in bundled else ()
