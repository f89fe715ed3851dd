"""Agreement of one judge with gold scores, in the figures of `core.statistics.accuracy` (for several judges: `judges`).

- The judge's score is `Judgement.value`, whatever its probabilities.
- Several annotators' scores of an item are averaged first (`core.statistics.means`).
- `average` is the unweighted mean over dimensions; its `n` is the number of ratings.
- Intervals: `evalsuite.statistics.agreement_intervals`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.errors import UserError
from core.records import HumanScore, Judgement
from core.rubrics import Rubric
from core.scales import COUNTED
from core.statistics.accuracy import FIGURES, dimension_figures
from core.statistics.means import comparable, exact_mean, mean_of_all
from core.tables import Cell, Estimate, Table, per_cent
from data_prep.scores.human import item_order
from evalsuite.statistics.agreement_intervals import INTERVALS, Dimensions, columns_of, interval_figures
from evalsuite.statistics.clusters import DIALOGUES, Clusters
from evalsuite.statistics.summary import AGREEMENT, AVERAGE, scorer_of

Item = tuple[str, str, int | None]  # dialogue id, dimension, turn (None: the dialogue as a whole)
Paired = dict[str, Dimensions]  # by language


def in_steps(
    judgements: Iterable[Judgement], gold: Iterable[HumanScore], rubric: Rubric | None
) -> tuple[list[Judgement], list[HumanScore]]:
    """Both sides, with scores on scales that are not whole (halves, levels with numbers of their own) given as steps above the
    lowest score, so that "equal" and "within one" refer to steps of the scale."""
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


def noted(table: Table, notes: Iterable[str]) -> Table:
    """The table with more notes."""
    return replace(table, notes=(*table.notes, *notes))


def refuse_doubled(where: str, keys: Iterable[tuple[Any, ...]]) -> None:
    """Raise `UserError` if a (dialogue, dimension, …) occurs twice."""
    if doubled := [key for key, count in Counter(keys).items() if count > 1]:
        raise UserError(f"{where}: {len(doubled)} doubled, for example dialogue {doubled[0][0]}, dimension {doubled[0][1]}")


def item_of(record: Judgement | HumanScore) -> Item:
    """The item that a record scores."""
    return record.dialogue_id, record.dimension, record.turn


def paired(judgements: Sequence[Judgement], gold: Sequence[HumanScore]) -> Paired:
    """One judge's verdicts with the mean gold score of their items: dimensions in order of appearance, verdicts sorted by item.
    Verdicts lost with a server are left out, as are those that found nothing to score.

    Raises `UserError` for verdicts of several judges, for items that only one side has, and for gold on several rubrics or in
    another language.
    """
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

    Every dimension has `FIGURES`, `n`, `read`, `lost` (with a server; counted in no other figure), `gold_rounded`, and the
    figures of `interval_figures`: `over_majority` (ACC minus the majority class's on the same gold), `clusters`, and 95 %
    intervals (`acc_low`, `acc_high`, …), None where there are too few clusters. Figures over readable verdicts (kappa, Spearman
    and ECE among them) are None when nothing could be read; kappa is also None where a verdict lies between two scores, and ECE
    where a readable verdict has no probabilities. Errors are those of `paired`.
    """
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
        bounds = zip(rows.items(), interval_figures(dimensions, clusters), strict=True)
        result[language] = {name: row | intervals for (name, row), intervals in bounds}
    return result


def agreement_tables(
    result: dict[str, Any], mode: str, labels: Mapping[str, str], note: str = "", key: str = "agreement"
) -> Iterator[Table]:
    """One table per language, `key`_LANGUAGE: ACC and ACC_soft of `mode` compared with the majority class, and the others,
    with intervals."""
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
        notes = [
            f"In per cent, kappa (quadratic weights) and Spearman from −1 to 1. {unreadable(mode)} kappa, Spearman and ECE are "
            "over readable verdicts. Over majority: points of ACC above the majority class, unreadable verdicts being wrong.",
            f"n: ratings. Clusters: {rows[AVERAGE]['clustered_by']}, drawn whole: {INTERVALS}.",
        ]
        if lost := rows[AVERAGE].get("lost"):
            notes.append(f"{lost} verdicts were lost with a server and are in no figure: run the same command again.")
        if unasked := rows[AVERAGE].get("unasked"):
            notes.append(f"{unasked} verdicts say that the dimension does not apply (or its question was not reached).")
        if rounded := rows[AVERAGE]["gold_rounded"]:
            notes.append(f"{rounded} gold scores are not whole: ACC, ACC_soft and kappa are on the rounded gold (halves up).")
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
    """By judge (name, method, condition), `item_order` and repeat. No figure may depend on the order of a file's rows,
    but the last digits of a mean of floats do, and so does a bootstrap, which draws places in a list: hence this order."""
    return sorted(judgements, key=lambda j: (scorer_of(j), *item_order(j, rubric), j.repeat))
