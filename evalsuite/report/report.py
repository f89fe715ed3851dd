"""The report of a run: report.html (one self-contained file), report.json (the same as data), report.md, and tables/*.csv; and
the same tables and charts in Weights & Biases."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml
from pydantic import BaseModel

from core.errors import clean, need_modules
from core.files import digest, write_json_of, write_jsonl, write_text
from core.grouping import group_by
from core.languages import name_of
from core.records import RoleCard
from core.tables import Table, escape_markdown, spread, to_markdown, write_csv
from core.third_party import offline_without_key
from evalsuite.report.charts import SYNTHETIC_GOLD, Agreement, Chart, coloured
from evalsuite.report.headlines import agreeing, answer, belief, counted, unbeaten, unread
from evalsuite.report.sheet import (
    Forest,
    board_forest,
    difference_forests,
    dimension_forest,
    language_forests,
    markdown_head,
    markdown_texts,
    rendered,
)
from evalsuite.report.transcripts import Risks, beside, transcripts
from evalsuite.runs.framework import Alarm
from evalsuite.runs.texts import TextDiff
from evalsuite.statistics.contestants import POOLED
from evalsuite.statistics.leaderboard import Board, Tally
from evalsuite.statistics.summary import AGREEMENT, languages_of, supporter_of

ALARMS = 10  # the most that a page shows with their transcripts
UNSCORED = "{0} has no judgements yet: run `esc-eval run --only score --config CONFIG --out {0}` first"
PLUMBING = "Plumbing: scores that involve the embedded 135M model say nothing about quality."


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """The content of a report.

    `tables` come in display order, grouped by their `section`; a chart stands below its table. `agreement` is what
    `statistics.agreement` gives, `agreements` maps judge → the same, the first being `agreement`; None where nothing is to be
    said of judges. `config` is the resolved configuration (JSON values only); a `fingerprints` entry in it is shown as a table.
    `replay` names the recording whose answers were taken. `timing` is in seconds and the only place for clock time. `generated`
    is the report's date as text.

    `warnings` are further sentences for the summary, `further_facts` further lines on what was run. `alarms` come before
    everything else. `risks` maps dialogue id → place of a turn → what it is about: those transcripts are behind a content
    warning. `texts` are the supporters' system messages. `records` go beside the tables as JSON lines, by the file's name."""

    title: str
    framework: str
    mode: Literal["paper", "native"]
    plumbing: bool
    synthetic_gold: bool
    tally: Tally
    cards: Mapping[str, RoleCard]
    tables: Sequence[Table]
    charts: Sequence[Chart]
    generated: str
    replay: str | None = None
    agreement: Agreement | None = None
    agreements: Mapping[str, Agreement] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    risks: Risks = field(default_factory=dict)
    records: Mapping[str, Sequence[BaseModel]] = field(default_factory=dict)
    further_facts: Sequence[tuple[str, str]] = ()
    alarms: Sequence[Alarm] = ()
    texts: Sequence[TextDiff] = ()

    @property
    def sections(self) -> dict[str, list[Table]]:
        """Heading → its tables; tables without a section come last."""
        groups = group_by(self.tables, lambda table: table.section or "Further tables")
        return {name: groups[name] for name in sorted(groups, key=lambda name: name == "Further tables")}

    def label(self, heading: str) -> str:
        """A warning about all tables under a heading."""
        return SYNTHETIC_GOLD if self.synthetic_gold and heading == AGREEMENT else ""

    @cached_property
    def beliefs(self) -> dict[str, tuple[bool, str]]:
        """Judge → whether it is reliable, and why."""
        languages = languages_of(self.tally.dialogues)
        judges = dict.fromkeys(board.scorer.judge for board in self.tally.pooled)
        if self.agreements is None:
            return dict.fromkeys(judges, (True, ""))
        return {judge: belief(self.agreements, judge, languages) for judge in judges}

    @cached_property
    def boards(self) -> list[Board]:
        """The boards over all languages, those of reliable judges first: the page's headline is about the first."""
        return sorted(self.tally.pooled, key=lambda board: not self.beliefs[board.scorer.judge][0])

    @property
    def alarmed(self) -> list[str]:
        """A sentence with the number of dialogues that raised an alarm; empty if none did."""
        alarmed, total = len({alarm.dialogue.id for alarm in self.alarms}), len(self.tally.dialogues)
        sentence = f"Damaging answers in {alarmed:,} of {total:,} dialogues, whatever the average says: read them first."
        return [sentence] if alarmed else []

    @property
    def relied(self) -> bool:
        """Whether the first board's judge is reliable."""
        return any(self.beliefs[board.scorer.judge][0] for board in self.boards[:1])

    @cached_property
    def findings(self) -> list[str]:
        """The findings as sentences: the answer, how reliable its judge is and who agrees, and the number of dialogues."""
        if not self.boards:
            return [counted(self.tally.dialogues)]
        first, *others = self.boards
        same, _ = agreeing(first, others)
        judge = " ".join(filter(None, [self.beliefs[first.scorer.judge][1], same]))
        return [answer(first, self.boards), *[judge] * bool(judge), counted(self.tally.dialogues)]

    @cached_property
    def forests(self) -> dict[str, list[Forest]]:
        """The forest plots at the top: the `board`, one per language, one with a column per dimension, one per reference."""
        if not self.boards:
            return {}
        first = self.boards[0]
        apart = [part for board in self.boards for part in self.tally.boards if part.scorer == board.scorer]
        return {
            "board": [board_forest(self.boards, "Average score")],
            "languages": [*language_forests(apart)] if first.language == POOLED else [],
            "dimensions": [dimension_forest(first, self.tally.rubric)],
            "references": [*difference_forests(first)],
        }

    @property
    def replayed(self) -> str:
        """A sentence that says that no model was asked; empty if models were."""
        return f"A replay of {self.replay}: no model was asked." if self.replay else ""

    @cached_property
    def cautions(self) -> list[str]:
        """Warnings, those that could change the decision first: the page shows three and folds the others."""
        warnings = [
            PLUMBING if self.plumbing else "",
            *(agreeing(self.boards[0], self.boards[1:])[1] if self.boards else ()),
            *(unbeaten(self.boards[0]) if self.boards else ()),
            *self.warnings,
            unread([verdict for verdict in self.tally.verdicts if verdict.dimension in self.tally.rubric.scored]),
            f"{SYNTHETIC_GOLD}: agreement with it says nothing about agreement with people." if self.synthetic_gold else "",
            self.replayed,
        ]
        return [warning for warning in warnings if warning]

    @cached_property
    def facts(self) -> list[tuple[str, str]]:
        """The run's settings and sizes: the lines at the top of the report."""
        dialogues, verdicts = self.tally.dialogues, self.tally.verdicts
        cards, profiles = {d.card_id for d in dialogues if d.card_id}, {d.profile_id for d in dialogues if d.profile_id}
        people = [f"{len(ids):,} {name}" for ids, name in ((cards, "role cards"), (profiles, "profiles")) if ids]
        answered = [judgement for judgement in verdicts if not (judgement.lost or judgement.unasked)]
        read = sum(judgement.value is not None for judgement in answered)
        rubric = self.tally.rubric
        facts = [
            ("Framework", f"{self.framework}, {self.mode} mode"),
            ("Rubric", rubric.title),
            ("Supporters", ", ".join(sorted({supporter_of(d) for d in dialogues}))),
            ("Seekers played by", ", ".join(sorted({d.simulator for d in dialogues if d.simulator}))),
            ("Judged by", ", ".join(sorted({contestant.scorer.name for contestant in self.tally.contestants}))),
            *self.further_facts,
            ("Languages", ", ".join(name_of(language) for language in languages_of(dialogues))),
            ("Dialogues", f"{len(dialogues):,}" + (f" on {' and '.join(people)}" if people else "")),
            ("Verdicts", f"{len(answered):,}, {read / len(answered):.1%} readable" if answered else ""),
            ("Generated", self.generated),
        ]
        return [(name, text) for name, text in facts if text]


def write_report(run: Path, content: ReportContent, name: str = "report") -> dict[str, Path]:
    """Write NAME.html, NAME.json, NAME.md and tables/KEY.csv for every table into the run folder, and the transcripts of a page
    that would be too large into NAME_transcripts. Returns the paths by kind: html, json, md, and tables (the folder). Raises
    `UserError` for judgements that do not fit the rubric or name no dialogue of the run, `ValueError` for two tables with one
    key, and for a chart whose table is missing."""
    keys = Counter(table.key for table in content.tables)
    if doubled := [key for key, count in keys.items() if count > 1]:
        raise ValueError(f"two tables with the key {doubled[0]}")
    if lost := [chart.key for chart in content.charts if chart.after not in keys]:
        raise ValueError(f"chart {lost[0]} stands below no table")
    paths = {kind: run / f"{name}.{kind}" for kind in ("html", "json", "md")}
    shown, folder = transcripts(content.tally, content.cards, content.risks), run / f"{name}_transcripts"
    shutil.rmtree(folder, ignore_errors=True)  # transcripts of an earlier page
    shown = beside(shown, folder) if shown["split"] else shown
    page: dict[str, Any] = {"content": content, "most_alarms": ALARMS, "transcripts": shown, "config": _config_text(content)}
    scripts = ("transcripts", "browse", "sort", "reference", "charts")
    write_text(paths["html"], rendered("report.html.j2", scripts, content.charts, **page))
    records = {"dialogues": content.tally.dialogues, "judgements": content.tally.judgements}
    write_json_of(paths["json"], _data(content), records)
    write_text(paths["md"], _markdown(content))
    write_csv(name, content.tables, run / "tables")
    for kind, found in content.records.items():
        write_jsonl(run / "tables" / f"{kind}.jsonl", found)
    return paths | ({"tables": run / "tables"} if content.tables else {})


def _data(content: ReportContent) -> dict[str, Any]:
    """report.json without its records: figures in full precision, clock times only under `timing`."""
    tally = content.tally
    return {
        "title": content.title,
        "framework": content.framework,
        "mode": content.mode,
        "generated": content.generated,
        "summary": {"found": content.findings, "warnings": content.cautions},
        **({"alarms": [[alarm.dialogue.id, alarm.what] for alarm in content.alarms]} if content.alarms else {}),
        "plumbing": PLUMBING if content.plumbing else None,
        "synthetic_gold": SYNTHETIC_GOLD if content.synthetic_gold else None,
        "rubric": orjson.loads(tally.rubric.model_dump_json()),
        "config": content.config,
        "tables": [asdict(table) for table in content.tables],
        "scores": [
            asdict(score) | {"scorer": score.scorer._asdict() | {"condition": dict(score.scorer.condition)}}
            for score in tally.scores
        ],
        "agreement": content.agreement,
        "agreements": content.agreements or {},
        "timing": content.timing,
        "cards": {key: card.model_dump(mode="json") for key, card in content.cards.items()},
    }


def _config_text(content: ReportContent) -> str:
    plain = orjson.loads(orjson.dumps({key: value for key, value in content.config.items() if key != "fingerprints"}))
    return clean(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)) if plain else ""


def _markdown(content: ReportContent) -> str:
    alarms = (f"- {alarm.what} ({alarm.dialogue.id})" for alarm in content.alarms[:ALARMS])
    parts = markdown_head(content.title, [*content.alarmed, *alarms, *content.findings], content.cautions)
    parts += ["", "## Run", ""]
    parts += [f"- {name}: {escape_markdown(text)}" for name, text in content.facts]
    for heading, tables in content.sections.items():
        parts += ["", f"## {escape_markdown(heading)}", ""]
        parts += [f"> {label}", ""] if (label := content.label(heading)) else []
        parts += ["\n".join(map(to_markdown, tables)).rstrip()]
    parts += ["", "## System prompts", *markdown_texts(content.texts)] if content.texts else []
    if content.config:
        fingerprints = content.config.get("fingerprints", {})
        parts += ["", "## Configuration", ""]
        parts += [f"- {escape_markdown(name)}: {escape_markdown(value)}" for name, value in fingerprints.items()]
        # Indented rather than fenced: no line of the configuration can end the block.
        parts += ["", *("    " + line for line in _config_text(content).splitlines())]
    return "\n".join(parts) + "\n"


def log_report(run: Path, content: ReportContent, say: Callable[[str], None]) -> None:
    """Log a report's tables, charts, summary figures and configuration as one wandb run; files go to RUN/wandb. Without a key
    it is offline (`wandb sync` sends it later); logging a run folder again goes on in the same wandb run. Raises `UserError`
    when wandb is not installed."""
    need_modules("wandb", purpose="logging to wandb")
    offline_without_key(say)
    import wandb
    from plotly.graph_objects import Figure

    session = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "esc-eval"),
        name=content.title,
        id=digest([str(run.absolute()), dict(content.config)], 12),
        resume="allow",
        dir=str(run),
        config={**content.config, "mode": content.mode, "framework": content.framework},
        notes="\n".join([*content.findings, *content.cautions]),
        # wandb's own metadata holds the command line, in which a URL may carry credentials.
        settings=wandb.Settings(silent=True, x_disable_meta=True),
    )
    try:
        logged: dict[str, Any] = {}
        for table in content.tables:
            columns, *rows = ([clean(cell) if isinstance(cell, str) else cell for cell in row] for row in spread(table))
            logged[f"tables/{table.key}"] = wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        for chart in content.charts:
            title = {"text": f"{chart.title}<br><sub>{chart.caption}</sub>"}
            logged[f"charts/{chart.key}"] = wandb.Plotly(Figure(coloured(chart.figure)).update_layout(title=title))
        session.log(logged)
        for cell in content.tally.scores:
            session.summary[f"score/{cell.language}/{cell.scorer.name}/{cell.supporter}/{cell.dimension}"] = cell.estimate.mean
    finally:
        session.finish()
    say(f"wandb: {session.dir}")
