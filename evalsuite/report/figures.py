"""The report's charts as plotly figures, each made once: templates/charts.js draws them in the page, wandb takes the same.

How they look is in templates/figures.yaml. A colour is the name of one of the page's own, `<accent>`: the page puts in that of
its theme, `coloured` that of the light one. Labels are escaped, so none can be taken for a colour.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import yaml

Figure = dict[str, Any]  # plotly's JSON: data and layout
Panels = Sequence[Mapping[str, Any]]
TEMPLATES = Path(__file__).parent / "templates"
HATCHES = ("", "/", ".", "\\", "x", "-", "+")  # besides colour, so that bars can be told apart in grey
_DASHES = ("solid", "solid", "dash", "dash", "dot", "dot", "dashdot", "dashdot")


def dots(rows: Sequence[str], panels: Panels, columns: int) -> Figure:
    """A line a row, a dot a point with its interval. A panel has a title and `marks`, each with a style, a name and points
    [row, mean, low, high, text], all figures 0–100."""
    traces: list[list[Figure]] = []
    for index, panel in enumerate(panels):
        traces.append([])
        for mark in panel["marks"]:
            named, points = bool(mark["name"]), mark["points"]
            symbols = ["circle" if named or point[2] is not None else "circle-open" for point in points]
            data = {
                "name": mark["name"],
                "legendgroup": mark["name"],
                "showlegend": named and index == 0,
                "x": [point[1] for point in points],
                "y": [point[0] for point in points],
                "error_x": _error(points),
                "text": [label(f"{rows[point[0]]}: {point[4]}") for point in points],
            }
            data |= {} if mark["style"] == "baseline" else {"marker": {"symbol": symbols}}
            traces[-1].append(_trace(mark["style"], data))
    layout = {
        "meta": {"inside": len(rows) * 23 + 16} | ({} if columns > 2 else {"least": 200}),
        "margin": {"l": 7 * min(30, max(map(len, rows))) + 16},
        "showlegend": any(mark["name"] for mark in panels[0]["marks"]),
        "yaxis": _names(rows) | {"range": [len(rows) - 0.3, -0.7]},
    }
    return _figure("dots", [panel["title"] for panel in panels], traces, columns, layout)


def bars(rows: Sequence[str], series: Sequence[Mapping[str, Any]], axis: str) -> Figure:
    """Stacked bars, one a row. A series has a name, values and texts by row, a tone and a hatch."""
    traces = [
        _trace(
            "segment",
            {
                "name": label(one["name"]),
                "x": one["values"],
                "y": list(range(len(rows))),
                "text": one["texts"],
                "insidetextfont": {"color": f"<on-{one['tone']}>" if one["tone"].startswith("step") else "<ink>"},
                "marker": {"color": f"<{one['tone']}>", "pattern": {"shape": one["hatch"]}},
            },
        )
        for one in series
    ]
    yaxis = _names(rows) | {"range": [len(rows) - 0.5, -0.5]}
    layout = {"meta": {"inside": 30 * len(rows)}, "xaxis": {"title": {"text": axis}}, "yaxis": yaxis}
    return _figure("bars", [""], [traces], 1, layout)


def heat(panels: Panels) -> Figure:
    """Gold × verdict. A panel has a title, the scores of both axes (`x`, `y`), `counts` and their `shares` of a row (0–1)."""
    traces = []
    for panel in panels:
        text = [[str(count or "") for count in row] for row in panel["counts"]]
        data = {"x": panel["x"], "y": panel["y"], "z": panel["shares"], "text": text, "customdata": panel["counts"]}
        traces.append([_trace("cell", data)])
    return _figure("heat", [panel["title"] for panel in panels], traces, 4, {"meta": {"inside": 26 * len(panels[0]["y"])}})


def hit_rates(panels: Panels) -> Figure:
    """Hit rate against probability. A panel has a title and points [probability, hit rate, low, high, n], 0–100."""
    traces = []
    for panel in panels:
        points = panel["points"]
        data = {"x": [point[0] for point in points], "y": [point[1] for point in points], "error_y": _error(points)}
        text = [f"n = {point[4]}" for point in points]
        traces.append([_trace("diagonal", {}), _trace("hit_rate", data | {"text": text})])
    return _figure("hit_rates", [panel["title"] for panel in panels], traces, 2, {})


def curves(panels: Panels, axis: str, step: bool, bands: bool) -> Figure:
    """Lines over rounds, stepped or not, told apart by dashes as well as by colour.

    A panel has a title, `series` with a name and points [round, figure, low, high, text], and `bars` [round, dialogues], drawn
    in grey behind them. With `bands` each line has one from low to high.
    """
    traces = []
    for index, panel in enumerate(panels):
        drawn = []
        if panel["bars"]:
            at, counts = zip(*panel["bars"], strict=True)
            text = [f"{count} dialogues" for count in counts]
            drawn.append(_trace("count", {"x": at, "y": [100 * count / max(counts) for count in counts], "text": text}))
        for place, one in enumerate(panel["series"]):
            colour, name, points = "<warm>" if place % 2 else "<accent>", label(one["name"]), one["points"]
            known = [point for point in points if point[2] is not None]
            if bands and known:
                around = [*_bound(known, 2, step), *reversed(_bound(known, 3, step))]
                sides = {"x": [point[0] for point in around], "y": [point[1] for point in around]}
                drawn.append(_trace("band", sides | {"fillcolor": colour, "legendgroup": name}))
            data = {
                "name": name,
                "legendgroup": name,
                "showlegend": index == 0,  # the other panels share its legend
                "x": [point[0] for point in points],
                "y": [point[1] for point in points],
                "text": [label(point[4]) for point in points],
                "line": {"color": colour, "dash": _DASHES[place % len(_DASHES)]},
                "marker": {"color": colour, "symbol": "square" if place % 2 else "circle"},
            }
            drawn.append(_trace("step" if step else "curve", data))
        traces.append(drawn)
    layout = {"meta": {"inside": 300 if len(panels) == 1 else 170}, "yaxis": {"title": {"text": axis}}}
    layout |= {"showlegend": len(panels[0]["series"]) > 1}
    return _figure("curves", [panel["title"] for panel in panels], traces, 4, layout)


def _bound(points: Sequence[Sequence[Any]], side: int, step: bool) -> list[tuple[float, float]]:
    """One bound of a band; with `step` it turns the corners that the line turns."""
    bound = []
    for place, point in enumerate(points):
        bound += [(point[0], points[place - 1][side])] if step and place else []
        bound.append((point[0], point[side]))
    return bound


def label(text: str, limit: int | None = None) -> str:
    """Text for plotly, which reads tags in its labels; shortened to leave room for the plot."""
    return html.escape(text if limit is None or len(text) <= limit else text[: limit - 1] + "…", quote=False)


def coloured(figure: Figure) -> Figure:
    """The figure in the colours of the light page."""
    light = (TEMPLATES / "report.css").read_text(encoding="utf-8").partition("@media")[0]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", light))
    text = re.sub(r'"<([a-z0-9-]+)>"', lambda name: f'"{colours[name[1]]}"', orjson.dumps(figure).decode())
    replaced: Figure = orjson.loads(text)
    return replaced


@cache
def _styles() -> dict[str, Any]:
    styles: dict[str, Any] = yaml.safe_load((TEMPLATES / "figures.yaml").read_text(encoding="utf-8"))
    return styles


def _trace(style: str, data: Figure) -> Figure:
    return _merged(_styles()["traces"][style], data)


def _merged(style: Figure, data: Figure) -> Figure:
    """Data with what the style adds, at any depth."""
    both = {key: _merged(style[key], data[key]) for key in style.keys() & data.keys() if isinstance(data[key], dict)}
    return style | data | both


def _figure(kind: str, titles: Sequence[str], traces: Sequence[list[Figure]], columns: int, layout: Figure) -> Figure:
    """Panels in rows of at most `columns`; a panel's number is part of the names of its axes."""
    layout = _merged(_styles()["layouts"][kind], layout)
    axes, meta, margin = (layout.pop("xaxis"), layout.pop("yaxis")), layout["meta"], layout["margin"]
    columns = min(columns, len(titles))
    lines = -(-len(titles) // columns)
    layout["grid"] = {"rows": lines, "columns": columns, "pattern": "independent", "xgap": 0.14}
    layout["grid"]["ygap"] = meta["gap"] / (meta["inside"] + meta["gap"])
    layout["height"] = lines * (meta["inside"] + meta["gap"]) - meta["gap"] + margin["t"] + margin["b"]
    layout["annotations"], data = [], []
    for index, (title, of_panel) in enumerate(zip(titles, traces, strict=True)):
        x, y = (f"{axis}{index + 1 if index else ''}" for axis in "xy")
        data += [trace | {"xaxis": x, "yaxis": y} for trace in of_panel]
        first = {} if index % columns == 0 or "ticktext" not in axes[1] else {"showticklabels": False}
        layout |= {x.replace("x", "xaxis"): axes[0], y.replace("y", "yaxis"): axes[1] | first}
        place = {"xref": f"{x} domain", "yref": f"{y} domain", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}
        layout["annotations"].append({"text": f"<b>{label(title)}</b>", "showarrow": False} | place)
    return {"data": data, "layout": layout}


def _names(rows: Sequence[str]) -> Figure:
    """An axis of row labels."""
    return {"tickvals": list(range(len(rows))), "ticktext": [label(row, 30) for row in rows]}


def _error(points: Sequence[Sequence[Any]]) -> Figure:
    """Error bars of points […, mean, low, high, …]; none where low and high are None."""
    return {
        "array": [0 if high is None else high - mean for _, mean, _, high, *_ in points],
        "arrayminus": [0 if low is None else mean - low for _, mean, low, *_ in points],
    }
