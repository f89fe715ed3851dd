"""Figures 4 to 7 of ECDBench for any set of models, with the tables, in one HTML file that needs no network."""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from core import page
from core.errors import clean
from core.files import write_text
from core.grouping import group_by
from core.statistics.bootstrap import Floats
from core.tables import Estimate, Table, fmt
from evalsuite.papers.ecdbench.aggregate import ModelResult, Node
from evalsuite.papers.ecdbench.registry import Benchmark, ModelFacts
from evalsuite.report.charts import TEMPLATES as REPORT
from evalsuite.report.charts import Chart

HERE = Path(__file__).parent
SCORES = {"title": {"text": "score"}, "range": [0, 100]}
TYPES = {"closed": "closed-source", "open": "open-source"}


def charts(benchmark: Benchmark, results: Sequence[ModelResult], facts: Mapping[str, ModelFacts]) -> list[Chart]:
    """The figures as plotly data (`traces`, `layout`); figures without data are left out. If parts are missing, scores are
    partial and captions say so. Colours are the page's own names (`tone`)."""
    made = (_distributions(results), _by_type(benchmark, results, facts), _by_size(results, facts), _core(benchmark, results))
    complete = all(node.complete for result in results for node in result.root.children)
    caveat = "" if complete else " Scores are partial if parts are missing."
    return [replace(chart, caption=chart.caption + caveat) for chart in made if chart is not None]


def _by_label(nodes: Iterable[Node]) -> dict[str, list[float]]:
    scored = group_by((node for node in nodes if node.partial is not None), lambda node: node.label)
    return {label: [node.partial for node in of_label if node.partial is not None] for label, of_label in scored.items()}


def _boxes(groups: Mapping[str, Sequence[float]], axis: str) -> list[dict[str, Any]]:
    return [
        {"type": "box", "name": _text(name), "y": list(values), "boxpoints": "all", "tone": "accent"}
        | {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": False}
        for name, values in groups.items()
    ]


def _distributions(results: Sequence[ModelResult]) -> Chart | None:
    """Figure 4: the capabilities, and on the right the tasks of the one with the lowest mean, if tasks have scores."""
    capabilities = [node for result in results for node in result.root.children]
    groups = _by_label(capabilities)
    if not groups:
        return None
    weakest = min(groups, key=lambda name: float(np.mean(groups[name])))
    below = (node for capability in capabilities if capability.label == weakest for node in capability.walk())
    tasks = _by_label(node for node in below if node.layer == "task")
    layout: dict[str, Any] = {"yaxis": SCORES, "xaxis": {"domain": [0, 0.56 if tasks else 1]}}
    caption = f"Every point is a model, {len(results)} in total."
    if tasks:
        layout |= {"xaxis2": {"domain": [0.64, 1], "anchor": "y2"}, "yaxis2": {"range": [0, 100], "anchor": "x2"}}
        caption += f" Right: the tasks of {weakest}, the lowest on average (n = {max(map(len, tasks.values()))} models)."
    figure = {"traces": _boxes(groups, "") + _boxes(tasks, "2"), "layout": layout}
    return Chart("figure4", "Distribution of scores", caption, "", figure)


def _by_type(benchmark: Benchmark, results: Sequence[ModelResult], facts: Mapping[str, ModelFacts]) -> Chart | None:
    """Figure 5: means of closed-source and open-source models, with the number of models."""
    traces = []
    for number, (key, name) in enumerate(TYPES.items()):
        models = [result for result in results if result.model in facts and facts[result.model].type == key]
        groups = _by_label(node for result in models for node in result.root.children)
        if not groups:
            continue
        shown = [part.label for part in benchmark.capabilities.values() if part.label in groups]
        means = [float(np.mean(groups[label])) for label in shown]
        traces.append(
            {"type": "bar", "name": f"{name}, n = {len(models)}", "x": [_text(label) for label in shown], "y": means}
            | {"text": [fmt(mean, 1) for mean in means], "textposition": "outside", "cliponaxis": False}
            | {"tone": ("accent", "warm")[number], "marker": {"pattern": {"shape": ("", "/")[number]}}}
        )
    if not traces:
        return None
    layout = {"barmode": "group", "yaxis": SCORES, "showlegend": True}  # also for a single type: the legend names it and n
    figure = {"traces": traces, "layout": layout}
    return Chart("figure5", "Closed-source and open-source models", "Unweighted means over models.", "", figure)


def _by_size(results: Sequence[ModelResult], facts: Mapping[str, ModelFacts]) -> Chart | None:
    """Figure 6: totals by parameters within families of at least two sizes."""
    points = [
        (model.family, model.parameters, total, result.model)
        for result in results
        if (model := facts.get(result.model)) and model.family and model.parameters
        if (total := result.root.partial) is not None
    ]
    traces: list[dict[str, Any]] = []
    for name, family in group_by(sorted(points), itemgetter(0)).items():
        _, sizes, totals, models = zip(*family, strict=True)
        if len(set(sizes)) > 1:
            traces.append(
                {"type": "scatter", "mode": "lines+markers", "name": _text(name), "x": sizes, "y": totals}
                | {"text": list(map(_text, models)), "hovertemplate": "%{text}: %{y:.2f}, %{x} B<extra></extra>"}
                | {"tone": ("accent", "warm", "ink")[len(traces) % 3], "marker": {"symbol": len(traces), "size": 9}}
            )
    if not traces:
        return None
    size = {"type": "log", "title": {"text": "parameters, billions"}}
    layout = {"xaxis": size, "yaxis": {"title": {"text": "total"}}, "showlegend": True}
    caption = "Totals as listed, by model family; many sizes are estimates."
    return Chart("figure6", "Totals by size", caption, "", {"traces": traces, "layout": layout})


def _core(benchmark: Benchmark, results: Sequence[ModelResult]) -> Chart | None:
    """Figure 7: core capabilities (their weighted mean) against foundational ones, with a fitted straight line. The paper does
    not say how its core score combines the two core capabilities; ours uses the total's weights."""
    roles = {part.role for part in benchmark.capabilities.values()}
    if not {"core", "foundational"} <= roles:
        return None
    points, not_below = [], []
    for result in results:
        base, core = (_role_score(benchmark, result.root, role) for role in ("foundational", "core"))
        if base is not None and core is not None:
            points.append((base, core, result.model))
            not_below.append(result.passed is not False)
    if len(points) < 2:
        return None
    x, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "markers", "x": x.tolist(), "y": y.tolist(), "tone": "accent", "marker": {"size": 9}}
        | {"text": [_text(p[2]) for p in points], "hovertemplate": "%{text}: %{x:.2f}, %{y:.2f}<extra></extra>"}
        | {"showlegend": False}
    ]
    caption = f"Every point is a model, {len(points)} in total; core: the core capabilities with the total's weights."
    if x.std() > 0 and y.std() > 0:
        from scipy.stats import linregress

        line = linregress(x, y)
        ends = [float(x.min()), float(x.max())]
        fitted = [float(line.intercept + line.slope * end) for end in ends]
        traces.append(
            {"type": "scatter", "mode": "lines", "x": ends, "y": fitted, "tone": "warm", "line": {"dash": "dash"}}
            | {"hoverinfo": "skip", "showlegend": False}
        )
        caption += f" Pearson's r: {_pearson(x, y)}; slope {fmt(float(line.slope))}."
        if not all(not_below) and len(set(x[not_below])) > 1 < len(set(y[not_below])):
            caption += f" Without models below the gate r is {_pearson(x[not_below], y[not_below])}."
    layout = {"xaxis": {"title": {"text": "foundational"}}, "yaxis": {"title": {"text": "core"}}}
    return Chart("figure7", "Core against foundational capabilities", caption, "", {"traces": traces, "layout": layout})


def _pearson(x: Floats, y: Floats) -> str:
    """Pearson's correlation with its 95 % interval (Fisher's z) and the number of models."""
    from scipy.stats import pearsonr

    correlation = pearsonr(x, y)
    low, high = correlation.confidence_interval()
    return fmt(Estimate(float(correlation.statistic), float(low), float(high), len(x)))


def _role_score(benchmark: Benchmark, root: Node, role: str) -> float | None:
    """The weighted mean of a role's capabilities; None unless each has a score."""
    nodes = [node for node in root.children if benchmark.capabilities[node.path].role == role]
    scores = [node.partial for node in nodes if node.partial is not None]
    weights = [benchmark.capabilities[node.path].weight or 0 for node in nodes]
    return float(np.average(scores, weights=weights)) if len(scores) == len(nodes) else None


def _text(label: str) -> str:
    """A label, escaped since plotly reads tags in labels."""
    return html.escape(clean(label))


def write_page(path: Path, title: str, figures: Sequence[Chart], tables: Sequence[Table]) -> None:
    """Write the page. All text in it is escaped, and only its own scripts may run."""
    style = Markup((REPORT / "report.css").read_text(encoding="utf-8"))
    about = {"title": title, "figures": figures, "tables": tables, "style": style, "scripts": page.scripts(HERE / "figures.js")}
    data = {chart.key: chart.figure for chart in figures}
    write_text(path, page.environment(HERE).get_template("figures.html.j2").render(**about, data=data))
