"""Forest plots, a row per supporter with its estimates and intervals: templates/parts.html.j2 draws them without a script."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from core.languages import name_of
from core.rubrics import Rubric
from core.tables import Estimate, fmt
from evalsuite.report.headlines import found_in
from evalsuite.statistics.leaderboard import Board
from evalsuite.statistics.paired import rank_text
from evalsuite.statistics.summary import dimension_label, short_names

MINUS = "\u2212"


@dataclass(frozen=True)
class ForestLine:
    """A row: in every column an estimate per judge, or None. `said` are the words after the figure."""

    name: str
    columns: Sequence[Sequence[Estimate | None]]
    rank: str | None = None
    floor: bool = False
    said: str = ""


@dataclass(frozen=True)
class Forest:
    """Rows (what each is: `rows`) on an axis from `low` to `high`. Marks distinguish the `judges`; figures are the first
    one's."""

    title: str
    lines: Sequence[ForestLine]
    columns: Sequence[str] = ("",)
    judges: Sequence[str] = ()
    low: float = 0
    high: float = 100
    unit: str = "of 100"
    rows: str = "supporter"

    def at(self, figure: float) -> str:
        """The horizontal position of a figure; figures off the axis (negative points may lead below 0) are at its end."""
        return f"{100 * (min(max(figure, self.low), self.high) - self.low) / (self.high - self.low):.2f}%"

    def figure(self, figure: float) -> str:
        """The text of a figure, with its sign if the axis has two sides."""
        text = fmt(figure, 1)
        return f"+{text}" if self.low < 0 and figure > 0 and text != "0.0" else text.replace("-", MINUS)

    @property
    def ticks(self) -> list[float]:
        parts = 2 if self.low < 0 or len(self.columns) > 1 else 4
        return [self.low + (self.high - self.low) * part / parts for part in range(parts + 1)]

    @property
    def ranked(self) -> bool:
        return any(line.rank for line in self.lines)


def board_forest(boards: Sequence[Board], title: str) -> Forest:
    """Several judges' boards of the same supporters, in the order of the first: models, then floors."""
    first, names = boards[0], list(short_names(board.scorer for board in boards).values())
    averages = [{block[-1].supporter: block[-1].estimate for block in board.scores} for board in boards]
    lines = [
        ForestLine(who, [[of_judge.get(who) for of_judge in averages]], rank_text(first.ranks[place]), floor)
        for place, who, floor in _rows(first)
    ]
    return Forest(title, lines, judges=names)


def language_forests(boards: Sequence[Board]) -> Iterator[Forest]:
    """A forest per language."""
    for language in dict.fromkeys(board.language for board in boards):
        yield board_forest([board for board in boards if board.language == language], name_of(language))


def dimension_forest(board: Board, rubric: Rubric) -> Forest:
    """A column per dimension."""
    lines = [
        ForestLine(who, [[cell.estimate] for cell in board.scores[place] if cell.dimension in rubric.scored], floor=floor)
        for place, who, floor in _rows(board)
    ]
    return Forest("By dimension", lines, [dimension_label(rubric, name) for name in rubric.scored])


def difference_forests(board: Board) -> Iterator[Forest]:
    """For every possible reference, the differences of the other supporters' averages from its average."""
    ends = reach(gap.estimate for gap in board.differences)
    gaps = {(gap.second, gap.first): gap for gap in board.differences}
    gaps |= {(gap.first, gap.second): replace(gap, estimate=gap.estimate.times(-1)) for gap in board.differences}
    rows = list(_rows(board))
    for reference, name, _ in rows:
        lines = [
            ForestLine(who, [[gap.estimate]], floor=floor, said=found_in(gap, "ahead", "behind"))
            for place, who, floor in rows
            if (gap := gaps.get((reference, place)))
        ]
        if lines:
            yield gap_forest(name, lines, ends)


def gap_forest(
    title: str, lines: Sequence[ForestLine], ends: float, rows: str = "supporter", columns: Sequence[str] = ("",)
) -> Forest:
    """Differences in points, on an axis around 0."""
    return Forest(title, lines, columns, low=-ends, high=ends, unit="points", rows=rows)


def _rows(board: Board) -> list[tuple[int, str, bool]]:
    """Place, name and whether it is a floor: models by falling average, then floors."""
    rows = [(place, board.contestants[place].supporter, place not in board.models) for place in board.order]
    return sorted(rows, key=lambda row: row[2])


def reach(estimates: Iterable[Estimate]) -> int:
    """The length of an axis of differences on either side of 0, in points."""
    ends = (end for estimate in estimates for end in (estimate.mean, estimate.low, estimate.high) if end is not None)
    return max(10, 10 * math.ceil(max(map(abs, ends), default=0) / 10))
