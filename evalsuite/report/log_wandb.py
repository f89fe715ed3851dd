"""A report's tables and charts in Weights & Biases: optional, offline without a key (`wandb sync` sends it later)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.files import digest
from core.tables import Cell, Estimate, Table, clean
from core.wandb_offline import need_wandb, offline_without_key
from evalsuite.report.charts import Chart
from evalsuite.report.report import ReportContent

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def log_report(run: Path, content: ReportContent, say: Callable[[str], None]) -> None:
    """Log a report's tables, charts, summary figures and configuration as one wandb run; files go to RUN/wandb.

    Logging a run folder again goes on in the same wandb run. Raises `UserError` when wandb is not installed.
    """
    need_wandb()
    offline_without_key(say)
    import wandb

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
            columns, rows = plain(table)
            logged[f"tables/{table.key}"] = wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        for section in content.sections:
            for chart in section.charts:
                logged[f"charts/{chart.key}"] = wandb.Plotly(figure(chart))
        session.log(logged)
        for cell in content.tally.scores:
            session.summary[f"score/{cell.language}/{cell.scorer.name}/{cell.supporter}/{cell.dimension}"] = cell.estimate.mean
    finally:
        session.finish()
    say(f"wandb: {session.dir}")


def plain(table: Table) -> tuple[list[str], list[list[str | int | float | None]]]:
    """Columns and rows in full precision: an estimate becomes four columns, as in the CSV file."""
    wide = [any(isinstance(row[index], Estimate) for row in table.rows) for index in range(len(table.columns))]
    columns = [
        clean(f"{name}{part}")
        for name, spread in zip(table.columns, wide, strict=True)
        for part in (("", " low", " high", " n") if spread else ("",))
    ]
    return columns, [[cell for c, spread in zip(row, wide, strict=True) for cell in _parts(c, spread)] for row in table.rows]


def _parts(cell: Cell, spread: bool) -> Sequence[str | int | float | None]:
    if isinstance(cell, Estimate):
        return cell.mean, cell.low, cell.high, cell.n
    own = clean(cell) if isinstance(cell, str) else cell
    return (own, None, None, None) if spread else (own,)


def figure(chart: Chart) -> Figure:
    """A chart of the report as a plotly figure in plotly's own colours."""
    from plotly.subplots import make_subplots

    spec = chart.data
    panels = spec.get("panels", [{"title": ""}])
    columns = min(spec.get("columns", 1), len(panels))
    lines = -(-len(panels) // columns)
    made = make_subplots(rows=lines, cols=columns, subplot_titles=[panel["title"] for panel in panels])
    for index, panel in enumerate(panels):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        for trace in TRACES[spec["kind"]](spec, panel):
            made.add_trace(trace, **place)
        if spec["kind"] in ("bars", "dots"):
            made.update_yaxes(autorange="reversed", **place)
        if spec["kind"] == "heat":
            made.update_yaxes(autorange="reversed", type="category", title="gold", **place)
            made.update_xaxes(type="category", title="verdict", **place)
        if spec["kind"] == "curves":
            made.update_yaxes(title=spec["axis"], **place)
            made.update_xaxes(title="round", **place)
    title = {"text": f"{chart.title}<br><sub>{chart.caption}</sub>"}
    legend = spec["kind"] in ("bars", "curves")
    return made.update_layout(title=title, barmode="stack", showlegend=legend, height=220 + 240 * lines)


def _dots(spec: dict[str, Any], panel: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": mark["name"],
            "x": [point[1] for point in mark["points"]],
            "y": [spec["rows"][point[0]] for point in mark["points"]],
            "error_x": _error([point[1:4] for point in mark["points"]]),
        }
        for mark in panel["marks"]
    ]


def _error(bounds: list[list[float | None]]) -> dict[str, Any]:
    spread = [(mean, mean if low is None else low, mean if high is None else high) for mean, low, high in bounds]
    above = [high - mean for mean, _, high in spread]  # type: ignore[operator]
    below = [mean - low for mean, low, _ in spread]  # type: ignore[operator]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}


def _bars(spec: dict[str, Any], panel: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "bar", "orientation": "h", "name": one["name"], "x": one["values"], "y": spec["rows"], "text": one["texts"]}
        for one in spec["series"]
    ]


def _heat(spec: dict[str, Any], panel: dict[str, Any]) -> list[dict[str, Any]]:
    cells = {"x": panel["x"], "y": panel["y"], "z": panel["shares"], "text": panel["counts"], "texttemplate": "%{text}"}
    return [{"type": "heatmap", "zmin": 0, "zmax": 1, "showscale": False, **cells}]


def _line(spec: dict[str, Any], panel: dict[str, Any]) -> list[dict[str, Any]]:
    points = panel["points"]
    figures = {"x": [p[0] for p in points], "y": [p[1] for p in points], "error_y": _error([p[1:4] for p in points])}
    return [
        {"type": "scatter", "mode": "lines+markers", **figures},
        {"type": "scatter", "mode": "lines", "x": [0, 100], "y": [0, 100], "line": {"dash": "dash"}},
    ]


def _curves(spec: dict[str, Any], panel: dict[str, Any]) -> list[dict[str, Any]]:
    first = panel is spec["panels"][0]  # the others share its legend
    most = max((count for _, count in panel["bars"]), default=1)
    bars = {"type": "bar", "name": "dialogues", "marker": {"color": "lightgrey"}, "showlegend": False, "textposition": "none"}
    bars |= {"x": [at for at, _ in panel["bars"]], "y": [100 * count / most for _, count in panel["bars"]]}
    bars |= {"text": [f"{count} dialogues" for _, count in panel["bars"]]}
    lines = [
        {
            "type": "scatter",
            "mode": "lines" if spec["step"] else "lines+markers",
            "line": {"shape": "hv" if spec["step"] else "linear"},
            "name": one["name"],
            "legendgroup": one["name"],
            "showlegend": first,
            "x": [point[0] for point in one["points"]],
            "y": [point[1] for point in one["points"]],
            "text": [point[4] for point in one["points"]],
        }
        | ({"error_y": _error([point[1:4] for point in one["points"]])} if spec["bands"] else {})
        for one in panel["series"]
    ]
    return [bars, *lines] if panel["bars"] else lines


TRACES = {"dots": _dots, "bars": _bars, "heat": _heat, "line": _line, "curves": _curves}
