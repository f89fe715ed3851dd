"""`esc-eval ecdbench …`: scores of tasks added up to capabilities and one total (ECDBench, or a benchmark of your own)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from core.errors import UserError, near
from core.files import write_jsonl
from core.paths import IN_FILE, IN_NAME, OUT_FILE, Verbs
from core.tables import Table
from evalsuite.commands import ecdbench_run
from evalsuite.commands.options import out_tables
from evalsuite.commands.output import deliver, plain
from evalsuite.fdaef.aggregate import Missing, Node, Result, aggregate
from evalsuite.fdaef.figures import charts, write_page
from evalsuite.fdaef.registry import Benchmark, load_benchmark, load_models
from evalsuite.fdaef.registry_tables import counts_table, metrics_table, registry_table
from evalsuite.fdaef.scores import ModelScores, read_scores
from evalsuite.fdaef.summaries import judged_scores
from evalsuite.fdaef.tables import (
    GATED,
    LISTED,
    SHARE,
    cell_of,
    datasets_table,
    gate_of,
    leaderboard,
    places,
    ranks_table,
    separation_table,
)
from evalsuite.fdaef.uncertainty import separations
from evalsuite.reported.tables import load_reported

app = Verbs(
    no_args_is_help=True,
    help="ECDBench: results of its tasks added up to capabilities and one total, by the paper's algorithms 1 to 5. Also for a "
    "benchmark of your own, described in one YAML file.",
    epilog="Example: esc-eval ecdbench leaderboard --published --html ecdbench.html",
)
console = Console()
PUBLISHED = "ecdbench"

BenchmarkOption = Annotated[
    str,
    typer.Option("--benchmark", help="A benchmark's YAML file; without it ECDBench 1.0 (configs/ecdbench/registry.yaml)."),
    IN_NAME,
]
ScoresOption = Annotated[
    list[Path],
    typer.Option(
        "--scores",
        help="Score file (JSON lines): items, whole datasets, or scores of whole parts; the form is at the head of "
        "evalsuite/fdaef/scores.py. Repeat for more files.",
    ),
    IN_FILE,
]
MoreScores = Annotated[
    list[Path] | None, typer.Option("--scores", help="Score file (JSON lines) of any models. Repeatable."), IN_FILE
]
MissingOption = Annotated[
    str,
    typer.Option(
        "--missing",
        help="What a dataset without scores is. null: missing, so what rests on it has only a partial score. zero: 0, as "
        "algorithms 3 and 4 say.",
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only this model.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder for the figures as JSON and every table as CSV."), out_tables("*")
]


app.command("run")(ecdbench_run.run)


@app.command("judged")
def judged(
    judgements: Annotated[
        Path, typer.Option("--judgements", help="The judge's verdicts: judgements.jsonl of `score` on rubric summary."), IN_FILE
    ],
    summaries: Annotated[
        Path, typer.Option("--summaries", help="What was scored: summaries.jsonl of `ecdbench run`."), IN_FILE
    ],
    to: Annotated[Path, typer.Option("--to", help="Score file to write, for `aggregate --scores` beside others."), OUT_FILE],
    judge: Annotated[str | None, typer.Option("--judge", help="Whose verdicts, where the file has several judges'.")] = None,
) -> None:
    """A judge's verdicts on the summaries that `ecdbench run` had a model write, as a score file.

    A verdict that could not be read has no value; where the model wrote no summary, completeness and conciseness are 1.

    Example: esc-eval ecdbench judged --judgements run/judged/judgements.jsonl --summaries run/summaries.jsonl
    --to run/judged_scores.jsonl
    """
    scores = judged_scores(judgements, summaries, judge)
    write_jsonl(to, scores)
    unread = sum(score.value is None for score in scores)
    console.print(
        Text(f"scores: {to}   {len(scores)} verdicts" + f", {unread} of them unreadable" * bool(unread)), soft_wrap=True
    )


@app.command("aggregate")
def aggregate_scores(
    scores: ScoresOption,
    benchmark: BenchmarkOption = "ecdbench",
    model: ModelOption = None,
    missing: MissingOption = "null",
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Every model's total and capabilities, with intervals over items.

    Where something is missing the total is null with the reason, beside a partial one and the share of the benchmark that it
    rests on.

    Example: esc-eval ecdbench aggregate --scores results.jsonl --json
    """
    known = load_benchmark(benchmark)
    results = [aggregate(known, one, _missing(missing)) for one in _of_model(read_scores(scores, known), model)]
    figures = {"benchmark": known.name, "missing": missing, "models": [figures_of(result) for result in results]}
    deliver("aggregate", figures, [_summary(known, results, missing), datasets_table(results)], out, as_json)


@app.command("leaderboard")
def show_leaderboard(
    scores: MoreScores = None,
    published: Annotated[bool, typer.Option("--published", help="The 30 models of the paper's table 5 as well.")] = False,
    benchmark: BenchmarkOption = "ecdbench",
    models: Annotated[
        list[Path] | None,
        typer.Option("--models", help="YAML file with family, type and parameters of models, as configs/ecdbench/models.yaml."),
        IN_NAME,
    ] = None,
    spread: Annotated[float, typer.Option(min=0.01, max=0.99, help="By how much weights are varied, as a share.")] = 0.25,
    page: Annotated[
        Path | None, typer.Option("--html", help="Write figures 4 to 7 and the tables as one HTML file."), OUT_FILE
    ] = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Models in order of their totals: how far ranks depend on items and weights, and which parts tell models apart.

    Totals are given as the paper's leaderboard lists them and by its algorithm 5, which makes them 0 below the gate.

    Example: esc-eval ecdbench leaderboard --scores a.jsonl --scores b.jsonl --html board.html
    """
    known = load_benchmark(benchmark)
    if published and benchmark != "ecdbench":
        raise UserError("--published is ECDBench's table 5: it does not fit another --benchmark")
    every = (published_scores(known) if published else []) + (read_scores(scores, known) if scores else [])
    if not every:
        raise UserError("nothing to rank: give --scores FILE, --published or both")
    names = [one.model for one in every]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--scores: {doubled[0]!r} is also in the paper's table 5: name yours differently")
    results = [aggregate(known, one) for one in every]
    board, ranks = leaderboard(known, results), ranks_table(known, results, every, spread)
    tables = [board, *(t for t in (ranks, separation_table(separations(results)), datasets_table(results)) if t.rows)]
    facts = dict(load_models("models"))
    for file in models or []:
        facts |= load_models(str(file))
    figures = charts(known, results, facts)
    if page is not None:
        write_page(page, f"{known.title}: {len(results)} models", figures, tables)
    summary = plain(tables) | {"notes": board.notes, "charts": {chart.key: chart.figure["traces"] for chart in figures}}
    if deliver("leaderboard", summary, tables, out, as_json, tables[:2]) and page is not None:
        console.print(Text(f"figures: {page}"))


@app.command("explain")
def explain(
    scores: ScoresOption,
    benchmark: BenchmarkOption = "ecdbench",
    model: ModelOption = None,
    node: Annotated[
        str | None,
        typer.Option("--node", help="Only this part, by its path (companionship/memory) or its last id (longmemeval)."),
    ] = None,
    items: Annotated[int, typer.Option("--items", min=0, help="Also so many single items of every method, lowest first.")] = 0,
    missing: MissingOption = "null",
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Drill down: a model's scores from the total to single methods and items, with weights, chance and what is missing.

    Example: esc-eval ecdbench explain --scores results.jsonl --node companionship --items 5
    """
    known = load_benchmark(benchmark)
    found = _of_model(read_scores(scores, known), model)
    if len(found) > 1:
        raise UserError(f"--model: the files hold {len(found)} models, name one: {', '.join(one.model for one in found[:12])}")
    result = aggregate(known, found[0], _missing(missing))
    root = result.root if node is None else _node(result.root, node)
    tables = [places(result, _missing(missing), root), *([_items(root, items)] if items else [])]
    figures = figures_of(result) | {"tree": _tree(root, items)}
    deliver("explain", figures, tables, out, as_json)


@app.command("registry")
def registry(benchmark: BenchmarkOption = "ecdbench", as_json: JsonOption = False, out: OutOption = None) -> None:
    """What the benchmark is made of: every task, dataset and method (table 6) with licence and source, how every metric becomes
    0 to 100, and table 1's counts.

    Example: esc-eval ecdbench registry --out ecdbench-registry
    """
    known = load_benchmark(benchmark)
    tables = [table for table in (registry_table(known), metrics_table(known), counts_table(known)) if table is not None]
    deliver("registry", plain(tables), tables, out, as_json)


def published_scores(benchmark: Benchmark) -> list[ModelScores]:
    """The capability scores of the paper's leaderboard (table 5), as scores given for whole capabilities."""
    places = {part.label: key for key, part in benchmark.capabilities.items()}
    found: dict[str, dict[str, float]] = {}
    for cell in load_reported(PUBLISHED).cells["5"]:
        if cell.at["column"] in places and cell.value is not None:
            found.setdefault(cell.at["Model"], {})[places[cell.at["column"]]] = float(cell.value)
    return [ModelScores(model, {}, given) for model, given in found.items()]


def figures_of(result: Result) -> dict[str, Any]:
    """A model's total, gate and capabilities as plain data: scores 0 to 100, shares 0 to 1, undefined figures null."""
    root, gate = result.root, result.gate
    return {
        "model": result.model,
        "total": {
            "listed": root.score,
            "algorithm_5": result.gated,
            "reasons": result.reasons,
            "partial": {"listed": root.partial, "algorithm_5": result.gated_partial, "share": root.share, "n": root.n},
            "interval": _interval(root),
        },
        "gate": None
        if gate is None
        else {
            "capability": gate.path,
            "threshold": result.threshold,
            "score": gate.score,
            "partial": gate.partial,
            "share": gate.share,
            "passed": result.passed,
            "passing_draws": result.passing,
        },
        "capabilities": {node.path: _figures(node) for node in root.children},
    }


def _figures(node: Node) -> dict[str, Any]:
    return {
        "label": node.label,
        "weight": node.weight,
        "score": node.score,
        "partial": node.partial,
        "share": node.share,
        "interval": _interval(node),
        "n": node.n,
        "reasons": node.gaps,
    }


def _interval(node: Node) -> list[float] | None:
    estimate = node.estimate
    return None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]


def _tree(node: Node, items: int) -> dict[str, Any]:
    own = {"path": node.path, "layer": node.layer} | _figures(node)
    if (measured := node.measured) is not None:
        own |= {
            "raw": measured.raw,
            "chance": measured.chance,
            "unread": measured.unread,
            "reasons": [node.reason] * bool(node.reason),
        }
        own |= {"items": dict(_lowest(measured.items, items))} if items else {}
    return own | {"children": [_tree(child, items) for child in node.children]} if node.children else own


def _summary(benchmark: Benchmark, results: list[Result], missing: str) -> Table:
    partial = "partial" if missing == "null" else "total, missing as 0"
    labels = [part.label for part in benchmark.capabilities.values()]
    return Table(
        key="totals",
        title=f"{benchmark.title}: totals and capabilities, 0 to 100",
        columns=("model", LISTED, GATED, partial, SHARE, "gate", *labels),
        rows=tuple(
            (r.model, r.root.score, r.gated, cell_of(r.root), 100 * r.root.share, gate_of(r), *map(cell_of, r.root.children))
            for r in results
        ),
        notes=tuple(f"{r.model} has no total: {'; '.join(r.reasons)}." for r in results if r.reasons),
    )


def _items(root: Node, count: int) -> Table:
    rows = [
        (node.path.split("/")[-2], node.label, item, value if value is None or isinstance(value, int | float) else str(value))
        for node in root.walk()
        if node.measured is not None
        for item, value in _lowest(node.measured.items, count)
    ]
    return Table("items", "Single items, lowest first", ("dataset", "metric", "item", "value or outcome"), tuple(rows))


def _lowest(items: Mapping[str, Any], count: int) -> list[tuple[str, Any]]:
    """Unread answers first, then the lowest values, then what has no order."""
    rank = {
        name: (0, 0.0) if v is None else (1, float(v)) if isinstance(v, int | float) else (2, 0.0) for name, v in items.items()
    }
    return sorted(items.items(), key=lambda pair: (rank[pair[0]], pair[0]))[:count]


def _of_model(found: list[ModelScores], name: str | None) -> list[ModelScores]:
    own = [one for one in found if name in (None, one.model)]
    if not own:
        raise UserError(f"--model: no scores of {name!r}: {near(str(name), (one.model for one in found))}")
    return own


def _node(root: Node, name: str) -> Node:
    every = list(root.walk())
    own = [node for node in every if node.path == name] or [node for node in every if node.path.split("/")[-1] == name]
    if not own:
        raise UserError(f"--node: no part {name!r}: {near(name, {node.path.split('/')[-1] for node in every if node.path})}")
    if len(own) > 1:
        raise UserError(f"--node: {name!r} is in several places, name one: {', '.join(node.path for node in own[:4])}")
    return own[0]


def _missing(name: str) -> Missing:
    if name not in ("null", "zero"):
        raise UserError(f"--missing: unknown {name!r}: null or zero")
    return name  # type: ignore[return-value]  # checked above
