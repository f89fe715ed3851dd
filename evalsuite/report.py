"""The report of a run: report.html (one self-contained file), report.json (the same as data) and report.md."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy as np
import orjson
import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from data_prep.records import Dialogue, Judgement, RoleCard
from data_prep.rubrics import Rubric
from data_prep.tables import Estimate, Table, clean, escape_markdown, fmt, is_numeric, to_markdown
from evalsuite.summary import (
    AGREEMENT,
    AVERAGE,
    SCORES,
    TERMINATIONS,
    Scorer,
    checked,
    dimension_label,
    distributions,
    languages_of,
    scorer_of,
    scores,
    supporter_of,
    terminations,
)
from serve.files import write_json, write_text

PLUMBING = "plumbing: scores from the embedded 135M model say nothing about quality"
SYNTHETIC_GOLD = "synthetic gold, scores hold by construction"
TEMPLATES = Path(__file__).parent / "templates"
LANGUAGES = {"en": "English", "zh": "Chinese"}

# Transcripts larger than this (bytes of JSON) are stored compressed, so that the 8,500 dialogues of a full ESC-Eval run stay
# well below 40 MB; smaller reports keep them as plain text that other tools can read.
PACK_ABOVE = 8_000_000
CHUNK = 100  # dialogues that are unpacked together when one of them is opened

HATCHES = ("", "/", ".", "\\", "x", "-", "+")  # besides colour, so that bars can be told apart in grey

Agreement = Mapping[str, Mapping[str, Mapping[str, float | int | None]]]


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """All that a report shows.

    `tables` come in display order, grouped by their `section` (use `evalsuite.summary.SCORES`, `AGREEMENT`, `TERMINATIONS` and
    `COSTS`, which also receive the charts, or any other name). `agreement` maps language → dimension or "average" → figures
    as fractions of 1: acc, acc_soft, majority_acc, majority_acc_soft, acc_low, acc_high, n, parse_rate and more. `config` is
    the resolved configuration (JSON values only); a `fingerprints` entry in it is shown as a table. `timing` is in seconds and
    the only place for clock time. `generated` is the report's date as text.
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


@dataclass(frozen=True)
class Chart:
    """What one chart shows: `data` names its kind (dots or bars), rows and figures for charts.js.

    It stands below the table with the key `after`, or at the end of its section where there is none.
    """

    key: str
    title: str
    caption: str
    after: str
    data: dict[str, Any]


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
    """Write report.html, report.json and report.md into the run folder; returns their paths by kind (html, json, md).

    Raises `UserError` for judgements that do not fit the rubric or name no dialogue of the run.
    """
    paths = {kind: run / f"report.{kind}" for kind in ("html", "json", "md")}
    sections = _sections(content)
    write_text(paths["html"], _html(content, sections))
    write_json(paths["json"], _data(content))
    write_text(paths["md"], _markdown(content, sections))
    return paths


def _sections(content: ReportContent) -> list[Section]:
    charts = {
        SCORES: [*_score_charts(content), *_distribution_charts(content)],
        AGREEMENT: list(_agreement_charts(content)),
        TERMINATIONS: list(_termination_charts(content)),
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
            charts.get(name, []),
            label if name == AGREEMENT else "",
        )
        for name in names
    ]


def _facts(content: ReportContent) -> list[tuple[str, str]]:
    """What was run, on what: the lines at the top of the report."""
    own = list(checked(content.judgements, content.rubric))
    used = {d.card_id for d in content.dialogues if d.card_id} | {d.profile_id for d in content.dialogues if d.profile_id}
    read = sum(judgement.value is not None for judgement in own)
    facts = [
        ("Framework", f"{content.framework}, {content.mode} mode"),
        ("Rubric", f"{content.rubric.name} ({content.rubric.source})"),
        ("Supporters", ", ".join(sorted({supporter_of(d) for d in content.dialogues}))),
        ("Seekers played by", ", ".join(sorted({d.simulator for d in content.dialogues if d.simulator}))),
        ("Judged by", ", ".join(sorted({scorer_of(j).name for j in own}))),
        ("Languages", ", ".join(LANGUAGES[language] for language in languages_of(content.dialogues))),
        ("Dialogues", f"{len(content.dialogues):,}" + (f" on {len(used):,} role cards or profiles" if used else "")),
        ("Verdicts", f"{len(own):,}, {read / len(own):.1%} readable" if own else ""),
        ("Generated", content.generated),
    ]
    return [(name, text) for name, text in facts if text]


def _data(content: ReportContent) -> dict[str, Any]:
    """report.json: records and figures in full precision; clock time under `timing` alone."""
    return {
        "title": content.title,
        "framework": content.framework,
        "mode": content.mode,
        "generated": content.generated,
        "plumbing": PLUMBING if content.plumbing else None,
        "synthetic_gold": SYNTHETIC_GOLD if content.synthetic_gold else None,
        "rubric": orjson.loads(content.rubric.model_dump_json()),
        "config": content.config,
        "tables": [asdict(table) for table in content.tables],
        "scores": [
            asdict(score) | {"scorer": score.scorer._asdict() | {"condition": dict(score.scorer.condition)}}
            for score in scores(content.dialogues, content.judgements, content.rubric)
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


def _markdown(content: ReportContent, sections: list[Section]) -> str:
    parts = [f"# {escape_markdown(content.title)}", ""]
    if content.plumbing:
        parts += [f"> **{PLUMBING}**", ""]
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


def _html(content: ReportContent, sections: list[Section]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    # orjson writes Chinese as it is (json.dumps would write six bytes a character); tojson then escapes <, >, & and '.
    environment.policies["json.dumps_function"] = lambda value, **_: orjson.dumps(value).decode()
    environment.tests["chart"] = lambda block: isinstance(block, Chart)
    environment.filters |= {"fmt": fmt, "is_estimate": lambda cell: isinstance(cell, Estimate), "is_numeric": is_numeric}
    scripts = {
        "browse": (TEMPLATES / "browse.js").read_text(encoding="utf-8"),
        "plotly": get_plotlyjs().replace("\r\n", "\n"),  # as an HTML parser hands it on: the hash is of what it hands on
        "charts": (TEMPLATES / "charts.js").read_text(encoding="utf-8"),
    }
    # Only scripts whose hash the policy names run: text that got into the page as an element would still do nothing.
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts.values()]
    return environment.get_template("report.html.j2").render(
        content=content,
        facts=_facts(content),
        plumbing=PLUMBING if content.plumbing else "",
        sections=sections,
        charts={chart.key: chart.data for section in sections for chart in section.charts},
        transcripts=_transcripts(content),
        config=_config_text(content),
        fingerprints=_fingerprints(content),
        csp_hashes=hashes,
        scripts={name: Markup(text) for name, text in scripts.items()},
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
    )


def _transcripts(content: ReportContent) -> dict[str, Any]:
    """What the transcript browser shows: an index (one row a dialogue) and the bodies, plain or as gzip in base64."""
    rubric = content.rubric
    dimensions = {name: index for index, name in enumerate(rubric.dimensions)}
    own = list(checked(content.judgements, rubric))
    scorers = {scorer: index for index, scorer in enumerate(sorted({scorer_of(judgement) for judgement in own}))}
    verdicts: dict[str, list[Any]] = {}
    for j in own:
        spread = j.distribution and [round(j.distribution.get(str(score), 0.0), 3) for score in rubric.scale.scores]
        expected = None if j.expected is None else round(j.expected, 3)
        raw = clean(j.raw) if j.value is None else None
        place = [scorers[scorer_of(j)], dimensions[j.dimension]]
        verdicts.setdefault(j.dialogue_id, []).append([*place, j.value, expected, spread, raw, j.turn, j.repeat])
    rows, bodies = [], []
    for dialogue in content.dialogues:
        marks = sorted(verdicts.get(dialogue.id, []), key=lambda mark: (mark[0], mark[1], mark[6] or 0, mark[7]))
        opening = next((turn.text for turn in dialogue.turns if turn.role == "seeker"), dialogue.turns[0].text)
        names = [dialogue.id, dialogue.language, supporter_of(dialogue), dialogue.card_id or dialogue.profile_id or ""]
        ends = [dialogue.termination or "", dialogue.ended_by or "", dialogue.exchanges, dialogue.simulator or ""]
        rows.append([clean(n) for n in names] + ends + [clean(opening[:80]), sum(mark[2] is None for mark in marks)])
        bodies.append([[[int(turn.role == "supporter"), clean(turn.text)] for turn in dialogue.turns], marks])
    chunks = [bodies[start : start + CHUNK] for start in range(0, len(bodies), CHUNK)]
    written = [orjson.dumps(chunk) for chunk in chunks]
    packed = sum(map(len, written)) > PACK_ABOVE
    card_fields = {"age", "gender", "occupation", "problem"}
    return {
        "rows": rows,
        "packed": packed,
        "size": CHUNK,
        "chunks": [base64.b64encode(gzip.compress(text, mtime=0)).decode() for text in written] if packed else chunks,
        "cards": {clean(key): {f: clean(getattr(card, f)) for f in card_fields} for key, card in content.cards.items()},
        "scorers": [clean(scorer.name) for scorer in scorers],
        "scores": list(rubric.scale.scores),
        "dimensions": [
            {
                "label": d.label,
                "levels": {code: [texts.get(s, "") for s in rubric.scale.scores] for code, texts in d.levels.items()},
            }
            for d in rubric.dimensions.values()
        ],
    }


# --- charts: what they show; charts.js draws them in the page's fonts and colours ------------------------------------------


def _score_charts(content: ReportContent) -> Iterator[Chart]:
    """One panel a dimension, one line a supporter (and scorer), a dot with its interval: readable in grey and at 20 models."""
    cells = scores(content.dialogues, content.judgements, content.rubric)
    several = len({cell.scorer for cell in cells}) > 1
    for language in languages_of(content.dialogues):
        own = [cell for cell in cells if cell.language == language]
        lines = {name: place for place, name in enumerate(dict.fromkeys((cell.supporter, cell.scorer) for cell in own))}
        panels = []
        for dimension in [*content.rubric.dimensions, AVERAGE] if own else []:
            points = [
                [lines[c.supporter, c.scorer], c.estimate.mean, c.estimate.low, c.estimate.high, fmt(c.estimate)]
                for c in own
                if c.dimension == dimension and c.estimate.mean is not None
            ]
            title = "Average" if dimension == AVERAGE else dimension_label(content.rubric, dimension)
            panels.append({"title": title, "marks": [{"name": "", "baseline": dimension == AVERAGE, "points": points}]})
        if panels:
            rows = [clean(f"{supporter} · {scorer.name}" if several else supporter) for supporter, scorer in lines]
            yield Chart(
                f"scores-{language}",
                f"Scores by dimension, {LANGUAGES[language]}",
                "Means on 0–100 with 95 % bootstrap intervals, best average first. Open circles rest on a single dialogue.",
                f"leaderboard-{language}",
                {"kind": "dots", "columns": 4, "rows": rows, "panels": panels},
            )


def _agreement_charts(content: ReportContent) -> Iterator[Chart]:
    """ACC and ACC_soft beside what always answering the most frequent gold score would reach."""
    suffix = "" if content.mode == "paper" else "_read"
    for language, figures in (content.agreement or {}).items():
        known = content.rubric.dimensions
        panels = []
        for metric, title in (("acc", "ACC, %"), ("acc_soft", "ACC_soft (within one), %")):
            marks = []
            for key, name in ((metric + suffix, "judge"), (f"majority_{metric}", "majority class")):
                found = [
                    (
                        place,
                        [None if (v := row.get(field)) is None else 100 * v for field in (key, f"{key}_low", f"{key}_high")],
                    )
                    for place, row in enumerate(figures.values())
                ]
                points = [[place, *bounds, f"{name} {fmt(bounds[0])}"] for place, bounds in found if bounds[0] is not None]
                marks.append({"name": name, "baseline": name != "judge", "points": points})
            panels.append({"title": title, "marks": marks})
        unreadable = "are left out" if suffix else "count as wrong"
        yield Chart(
            f"agreement-{language}",
            f"Agreement with gold, {LANGUAGES.get(language, language)}",
            (f"{SYNTHETIC_GOLD.capitalize()}. " if content.synthetic_gold else "")
            + "Dots: the judge, with 95 % intervals where given. Bars: always answering the most frequent gold score. "
            + f"Unreadable verdicts {unreadable}.",
            f"agreement_{language}",
            {
                "kind": "dots",
                "columns": 2,
                "rows": [dimension_label(content.rubric, name) if name in known else name.capitalize() for name in figures],
                "panels": panels,
            },
        )


def _distribution_charts(content: ReportContent) -> Iterator[Chart]:
    """Score counts a dimension as shares of all verdicts; a segment names its score, unreadable ones are hatched."""
    groups: dict[tuple[str, Scorer], list[Judgement]] = {}
    for judgement in checked(content.judgements, content.rubric):
        groups.setdefault((judgement.language, scorer_of(judgement)), []).append(judgement)
    several = len({scorer for _, scorer in groups}) > 1
    marks = content.rubric.scale.scores
    for number, (language, scorer) in enumerate(sorted(groups)):
        table = distributions(groups[language, scorer], content.rubric)
        counts = np.array([row[2:-1] for row in table.rows], dtype=float)  # dimensions × (scores, unreadable)
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        series = [
            {"name": str(mark), "tone": f"step-{round(4 * place / (len(marks) - 1))}", "hatch": "", "values": column.tolist()}
            | {"texts": [str(mark) if share >= 5 else "" for share in column]}
            for place, (mark, column) in enumerate(zip(marks, shares.T[:-1], strict=True))
        ]
        if shares[:, -1].any():
            unreadable = {"name": "unreadable", "tone": "reason-0", "hatch": "/", "values": shares[:, -1].tolist()}
            series.append(unreadable | {"texts": [""] * len(shares)})
        yield Chart(
            f"distribution-{number}",
            f"Scores given, {LANGUAGES[language]}" + (f", {clean(scorer.name)}" if several else ""),
            "Each bar is all verdicts on a dimension; the numbers inside are the scores.",
            "distributions",
            {"kind": "bars", "axis": "share of verdicts, %", "rows": [str(row[1]) for row in table.rows], "series": series},
        )


def _termination_charts(content: ReportContent) -> Iterator[Chart]:
    """How the dialogues of each supporter ended, as stacked counts."""
    if all(dialogue.termination is None for dialogue in content.dialogues):
        return
    table = terminations(content.dialogues)
    reasons = table.columns[3:-2]
    series = []
    for place, reason in enumerate(reasons):
        counts = [row[3 + place] for row in table.rows]
        style = {"tone": f"reason-{place % 5}", "hatch": HATCHES[place % len(HATCHES)]}
        series.append({"name": reason, "values": counts, "texts": [str(count or "") for count in counts]} | style)
    rows = [clean(f"{row[1]} · {row[0]}") for row in table.rows]
    yield Chart(
        "terminations",
        "Why dialogues ended",
        "In brackets: whose reply ended the dialogue.",
        "terminations",
        {"kind": "bars", "axis": "dialogues", "rows": rows, "series": series},
    )
