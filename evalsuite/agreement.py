"""Agreement of a judge with gold scores, by the figures that `data_prep.scores.accuracy` defines.

- The judge's score is `Judgement.value`: its most probable score.
- Several annotators of one item are averaged first.
- `average` is the unweighted mean over dimensions; its `n` is the number of ratings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.records import HumanScore, Judgement
from data_prep.scores.accuracy import accuracy
from data_prep.scores.human import round_half_up
from data_prep.tables import Cell, Estimate, Table
from evalsuite.summary import AGREEMENT, estimates
from serve.errors import UserError
from serve.files import read_jsonl

METRICS = ("acc", "acc_read", "acc_soft", "acc_soft_read", "parse_rate", "majority_acc", "majority_acc_soft")
Key = tuple[str, str]  # dialogue id, dimension


def read_gold(path: Path) -> list[HumanScore]:
    """Gold scores from JSONL; a score that one annotator gave twice is an error."""
    scores = read_jsonl(path, HumanScore, "gold scores")
    _refuse_doubled(str(path), [(s.dialogue_id, s.dimension, s.annotator, s.turn) for s in scores])
    return scores


def read_judgements(path: Path) -> list[Judgement]:
    """A judge's verdicts from JSONL; a verdict given twice is an error."""
    judgements = read_jsonl(path, Judgement, "judgements")
    keys = [(j.dialogue_id, j.dimension, j.judge, j.rubric, j.method, j.turn, j.repeat) for j in judgements]
    _refuse_doubled(str(path), keys)
    return judgements


def _refuse_doubled(where: str, keys: Sequence[tuple[Any, ...]]) -> None:
    doubled = [key for key, count in Counter(keys).items() if count > 1]
    if doubled:
        raise UserError(f"{where}: {len(doubled)} doubled, for example dialogue {doubled[0][0]}, dimension {doubled[0][1]}")


def agreement(judgements: Sequence[Judgement], gold: Sequence[HumanScore]) -> dict[str, Any]:
    """{language: {dimension: {metric: value}, …, "average": {…}}} for one judge.

    Every dimension has `METRICS`, `n`, `gold_rounded` and 95 % intervals of the two accuracies (`acc_low`, `acc_high`,
    `acc_read_low`, `acc_read_high`: Wilson; for the average, percentile bootstrap over dialogues). Figures over the readable
    verdicts are None when nothing could be read.
    Raises `UserError` when the verdicts are of several judges, and for items without a partner on the other side.
    """
    judged = _by_item(judgements)
    golden = _mean_gold(gold)
    _refuse_partnerless(judged, golden)
    languages = {j.dialogue_id: j.language for j in judgements}
    by_language: dict[str, dict[str, list[Key]]] = defaultdict(lambda: defaultdict(list))
    for j in judgements:
        by_language[languages[j.dialogue_id]][j.dimension].append((j.dialogue_id, j.dimension))
    result: dict[str, Any] = {}
    for language, dimensions in sorted(by_language.items()):
        rows = {name: accuracy([judged[k] for k in keys], [golden[k] for k in keys]) for name, keys in dimensions.items()}
        rows["average"] = _average(rows) | _average_interval(dimensions, judged, golden)
        result[language] = rows
    return result


def _by_item(judgements: Sequence[Judgement]) -> dict[Key, float | None]:
    sources = {(j.judge, j.rubric, j.method) for j in judgements}
    if len(sources) > 1:
        listed = "; ".join(" ".join(source) for source in sorted(sources))
        raise UserError(f"judgements of several judges, rubrics or methods in one file: {listed}")
    _refuse_doubled("judgements", [(j.dialogue_id, j.dimension) for j in judgements])
    return {(j.dialogue_id, j.dimension): j.value for j in judgements}


def _mean_gold(gold: Sequence[HumanScore]) -> dict[Key, float]:
    scores: dict[Key, list[float]] = defaultdict(list)
    for score in gold:
        scores[score.dialogue_id, score.dimension].append(score.value)
    return {key: sum(values) / len(values) for key, values in scores.items()}


def _refuse_partnerless(judged: dict[Key, float | None], golden: dict[Key, float]) -> None:
    for have, lack, what in ((judged, golden, "judgements without gold"), (golden, judged, "gold without a judgement")):
        alone = sorted(set(have) - set(lack))
        if alone:
            examples = ", ".join(f"{dialogue}/{dimension}" for dialogue, dimension in alone[:3])
            raise UserError(f"{len(alone)} {what}, for example {examples}; both files must hold the same items")


def _average(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Unweighted means over dimensions; a figure that some dimension lacks is None, never the mean of the others."""
    average: dict[str, Any] = {}
    for metric in METRICS:
        values = [row[metric] for row in rows.values()]
        average[metric] = None if None in values else sum(values) / len(values)
    return average | {key: sum(row[key] for row in rows.values()) for key in ("n", "read", "gold_rounded")}


def _average_interval(
    dimensions: dict[str, list[Key]], judged: dict[Key, float | None], golden: dict[Key, float]
) -> dict[str, float | None]:
    """Bootstrap intervals of both average accuracies over dialogues: a dialogue's ratings are drawn together."""
    dialogues = sorted({dialogue for keys in dimensions.values() for dialogue, _ in keys})
    row = {dialogue: index for index, dialogue in enumerate(dialogues)}
    hits, rated, read = (np.zeros((len(dialogues), len(dimensions))) for _ in range(3))
    for column, keys in enumerate(dimensions.values()):
        for key in keys:
            value, place = judged[key], (row[key[0]], column)
            rated[place], read[place] = 1, value is not None
            hits[place] = value is not None and value == round_half_up(golden[key])
    bounds: dict[str, float | None] = {}
    for name, counted in (("acc", rated), ("acc_read", read)):
        average = estimates(np.where(counted > 0, hits, np.nan))[-1]
        bounds |= {f"{name}_low": average.low, f"{name}_high": average.high}
    return bounds


def agreement_tables(result: dict[str, Any], mode: str, labels: dict[str, str], note: str = "") -> list[Table]:
    """One table a language, in per cent: ACC and ACC_soft of `mode` beside the majority class, with n, parse rate, interval."""
    acc, soft = ("acc", "acc_soft") if mode == "paper" else ("acc_read", "acc_soft_read")
    tables = []
    for language, rows in result.items():
        body: list[tuple[Cell, ...]] = []
        for name, row in rows.items():
            shown = (acc, f"{acc}_low", f"{acc}_high", soft, "majority_acc", "majority_acc_soft")
            mean, low, high, *others = (None if row[figure] is None else 100 * row[figure] for figure in shown)
            counted = row["n"] if mode == "paper" else row["read"]
            body.append((labels.get(name, name), Estimate(mean, low, high, counted), *others, 100 * row["parse_rate"]))
        notes = [
            f"In per cent. Unreadable verdicts {'count as wrong' if mode == 'paper' else 'are left out'} ({mode} mode). "
            "Intervals: 95 %, Wilson; of the average: bootstrap over dialogues."
        ]
        if rounded := rows["average"]["gold_rounded"]:
            notes.append(f"{rounded} gold scores are not whole: ACC is on the rounded gold (halves up).")
        tables.append(
            Table(
                key=f"agreement_{language}",
                title=f"Agreement with gold, {language}" + (f" ({note})" if note else ""),
                columns=("Dimension", "ACC", "ACC_soft", "Majority ACC", "Majority ACC_soft", "Read %"),
                rows=tuple(body),
                notes=tuple(notes),
                section=AGREEMENT,
            )
        )
    return tables
