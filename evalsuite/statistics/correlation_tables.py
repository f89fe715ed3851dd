"""Correlation of judges and metrics with people, as tables (ESC-Eval, tables 3 and 13 to 15; EmoHarbor, table 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from core.grouping import group_by
from core.statistics.bootstrap import RESAMPLES
from core.tables import DASH, Cell, Estimate, Table
from evalsuite.statistics.coefficients import COEFFICIENTS
from evalsuite.statistics.correlation import Correlation
from evalsuite.statistics.judges import file_keys
from evalsuite.statistics.summary import AVERAGE, Scorer

CORRELATION = "Correlation"  # heading of the report
STRATEGY = "strategy"  # key of a judgement's condition: what the judge was shown
INTERVALS = f"Intervals: 95 %, percentile bootstrap over samples, {RESAMPLES:,} resamples."


def correlation_tables(correlations: Sequence[Correlation]) -> list[Table]:
    """Per language and human rubric: `correlation_sample_COEFFICIENT_…` (tables 3, 13 and 14 of the paper) and
    `correlation_dataset_…` (table 15). Rows are judges' dimensions, columns human ones; coefficients are × 100, as printed.

    Sample-level tables without any figure become a note below the dataset-level one, where there is one.
    """
    tables: list[Table] = []
    keys = file_keys(dict.fromkeys(one.gold_rubric for one in correlations))
    for (language, gold_rubric), of_rubric in group_by(correlations, lambda one: (one.language, one.gold_rubric)).items():
        tail = f"{language}_{keys[gold_rubric]}"
        title = f"with human scores on {gold_rubric}, {language}"
        overall = [one for one in of_rubric if one.level == "dataset"]
        within = [one for one in of_rubric if one.level == "sample"]
        absent = within and not any(one.estimate.n for one in within)
        for name in COEFFICIENTS if not (absent and overall) else ():
            if part := [one for one in within if one.coefficient == name]:
                heading = f"Sample-level correlation ({name}) {title}"
                tables.append(_table(f"correlation_sample_{name}_{tail}", heading, part, _sample_notes(part)))
        if overall:
            notes = ["One coefficient over all units; n: dialogues, or pairs of sample and system."]
            notes += ["Sample level: undefined, no sample has two systems with different scores."] if absent else []
            tables.append(_table(f"correlation_dataset_{tail}", f"Dataset-level correlation {title}", overall, notes))
    return tables


def alignment_tables(correlations: Sequence[Correlation]) -> list[Table]:
    """How close each prompting strategy of a judge comes to people (EmoHarbor section 4.1.2): one table for every language and
    rubric of people's, judges and strategies × dimensions, Pearson × 100 over all dialogues at once.

    Only judges that score the dimensions of that rubric are in it (none: no table). A judge without strategies has a dash.
    """
    same = [one for one in correlations if one.dimension == one.gold_dimension]
    pearson = [one for one in same if (one.level, one.coefficient) == ("dataset", "pearson")]
    tables = []
    for (language, rubric), part in group_by(pearson, lambda one: (one.language, one.gold_rubric)).items():
        columns, rows = _crossed(part, lambda one: _judge_and_strategy(one.scorer))
        note = f"Each dimension with people's scores of the same one on rubric {rubric}, over all dialogues at once."
        tables.append(
            Table(
                key=f"alignment_{language}_{rubric}",
                title=f"Judges against people, Pearson × 100, {language}",
                columns=("judge", STRATEGY, *columns),
                rows=rows,
                notes=(f"{note} {INTERVALS} A dash: undefined.",),
                section=CORRELATION,
            )
        )
    return tables


def _judge_and_strategy(scorer: Scorer) -> tuple[str, str]:
    condition = dict(scorer.condition)
    strategy = condition.pop(STRATEGY, DASH)
    return scorer._replace(condition=tuple(condition.items())).name, strategy


def _table(key: str, title: str, part: Sequence[Correlation], notes: list[str]) -> Table:
    names: dict[str, Callable[[Correlation], str]] = {"judge": lambda one: one.scorer.name}
    if len({one.rubric for one in part}) > 1:
        names["rubric"] = lambda one: one.rubric
    names["dimension"] = lambda one: one.dimension
    if part[0].level == "dataset":
        names["coefficient"] = lambda one: one.coefficient
    columns, rows = _crossed(part, lambda one: tuple(name(one) for name in names.values()))
    return Table(key, title, (*names, *columns), rows, (*notes, *_notes(part)), CORRELATION)


def _crossed(
    part: Sequence[Correlation], names: Callable[[Correlation], tuple[str, ...]]
) -> tuple[list[str], tuple[tuple[Cell, ...], ...]]:
    """People's dimensions as columns, and a row for each judge, rubric and `names`: coefficients × 100."""
    columns = list(dict.fromkeys(one.gold_dimension for one in part))
    cells: dict[tuple[Scorer, str, tuple[str, ...]], dict[str, Estimate]] = defaultdict(dict)
    for one in part:
        cells[one.scorer, one.rubric, names(one)][one.gold_dimension] = one.estimate.times(100)
    return columns, tuple((*heads, *map(row.get, columns)) for (*_, heads), row in cells.items())


def _sample_notes(part: Sequence[Correlation]) -> list[str]:
    notes = ["The coefficient within each sample across its systems, averaged; n: samples in which it is defined."]
    if worst := max(one.undefined for one in part):
        samples = max(one.samples for one in part)
        notes.append(f"In up to {worst} of {samples} samples it is undefined: fewer than two systems, or equal scores.")
    return notes


def _notes(part: Sequence[Correlation]) -> list[str]:
    notes = [f"× 100. Rows are the judge's dimensions, columns people's. {INTERVALS}"]
    if any(AVERAGE in (one.dimension, one.gold_dimension) for one in part):
        several = "on 0–100 where their rubric has several scales"
        notes.append(f"{AVERAGE}: the mean of a side's dimensions ({several}), where all of them were scored.")
    if worst := max(one.left_out for one in part):
        notes.append(f"Undefined resamples are left out: up to {worst:,} for one figure.")
    if lost := max(one.unread for one in part):
        notes.append(f"Verdicts without a score are left out: up to {lost:,} for one row.")
    return notes
