"""The report of a run: report.html (one self-contained file), report.json (the same as data), report.md, and tables/*.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml
from markupsafe import Markup

from core import page
from core.files import write_json, write_text
from core.records import Dialogue, HumanScore, Judgement, RoleCard
from core.rubrics import Rubric
from core.tables import Estimate, Table, clean, escape_markdown, to_markdown, write_csv
from evalsuite.report.charts import (
    LANGUAGES,
    SYNTHETIC_GOLD,
    Agreement,
    Chart,
    agreement_charts,
    distribution_charts,
    gold_charts,
    score_charts,
    termination_charts,
)
from evalsuite.report.headlines import Ranks, held, standings, unread
from evalsuite.report.transcripts import Risks, transcripts
from evalsuite.statistics.leaderboard import Score, scores
from evalsuite.statistics.summary import (
    AGREEMENT,
    SCORES,
    TERMINATIONS,
    checked,
    languages_of,
    scorer_of,
    supporter_of,
)

PLUMBING = "Plumbing: scores that involve the embedded 135M model say nothing about quality."
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """All that a report shows.

    `tables` come in display order, grouped by their `section` (use `summary.SCORES`, `AGREEMENT`, `TERMINATIONS` and
    `COSTS`, which also receive the charts, or any other name). `agreement` maps language → dimension or "average" → figures
    as fractions of 1: acc, acc_soft, majority_acc, majority_acc_soft, acc_low, acc_high, n, parse_rate and more. `config` is
    the resolved configuration (JSON values only); a `fingerprints` entry in it is shown as a table. `timing` is in seconds and
    the only place for clock time. `generated` is the report's date as text.

    `gold_judgements` and `gold_scores` are the judge's verdicts on the gold set and its scores: confusion and calibration are
    drawn from them. `ranks` are shown in the summary, `warnings` are further sentences for it. `risks` maps dialogue id →
    place of a turn → what it is about: those transcripts stand behind a content warning. `facts`
    are further lines on what was run, `charts` further charts by the section of the tables that they draw.
    """

    title: str
    framework: str
    mode: Literal["paper", "native"]
    plumbing: bool
    synthetic_gold: bool
    rubric: Rubric
    cards: Mapping[str, RoleCard]
    dialogues: Sequence[Dialogue]
    judgements: Sequence[Judgement]
    tables: Sequence[Table]
    generated: str
    agreement: Agreement | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)
    gold_judgements: Sequence[Judgement] = ()
    gold_scores: Sequence[HumanScore] = ()
    ranks: Ranks = field(default_factory=dict)
    warnings: Sequence[str] = ()
    risks: Risks = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()
    charts: Mapping[str, Sequence[Chart]] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """One heading of the report with its tables and charts; `label` is a warning that belongs to all of it."""

    title: str
    tables: list[Table]
    charts: list[Chart]
    label: str = ""

    @property
    def blocks(self) -> list[Table | Chart]:
        """Tables and charts in display order."""
        placed: list[Table | Chart] = []
        for table in self.tables:
            placed += [table, *(chart for chart in self.charts if chart.after == table.key)]
        return placed + [chart for chart in self.charts if chart not in placed]


def write_report(run: Path, content: ReportContent) -> dict[str, Path]:
    """Write report.html, report.json, report.md and tables/KEY.csv for every table into the run folder.

    Returns the paths by kind: html, json, md, and tables (the folder). Raises `UserError` for judgements that do not fit the
    rubric or name no dialogue of the run, `ValueError` for two tables with one key.
    """
    doubled = [key for key, count in Counter(table.key for table in content.tables).items() if count > 1]
    if doubled:
        raise ValueError(f"two tables with the key {doubled[0]}")
    paths = {kind: run / f"report.{kind}" for kind in ("html", "json", "md")}
    cells = scores(content.dialogues, content.judgements, content.rubric)
    sections = sections_of(content, cells)
    write_text(paths["html"], _html(content, cells, sections))
    write_json(paths["json"], _data(content, cells))
    write_text(paths["md"], _markdown(content, cells, sections))
    write_csv("report", content.tables, run / "tables")
    return paths | ({"tables": run / "tables"} if content.tables else {})


def sections_of(content: ReportContent, cells: Sequence[Score]) -> list[Section]:
    """The report's headings with their tables and charts; `cells` are the run's scores."""
    agreed = agreement_charts(content.agreement or {}, content.rubric, content.mode, content.synthetic_gold)
    gold = gold_charts(content.gold_judgements, content.gold_scores, content.rubric, content.synthetic_gold)
    charts = {
        SCORES: [
            *score_charts(cells, content.dialogues, content.rubric),
            *distribution_charts(content.judgements, content.rubric),
        ],
        AGREEMENT: [*agreed, *gold],
        TERMINATIONS: list(termination_charts(content.dialogues)),
        **content.charts,
    }
    names = dict.fromkeys(table.section for table in content.tables if table.section)
    names |= dict.fromkeys(name for name, own in charts.items() if own)
    if any(not table.section for table in content.tables):
        names[""] = None
    label = SYNTHETIC_GOLD if content.synthetic_gold else ""
    return [
        Section(
            name or "Further tables",
            [table for table in content.tables if table.section == name],
            list(charts.get(name, [])),
            label if name == AGREEMENT else "",
        )
        for name in names
    ]


def summary_of(content: ReportContent, cells: Sequence[Score]) -> tuple[list[str], list[str]]:
    """The summary at the top: what came out, and what to be wary of, as sentences."""
    own = list(checked(content.judgements, content.rubric))
    warnings = [
        PLUMBING if content.plumbing else "",
        f"{SYNTHETIC_GOLD}: agreement with it says nothing about agreement with people." if content.synthetic_gold else "",
        unread(own),
        *content.warnings,
    ]
    return [*standings(cells, content.ranks), held(content.dialogues)], [warning for warning in warnings if warning]


def _facts(content: ReportContent) -> list[tuple[str, str]]:
    """What was run, on what: the lines at the top of the report."""
    own = list(checked(content.judgements, content.rubric))
    used = {d.card_id for d in content.dialogues if d.card_id} | {d.profile_id for d in content.dialogues if d.profile_id}
    given = [judgement for judgement in own if not judgement.lost]
    read = sum(judgement.value is not None for judgement in given)
    facts = [
        ("Framework", f"{content.framework}, {content.mode} mode"),
        ("Rubric", f"{content.rubric.name} ({content.rubric.source})"),
        ("Supporters", ", ".join(sorted({supporter_of(d) for d in content.dialogues}))),
        ("Seekers played by", ", ".join(sorted({d.simulator for d in content.dialogues if d.simulator}))),
        ("Judged by", ", ".join(sorted({scorer_of(j).name for j in own}))),
        *content.facts,
        ("Languages", ", ".join(LANGUAGES[language] for language in languages_of(content.dialogues))),
        ("Dialogues", f"{len(content.dialogues):,}" + (f" on {len(used):,} role cards or profiles" if used else "")),
        ("Verdicts", f"{len(given):,}, {read / len(given):.1%} readable" if given else ""),
        ("Generated", content.generated),
    ]
    return [(name, text) for name, text in facts if text]


def _data(content: ReportContent, cells: Sequence[Score]) -> dict[str, Any]:
    """report.json: records and figures in full precision; clock time under `timing` alone."""
    return {
        "title": content.title,
        "framework": content.framework,
        "mode": content.mode,
        "generated": content.generated,
        "summary": dict(zip(("found", "warnings"), summary_of(content, cells), strict=True)),
        "plumbing": PLUMBING if content.plumbing else None,
        "synthetic_gold": SYNTHETIC_GOLD if content.synthetic_gold else None,
        "rubric": orjson.loads(content.rubric.model_dump_json()),
        "config": content.config,
        "tables": [asdict(table) for table in content.tables],
        "scores": [
            asdict(score) | {"scorer": score.scorer._asdict() | {"condition": dict(score.scorer.condition)}} for score in cells
        ],
        "agreement": content.agreement,
        "timing": content.timing,
        "cards": {key: card.model_dump(mode="json") for key, card in content.cards.items()},
        "dialogues": [dialogue.model_dump(mode="json") for dialogue in content.dialogues],
        "judgements": [judgement.model_dump(mode="json") for judgement in content.judgements],
    }


def _config_text(content: ReportContent) -> str:
    plain = orjson.loads(orjson.dumps({key: value for key, value in content.config.items() if key != "fingerprints"}))
    return clean(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)) if plain else ""


def _fingerprints(content: ReportContent) -> list[tuple[str, str]]:
    found = content.config.get("fingerprints", {})
    return [(str(key), str(value)) for key, value in found.items()] if isinstance(found, Mapping) else []


def _markdown(content: ReportContent, cells: Sequence[Score], sections: list[Section]) -> str:
    parts = [f"# {escape_markdown(content.title)}", ""]
    found, warnings = summary_of(content, cells)
    parts += ["## Summary", "", *(f"- {escape_markdown(line)}" for line in found)]
    for warning in warnings:
        parts += ["", f"> **{escape_markdown(warning)}**"]
    parts += ["", "## Run", ""]
    parts += [f"- {name}: {escape_markdown(text)}" for name, text in _facts(content)]
    for section in sections:
        if section.tables:
            parts += ["", f"## {escape_markdown(section.title)}", ""]
            parts += [f"> {section.label}", ""] if section.label else []
            parts += ["\n".join(to_markdown(table) for table in section.tables).rstrip()]
    if content.config:
        parts += ["", "## Configuration", ""]
        parts += [f"- {escape_markdown(name)}: {escape_markdown(value)}" for name, value in _fingerprints(content)]
        # Indented rather than fenced: no line of the configuration can end the block.
        parts += ["", *("    " + line for line in _config_text(content).splitlines())]
    return "\n".join(parts) + "\n"


# --- the HTML file -------------------------------------------------------------------------------------------------------


def _html(content: ReportContent, cells: Sequence[Score], sections: list[Section]) -> str:
    environment = page.environment(TEMPLATES)
    environment.tests["chart"] = lambda block: isinstance(block, Chart)
    environment.filters["is_bold"] = _is_bold
    environment.filters["is_estimate"] = lambda cell: isinstance(cell, Estimate)
    scripts = {
        "browse": (TEMPLATES / "browse.js").read_text(encoding="utf-8"),
        "plotly": page.plotly(),
        "charts": (TEMPLATES / "charts.js").read_text(encoding="utf-8"),
    }
    found, warnings = summary_of(content, cells)
    return environment.get_template("report.html.j2").render(
        content=content,
        facts=_facts(content),
        found=found,
        warnings=warnings,
        sections=sections,
        charts={chart.key: chart.data for section in sections for chart in section.charts},
        transcripts=transcripts(content.dialogues, content.judgements, content.rubric, content.cards, content.risks),
        config=_config_text(content),
        fingerprints=_fingerprints(content),
        csp_hashes=page.hashes(scripts.values()),
        scripts={name: Markup(text) for name, text in scripts.items()},
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
    )


def _is_bold(table: Table, row: int, column: int) -> bool:
    return (row, column) in table.bold
