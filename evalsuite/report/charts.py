"""The report's charts, each below the table with the same figures: plotly figures, made once, which templates/charts.js draws
in the page, and which wandb takes as well.

How they look is in templates/figures.yaml. A colour is the name of one of the page's own, `<accent>`: the page puts in that of
its theme, `coloured` that of the light one. Labels are escaped, so none can be taken for a colour.
"""

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from core.errors import clean
from core.grouping import group_by
from core.languages import name_of
from core.rubrics import Rubric
from core.settings import load_yaml
from core.tables import DASH, Estimate, Table, fmt
from evalsuite.runs.contents import JudgementSet
from evalsuite.statistics.agreement import figure_cell
from evalsuite.statistics.judges import POOLED, Bin, Confusion
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.rounds import Curve, Trend, curves_of, log_ranks, survival_tables, trend_tables, trends_of
from evalsuite.statistics.summary import AVERAGE, dimension_label

Figure = dict[str, Any]  # plotly's JSON: data and layout, or a part of them
TEMPLATES = Path(__file__).parent / "templates"
HATCHES = ("", "/", ".", "\\", "x", "-", "+")  # besides colour, so that bars differ in grey
_DASHES = ("solid", "solid", "dash", "dash", "dot", "dot", "dashdot", "dashdot")


def trace(style: str, **data: Any) -> Figure:
    """A plotly trace with a style of figures.yaml."""
    return _merged(_styles()["traces"][style], data)


def dots(style: str, rows: Sequence[str], estimates: Sequence[tuple[int, Estimate]], name: str) -> Figure:
    """A mark with its interval for every (row, estimate)."""
    return trace(
        style,
        name=name,
        legendgroup=name,
        x=[estimate.mean for _, estimate in estimates],
        y=[row for row, _ in estimates],
        error_x=error(estimate for _, estimate in estimates),
        text=[label(f"{rows[row]}: {name} {fmt(estimate)}") for row, estimate in estimates],
    )


def segment(name: str, tone: str, hatch: str, values: Sequence[float], texts: Sequence[str]) -> Figure:
    """A segment of stacked bars, with its value and text in every row."""
    return trace(
        "segment",
        name=label(name),
        x=values,
        y=list(range(len(values))),
        text=texts,
        insidetextfont={"color": f"<on-{tone}>" if tone.startswith("step") else "<ink>"},
        marker={"color": f"<{tone}>", "pattern": {"shape": hatch}},
    )


def curve(name: str, place: int, points: Sequence[tuple[int, Estimate, str]], step: bool, band: bool) -> list[Figure]:
    """A line through (round, estimate, text), the `place`-th of its panel, stepped or not, in front of its band."""
    colour, name = "<warm>" if place % 2 else "<accent>", label(name)
    line = trace(
        "step" if step else "curve",
        name=name,
        legendgroup=name,
        x=[at for at, _, _ in points],
        y=[estimate.mean for _, estimate, _ in points],
        text=[label(text) for _, _, text in points],
        line={"color": colour, "dash": _DASHES[place % len(_DASHES)]},
        marker={"color": colour, "symbol": "square" if place % 2 else "circle"},
    )
    bounded = [(at, estimate.low, estimate.high) for at, estimate, _ in points if estimate.low is not None]
    if not band or not bounded:
        return [line]
    if step:  # the band turns the corners that the line turns
        bounded = [bounded[0], *(p for old, new in pairwise(bounded) for p in ((new[0], *old[1:]), new))]
    at = [point[0] for point in bounded]
    around = {"x": [*at, *at[::-1]], "y": [*(low for _, low, _ in bounded), *(high for _, _, high in bounded[::-1])]}
    return [trace("band", fillcolor=colour, legendgroup=name, **around), line]


def error(estimates: Iterable[Estimate]) -> Figure:
    """Error bars, empty for estimates without an interval."""
    bounds = [(e.mean or 0, e.mean if e.low is None else e.low, e.mean if e.high is None else e.high) for e in estimates]
    return {"array": [high - mean for mean, _, high in bounds], "arrayminus": [mean - low for mean, low, _ in bounds]}  # type: ignore[operator]


def named_rows(rows: Sequence[str], ends: tuple[float, float]) -> Figure:
    """A y axis of row labels from top to bottom."""
    labels = [label(row) for row in rows]  # the page breaks long ones into lines
    return {"tickvals": list(range(len(rows))), "ticktext": labels, "range": [len(rows) - ends[0], ends[1]]}


def panels(
    kind: str, titles: Sequence[str], traces: Sequence[Sequence[Figure]], columns: int, inside: int = 0, **layout: Any
) -> Figure:
    """Panels `inside` px high in rows of at most `columns`, with a layout of figures.yaml and the first one's legend."""
    layout = _merged(_styles()["layouts"][kind], layout)
    axes, meta, margin = (layout.pop("xaxis"), layout.pop("yaxis")), layout["meta"], layout["margin"]
    meta["inside"] = inside or meta["inside"]
    columns = min(columns, len(titles))
    lines = -(-len(titles) // columns)
    layout["grid"] = {"rows": lines, "columns": columns, "pattern": "independent", "xgap": 0.14}
    layout["grid"]["ygap"] = meta["gap"] / (meta["inside"] + meta["gap"])
    layout["height"] = lines * (meta["inside"] + meta["gap"]) - meta["gap"] + margin["t"] + margin["b"]
    layout["annotations"], data = [], []
    for index, (title, of_panel) in enumerate(zip(titles, traces, strict=True)):
        x, y = (f"{axis}{index + 1 if index else ''}" for axis in "xy")
        data += [line | {"xaxis": x, "yaxis": y} | ({"showlegend": False} if index else {}) for line in of_panel]
        first = {} if index % columns == 0 or "ticktext" not in axes[1] else {"showticklabels": False}
        layout |= {x.replace("x", "xaxis"): axes[0], y.replace("y", "yaxis"): axes[1] | first}
        place = {"xref": f"{x} domain", "yref": f"{y} domain", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}
        layout["annotations"].append({"text": f"<b>{label(title)}</b>", "showarrow": False} | place)
    return {"data": data, "layout": layout}


def label(text: str) -> str:
    """Text escaped for plotly, which interprets tags in labels."""
    return html.escape(text, quote=False)


def coloured(figure: Figure) -> Figure:
    """The figure in the colours of the light page."""
    light = (TEMPLATES / "report.css").read_text(encoding="utf-8").partition("@media")[0]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", light))
    text = re.sub(r'"<([a-z0-9-]+)>"', lambda name: f'"{colours[name[1]]}"', orjson.dumps(figure).decode())
    replaced: Figure = orjson.loads(text)
    return replaced


@cache
def _styles() -> dict[str, Any]:
    styles: dict[str, Any] = load_yaml(TEMPLATES / "figures.yaml", "styles of figures")
    return styles


def _merged(style: Figure, data: Figure) -> Figure:
    """Data merged with its style, at any depth."""
    both = {key: _merged(style[key], data[key]) for key in style.keys() & data.keys() if isinstance(data[key], dict)}
    return {key: dict(value) if isinstance(value, dict) else value for key, value in style.items()} | data | both


SYNTHETIC_GOLD = "Synthetic gold, scores hold by construction"

Agreement = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Chart:
    """A plotly figure with its title and caption, for below the table `after`."""

    key: str
    title: str
    caption: str
    after: str
    figure: Figure


def distribution_charts(table: Table, rubric: Rubric) -> Iterator[Chart]:
    """Score counts per dimension (`summary.distributions`) as shares of all verdicts; unreadable ones are hatched."""
    names, end = table.columns.index("dimension"), table.columns.index("verdicts")
    marks = [*rubric.counted.values()]
    reasons = table.columns[names + 1 + len(marks) : end]
    for number, (who, group) in enumerate(groupby(table.rows, key=lambda row: row[:names])):
        rows = list(group)
        counts = np.array([row[names + 1 : end] for row in rows], dtype=float)  # dimensions × (scores, missing ones)
        counts = np.nan_to_num(counts)  # scores that are not on a dimension's scale
        shares = (100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).T
        segments = []
        for place, (mark, column) in enumerate(zip(marks, shares, strict=False)):
            texts = [mark if share >= 5 else "" for share in column]
            segments.append(segment(mark, f"step-{round(4 * place / (len(marks) - 1))}", "", column.tolist(), texts))
        for place, (reason, column) in enumerate(zip(reasons, shares[len(marks) :], strict=True)):
            if column.any():
                hatch = HATCHES[1 + place % (len(HATCHES) - 1)]
                segments.append(segment(reason, f"reason-{place % 5}", hatch, column.tolist(), [""] * len(rows)))
        yield Chart(
            f"distribution-{number}",
            ", ".join(["Scores given", name_of(str(who[0])), *(clean(str(scorer)) for scorer in who[1:])]),
            "Each bar is all verdicts on a dimension; the numbers inside are the scores.",
            "distributions",
            _bar_panel([str(row[names]) for row in rows], segments, "share of verdicts, %"),
        )


def termination_charts(table: Table) -> Iterator[Chart]:
    """How each supporter's dialogues ended (`summary.terminations`), as stacked counts; no chart if nothing is recorded."""
    reasons = table.columns[3 : table.columns.index("ended by seeker")]
    if set(reasons) <= {"not recorded"}:
        return
    segments = []
    for place, reason in enumerate(reasons):
        counts = [int(str(row[3 + place])) for row in table.rows]
        texts = [str(count or "") for count in counts]
        segments.append(segment(reason, f"reason-{place % 5}", HATCHES[place % len(HATCHES)], counts, texts))
    yield Chart(
        "terminations",
        "Why dialogues ended",
        "In brackets: whose reply ended the dialogue.",
        "terminations",
        _bar_panel([clean(f"{row[1]} · {row[0]}") for row in table.rows], segments, "dialogues"),
    )


def agreement_charts(
    agreement: Agreement, rubric: Rubric, mode: str, synthetic: bool, judge: str = "", table: str = "agreement"
) -> Iterator[Chart]:
    """ACC and ACC_soft compared with always answering the most frequent gold score, below `table`; with several judges, the
    title names the `judge`."""
    suffix = "" if mode == "paper" else "_read"
    for language, figures in agreement.items():
        rows = [_label(rubric, name) for name in figures]
        marks = (("dot", "judge", "{}" + suffix), ("baseline", "majority class", "majority_{}"))
        traces = [
            [dots(style, rows, _shares(figures, key.format(metric)), name) for style, name, key in marks]
            for metric in ("acc", "acc_soft")
        ]
        unreadable = "are left out" if suffix else "count as wrong"
        yield Chart(
            f"{table}-{language}",
            f"Agreement with gold, {name_of(language)}" + (f", {judge}" if judge else ""),
            _synthetic(synthetic)
            + "Dots: the judge, with 95 % intervals over clusters. Bars: always answering the most frequent gold score. "
            + f"Unreadable verdicts {unreadable}.",
            f"{table}_{language}",
            panels(
                "dots",
                ["ACC, %", "ACC_soft (within one), %"],
                traces,
                2,
                23 * len(rows) + 16,
                showlegend=True,
                yaxis=named_rows(rows, (0.3, -0.7)),
                margin={"l": 7 * min(30, max(map(len, rows))) + 16},
                meta={"least": 200},
            ),
        )


def _shares(figures: Mapping[str, Mapping[str, Any]], key: str) -> list[tuple[int, Estimate]]:
    """The figures of this name, in per cent, of the rows that have it."""
    cells = (figure_cell(row, key, int(row.get("n") or 0), 100) for row in figures.values())
    return [(place, cell) for place, cell in enumerate(cells) if cell.mean is not None]


def confusion_charts(matrices: Mapping[str, Mapping[str, Confusion]], rubric: Rubric, synthetic: bool) -> Iterator[Chart]:
    """A judge's verdicts by gold score, per dimension."""
    for language, of_language in matrices.items():
        traces = []
        for matrix in of_language.values():
            counts = np.array([[*row, unread] for row, unread in zip(matrix.counts, matrix.unread, strict=True)])
            shares = np.round(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), 3).tolist()
            text = [[str(count or "") for count in row] for row in counts.tolist()]
            axes = {"x": [*(f"{score:g}" for score in matrix.scores), DASH], "y": [f"{score:g}" for score in matrix.scores]}
            traces.append([trace("cell", **axes, z=shares, text=text, customdata=counts.tolist())])
        yield Chart(
            f"confusion-{language}",
            f"Verdicts by gold score, {name_of(language)}",
            _synthetic(synthetic) + "Rows: the gold score. Columns: the judge's verdict, – is unreadable. Figures are counts, "
            "tones shares of a row; what agrees lies on the diagonal.",
            f"confusion_{language}",
            panels("heat", [_label(rubric, key) for key in of_language], traces, 4, 26 * len(traces[0][0]["y"])),
        )


def calibration_charts(bins: Sequence[Bin], synthetic: bool) -> Iterator[Chart]:
    """The calibration of a judge's probabilities."""
    titles, traces = [], []
    for language, group in groupby((bin_ for bin_ in bins if bin_.dimension == POOLED), key=lambda bin_: bin_.language):
        pooled = list(group)
        rates = [Estimate(b.hit_rate, b.hit_low, b.hit_high, b.n).times(100) for b in pooled]
        x, y = [100 * b.confidence for b in pooled], [rate.mean for rate in rates]
        traces.append(
            [trace("diagonal"), trace("hit_rate", x=x, y=y, error_y=error(rates), text=[f"n = {b.n}" for b in pooled])]
        )
        titles.append(f"{name_of(language)}, n = {sum(b.n for b in pooled):,}")
    if titles:
        yield Chart(
            "calibration",
            "Calibration",
            _synthetic(synthetic) + "How often the judge's most probable score is the gold score, by the probability that the "
            "judge gave it (tenths, all dimensions; 95 % intervals over clusters). On the dashed line probabilities can be "
            "taken at their word; below it the judge is too sure of itself.",
            "calibration",
            panels("hit_rates", titles, traces, 2),
        )


def _bar_panel(rows: Sequence[str], segments: Sequence[Figure], axis: str) -> Figure:
    title = {"title": {"text": axis}}
    return panels("bars", [""], [segments], 1, 30 * len(rows), xaxis=title, yaxis=named_rows(rows, (0.5, -0.5)))


def _label(rubric: Rubric, name: str) -> str:
    """The label of a dimension, or of a figure over several."""
    return dimension_label(rubric, name) if name in rubric.dimensions else name.capitalize()


def _synthetic(synthetic: bool) -> str:
    return f"{SYNTHETIC_GOLD}. " if synthetic else ""


_BANDS = 4  # lines in a panel up to which their bands can be distinguished


def along(judges: Sequence[JudgementSet], tally: Tally, may_leave: bool) -> tuple[list[Table], list[Chart]]:
    """Survival if seekers may leave, and scores by round if single turns were judged."""
    may_leave = may_leave or any(dialogue.termination == "seeker_ended" for dialogue in tally.dialogues)
    curves = curves_of(tally.dialogues) if may_leave else []
    tests = log_ranks(tally.dialogues) if curves else []
    drawn = {dialogue.id for dialogue in tally.dialogues}
    of_turns = [
        verdict for judge in judges for verdict in judge.records("turn_judgements.jsonl") if verdict.dialogue_id in drawn
    ]
    by_round = trends_of(tally.dialogues, of_turns, tally.rubric)
    tables = [*survival_tables(curves, tests), *trend_tables(by_round, tally.rubric)]
    return tables, [*survival_charts(curves), *trend_charts(by_round, tally.rubric)]


def survival_charts(curves: Sequence[Curve]) -> Iterator[Chart]:
    """One panel per language: the share of dialogues that go on after each round, a step line per supporter."""
    for language, of_language in group_by(curves, lambda curve: curve.language).items():
        bands, traces = len(of_language) <= _BANDS, []
        for place, line in enumerate(of_language):
            points = [(0, Estimate(100.0, None, None, line.dialogues), f"{line.dialogues} dialogues")]
            for at, step in enumerate(line.steps, start=1):
                points.append((at, step.share, f"{fmt(step.share.mean)} % go on; {step.left} of {step.share.n} left in it"))
            traces += curve(clean(f"{line.supporter}, n = {line.dialogues}"), place, points, step=True, band=bands)
        yield Chart(
            f"survival-{language}",
            f"Dialogues that go on, {name_of(language)}",
            "Share of dialogues in which the seeker has not left after each round (Kaplan-Meier)"
            + (", with pointwise 95 % bands." if bands else "; the table has the intervals."),
            f"survival-{language}",
            _panels([name_of(language)], [traces], 300, "dialogues that go on, %", len(of_language)),
        )


def trend_charts(trends: Sequence[Trend], rubric: Rubric) -> Iterator[Chart]:
    """One chart per language and scorer: a panel per dimension, a line per supporter, bars for the dialogues that came so
    far."""
    numbers = Counter[str]()
    for (language, scorer), rivals in group_by(trends, lambda trend: (trend.language, trend.scorer)).items():
        several = len({trend.scorer for trend in trends if trend.language == language}) > 1
        reached = Counter[int]()
        for trend in rivals:
            reached.update(dict(enumerate(trend.reached, start=1)))
        rounds, most = sorted(reached), max(reached.values())
        texts = [f"{reached[at]} dialogues" for at in rounds]
        bars = trace("count", x=rounds, y=[100 * reached[at] / most for at in rounds], text=texts)
        names, traces = [*rubric.dimensions, AVERAGE], []
        for name in names:
            lines = [bars]
            for place, trend in enumerate(rivals):
                estimates = enumerate(trend.means[name], start=1)
                points = [(at, estimate, fmt(estimate)) for at, estimate in estimates if estimate.mean is not None]
                lines += curve(clean(trend.supporter), place, points, step=False, band=len(rivals) <= _BANDS)
            traces.append(lines)
        titles = [AVERAGE.capitalize() if name == AVERAGE else dimension_label(rubric, name) for name in names]
        yield Chart(
            f"trends-{language}-{numbers[language]}",
            f"Scores by round, {name_of(language)}" + (f", {clean(scorer.name)}" if several else ""),
            "Means on 0–100 of the dialogues that came so far"
            + (" with 95 % intervals" if len(rivals) <= _BANDS else "")
            + ". Grey: how many that are, the highest bar being all of them.",
            f"slopes-{language}",
            _panels(titles, traces, 170, "score", len(rivals)),
        )
        numbers[language] += 1


def _panels(titles: Sequence[str], traces: Sequence[list[Figure]], inside: int, axis: str, lines: int) -> Figure:
    return panels("curves", titles, traces, 4, inside, showlegend=lines > 1, yaxis={"title": {"text": axis}})
