"""A page of findings, tables and charts without transcripts, also as JSON and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from core import page
from core.errors import clean
from core.files import write_json, write_text
from core.records import Turn
from core.tables import Table, escape_markdown, to_markdown, write_csv
from evalsuite.report.charts import Chart
from evalsuite.report.figures import TEMPLATES
from evalsuite.report.forest import Forest
from evalsuite.runs.texts import TextDiff


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
