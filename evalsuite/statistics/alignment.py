"""How close each way of asking a judge comes to people (EmoHarbor section 4.1.2, table 1).

Every dimension of a judge with people's scores on the same one: Pearson's coefficient over all dialogues at once, of what
`evalsuite.statistics.correlation` computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.statistics.bootstrap import RESAMPLES
from core.tables import DASH, Cell, Estimate, Table
from evalsuite.statistics.correlation import CORRELATION, Correlation
from evalsuite.statistics.summary import Scorer

STRATEGY = "strategy"  # key of a judgement's condition: what the judge was shown


def alignment_tables(correlations: Sequence[Correlation]) -> list[Table]:
    """One table for every language and rubric of people's: judges and strategies × dimensions, × 100 with intervals and n.

    Only judges that score the dimensions of that rubric are in it (none: no table). A judge without strategies has a dash.
    """
    defined = [
        row
        for row in correlations
        if (row.level, row.coefficient) == ("dataset", "pearson") and row.dimension == row.gold_dimension
    ]
    result = []
    for language, rubric in dict.fromkeys((row.language, row.gold_rubric) for row in defined):
        part = [row for row in defined if (row.language, row.gold_rubric) == (language, rubric)]
        columns = list(dict.fromkeys(row.gold_dimension for row in part))
        rows: list[tuple[Cell, ...]] = []
        for scorer, judged in dict.fromkeys((row.scorer, row.rubric) for row in part):
            cells = {row.dimension: _hundredfold(row) for row in part if (row.scorer, row.rubric) == (scorer, judged)}
            rows.append((*_names(scorer), *(cells.get(column) for column in columns)))
        result.append(
            Table(
                key=f"alignment_{language}_{rubric}",
                title=f"Judges against people, Pearson × 100, {language}",
                columns=("judge", STRATEGY, *columns),
                rows=tuple(rows),
                notes=(
                    f"Each dimension with people's scores of the same one on rubric {rubric}, over all dialogues at once. "
                    f"Intervals: 95 %, percentile bootstrap over samples, {RESAMPLES:,} resamples. A dash: undefined.",
                ),
                section=CORRELATION,
            )
        )
    return result


def _names(scorer: Scorer) -> tuple[str, str]:
    condition = dict(scorer.condition)
    strategy = condition.pop(STRATEGY, DASH)
    return scorer._replace(condition=tuple(condition.items())).name, strategy


def _hundredfold(row: Correlation) -> Estimate:
    mean, low, high = (None if f is None else 100 * f for f in (row.estimate.mean, row.estimate.low, row.estimate.high))
    return Estimate(mean, low, high, row.estimate.n)
