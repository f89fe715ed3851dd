"""Charts as plotly figures, each made once: templates/charts.js draws them in the page, wandb takes the same.

How they look is in templates/figures.yaml. A colour is the name of one of the page's own, `<accent>`: the page puts in that of
its theme, `coloured` that of the light one. Labels are escaped, so none can be taken for a colour.
"""

import html
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from core.tables import Estimate, fmt
from core.yaml_files import load_yaml

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
