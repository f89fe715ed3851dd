"""A page of findings, forest plots, tables and charts without transcripts, also as JSON and Markdown.

Forest plots have a row per supporter with its estimates and intervals: templates/parts.html.j2 draws them without a script.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from core import page
from core.errors import clean
from core.files import write_json, write_text
from core.languages import name_of
from core.records import Turn
from core.rubrics import Rubric
from core.tables import Estimate, Table, escape_markdown, fmt, to_markdown, write_csv
from evalsuite.report.charts import TEMPLATES, Chart
from evalsuite.report.headlines import found_in
from evalsuite.runs.texts import TextDiff
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


@dataclass(frozen=True)
class Branch:
    """Turns of a dialogue, and its continuations."""

    title: str
    note: str
    turns: Sequence[Turn]
    branches: Sequence[Branch] = ()


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a page says. `cautions` and `findings` are sentences, the first finding the answer, `facts` lines of what was done.
    The `forests` and the tables with the keys in `main` are at the top, the others folded under their section. A chart stands
    below the table that it names. `texts` are what changed in words, the `tree` is dialogues that begin alike, `figures` is
    further JSON."""

    title: str
    cautions: Sequence[str] = ()
    findings: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    forests: Sequence[Forest] = ()
    main: Sequence[str] = ()
    texts: Sequence[TextDiff] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    tree: Branch | None = None

    @property
    def sections(self) -> dict[str, list[Table]]:
        """Heading → its folded tables."""
        folded = [table for table in self.tables if table.key not in self.main]
        names = dict.fromkeys(table.section for table in folded)
        return {name: [table for table in folded if table.section == name] for name in names}


def write_sheet(folder: Path, name: str, sheet: Sheet) -> dict[str, Path]:
    """Write NAME.html, NAME.json, NAME.md and tables/KEY.csv; returns the paths by kind."""
    paths = {kind: folder / f"{name}.{kind}" for kind in ("html", "json", "md")}
    scripts = ("sort", "charts") if sheet.charts else ("sort",)
    write_text(paths["html"], rendered("sheet.html.j2", scripts, sheet.charts, bool(sheet.charts), sheet=sheet))
    write_json(paths["json"], as_figures(sheet))
    write_text(paths["md"], _markdown(sheet))
    write_csv(name, sheet.tables, folder / "tables")
    return paths


def as_figures(sheet: Sheet) -> dict[str, Any]:
    """The page as JSON."""
    content = {"title": sheet.title, "warnings": sheet.cautions, "findings": sheet.findings, "facts": dict(sheet.facts)}
    texts = {"texts": {text.what: text.lines for text in sheet.texts}} if sheet.texts else {}
    return content | texts | {**sheet.figures, "tables": [asdict(table) for table in sheet.tables]}


def rendered(template: str, scripts: Sequence[str], charts: Sequence[Chart], drawn: bool = True, **content: Any) -> str:
    """A page from its template, with these scripts and, unless not `drawn`, what draws charts."""
    return (
        page.environment(TEMPLATES)
        .get_template(template)
        .render(
            figures={chart.key: chart.figure for chart in charts},
            scripts=page.scripts(*(TEMPLATES / f"{name}.js" for name in scripts), drawn=drawn),
            style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
            **content,
        )
    )


def markdown_head(title: str, findings: Sequence[str], cautions: Sequence[str]) -> list[str]:
    """The first lines of a page in Markdown."""
    lines = [f"# {escape_markdown(title)}", *map(escape_markdown, findings)]
    return "\n\n".join([*lines, *(f"> **{escape_markdown(caution)}**" for caution in cautions)]).split("\n")


def markdown_texts(texts: Sequence[TextDiff]) -> list[str]:
    """What changed in words, in Markdown."""
    return [
        part for what, lines in texts for part in ("", f"{escape_markdown(what)}:", "", *(f"    {clean(x)}" for x in lines))
    ]


def _markdown(sheet: Sheet) -> str:
    parts = markdown_head(sheet.title, sheet.findings, sheet.cautions) + markdown_texts(sheet.texts)
    parts += ["", *(f"- {name}: {escape_markdown(text)}" for name, text in sheet.facts)] if sheet.facts else []
    parts += [part for table in sheet.tables if table.key in sheet.main for part in ("", to_markdown(table).rstrip())]
    for heading, tables in sheet.sections.items():
        parts += ["", f"## {escape_markdown(heading)}", "", "\n".join(to_markdown(table) for table in tables).rstrip()]
    return "\n".join(parts) + "\n"
