"""`esc-eval ecdbench …`: scores of tasks added up to capabilities and one total (ECDBench, or a benchmark of your own)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from core.errors import UserError, near, need_modules
from core.files import write_jsonl
from core.options import ModelOption as AskedOption
from core.options import choice, console
from core.paths import (
    IN_FOLDER,
    IN_NAME,
    InFile,
    InFiles,
    InName,
    MaybeFile,
    MaybeFiles,
    MaybeModel,
    MaybeName,
    MaybeOutFile,
    OutFile,
    Reads,
)
from core.specs import load_spec
from core.tables import Screen, Table
from core.verbs import Verbs
from evalsuite.commands.options import JsonOption, TablesOption, out_tables
from evalsuite.commands.output import deliver, exit_if_lost, plain
from evalsuite.fdaef.aggregate import Missing, Node, aggregate
from evalsuite.fdaef.asking import Examination
from evalsuite.fdaef.figures import charts, write_page
from evalsuite.fdaef.judging import judge_summaries, resolved_judge
from evalsuite.fdaef.local_data import load_layout
from evalsuite.fdaef.plan import coverage, left_out_lines, plan_table, plan_tasks
from evalsuite.fdaef.registry import Benchmark, load_benchmark, load_models
from evalsuite.fdaef.registry_tables import counts_table, metrics_table, published_scores, registry_table
from evalsuite.fdaef.scores import ModelScores, read_scores
from evalsuite.fdaef.summaries import judged_scores, summaries_table
from evalsuite.fdaef.tables import (
    LEFT_OUT,
    datasets_table,
    items_table,
    leaderboard,
    left_out_table,
    model_figures,
    parts_table,
    places,
    ranks_table,
    separation_table,
    totals_table,
    tree_figures,
)
from evalsuite.fdaef.uncertainty import separations
from evalsuite.runs.folder import open_run

app = Verbs(
    no_args_is_help=True,
    help="ECDBench: results of its tasks added up to capabilities and one total, by the paper's algorithms 1 to 5. Also for a "
    "benchmark of your own, described in one YAML file.",
    epilog="Example: esc-eval ecdbench leaderboard --published --html ecdbench.html",
)

BenchmarkOption = Annotated[
    InName,
    typer.Option("--benchmark", help="A benchmark's YAML file; without it ECDBench 1.0 (configs/ecdbench/registry.yaml)."),
]
ScoresOption = Annotated[
    InFiles,
    typer.Option(
        "--scores",
        help="Score file (JSON lines): items, whole datasets, or scores of whole parts; the form is at the head of "
        "evalsuite/fdaef/scores.py. Repeat for more files.",
    ),
]
MoreScores = Annotated[MaybeFiles, typer.Option("--scores", help="Score file (JSON lines) of any models. Repeatable.")]
MissingOption = Annotated[
    str,
    typer.Option(
        "--missing",
        help="What a dataset without scores is. null: missing, so what rests on it has only a partial score. zero: 0, as "
        "algorithms 3 and 4 say. left_out: as null, but what nobody can run (`ecdbench plan`), or is not "
        "defined on a model's answers, is left out of all weights.",
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only this model.")]
OutOption = Annotated[TablesOption, out_tables("*")]


DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with the datasets' own files, in a folder each as configs/ecdbench/local.yaml says."),
    IN_FOLDER,
]
DatasetOption = Annotated[list[str] | None, typer.Option("--dataset", help="Only these datasets, by their ids. Repeatable.")]
HubOption = Annotated[bool, typer.Option("--hub", help="Let lm-eval download the data of its own tasks where --data has none.")]
LayoutOption = Annotated[
    MaybeFile, typer.Option("--layout", help="Your own layout of --data; see configs/ecdbench/local.yaml.")
]


@app.command("plan")
def plan(
    data: DataOption = None,
    dataset: DatasetOption = None,
    hub: HubOption = False,
    benchmark: BenchmarkOption = "ecdbench",
    layout: LayoutOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """What `run` would ask: every dataset with its weight, whether it runs, needs a file, or cannot be run and why.

    Reads all files and asks nobody: what is wrong with a file is one line here, before any call.

    Example: esc-eval ecdbench plan --data corpora
    """
    known = load_benchmark(benchmark)
    table = plan_table(known, plan_tasks(known, load_layout(layout), data, dataset, hub))
    deliver("plan", plain([table]) | {"notes": table.notes}, [table], out, as_json)


@app.command("run")
def run(
    model: AskedOption,
    data: DataOption = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Run folder; the same command again asks only what is missing."),
        out_tables("ecdbench", "scores.jsonl", "summaries.jsonl", "datasets/*", "judged/*"),
    ] = Path("runs/ecdbench"),
    judge: Annotated[
        MaybeModel,
        typer.Option("--judge", metavar="MODEL", help="Who scores the summaries (a spec); without it they are only written."),
    ] = None,
    dataset: DatasetOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items a dataset; without it as the benchmark says (300).")] = None,
    seed: Annotated[int, typer.Option(help="Which items are drawn.")] = 0,
    hub: HubOption = False,
    chat: Annotated[
        bool, typer.Option("--chat-template", help="Put every question into the model's chat template (for chat models).")
    ] = False,
    name: Annotated[str | None, typer.Option("--as", help="The model's name in scores and leaderboards.")] = None,
    tokenizer: Annotated[
        MaybeName, typer.Option(help="Tokenizer (folder or hub id) of a model that its spec gives no checkpoint for.")
    ] = None,
    benchmark: BenchmarkOption = "ecdbench",
    layout: LayoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a model the benchmark's tasks (on lm-eval, zero-shot) and add the answers up to capabilities: OUT/scores.jsonl.

    A choice is answered by the likeliest option, so the model's server must tell log-probabilities of a prompt: vLLM does, chat
    APIs do not. Summaries are written through chat, OUT/summaries.jsonl, and scored by --judge in OUT/judged. What is not asked
    is listed with its reason before any call. The first total is the benchmark's, null where something is missing; the second
    leaves out what nobody can run.

    Example: esc-eval ecdbench run --model embedded --judge embedded --data corpora --limit 20
    """
    notices = Screen(quiet=as_json)
    need_modules("lm_eval", purpose="running tasks")
    known, spec = load_benchmark(benchmark), load_spec(model)
    planned = plan_tasks(known, load_layout(layout), data, dataset, hub)
    planned.check()
    judging = resolved_judge(out, judge) if judge and planned.summaries else None
    for line in (*coverage(known, planned), *_left_out(planned.missing)):
        notices.print(line, soft_wrap=True)
    items = limit or known.sample or 300
    with open_run(out) as folder:
        examination = Examination(known, spec, name or spec.name, items, seed, chat, tokenizer, notices)
        scores, summaries = examination.ask(folder, planned)
    lost = sum(dialogue.lost for dialogue in summaries)
    if judging and not lost:
        if judging.judge.name == spec.name:
            notices.print(f"{spec.name} scores its own summaries: read completeness and conciseness with care")
        scores += judge_summaries(judging, out / "summaries.jsonl", notices)
    tables: list[Table] = []
    if planned.local or planned.hub or judging:
        write_jsonl(out / "scores.jsonl", scores)
        if not scores:
            raise UserError(f"{out}: no task gave a score for a metric of {known.name}")
        tables += _result_tables(known, out / "scores.jsonl")
    if summaries:
        tables.append(summaries_table(known, summaries))
    if planned.missing:
        tables.append(left_out_table(known, planned.missing))
    if deliver("ecdbench", plain(tables), tables, out, as_json, [table for table in tables if table.key != LEFT_OUT]):
        notices.print("\n".join(_next_commands(out, bool(scores), bool(summaries) and judging is None)), soft_wrap=True)
    exit_if_lost(lost, len(summaries), "summaries")


@app.command("judged")
def judged(
    judgements: Annotated[
        InFile, typer.Option("--judgements", help="The judge's verdicts: judgements.jsonl of `score` on rubric summary.")
    ],
    summaries: Annotated[
        Path,
        typer.Option("--summaries", help="What was scored: summaries.jsonl of `ecdbench run`."),
        Reads(made="`esc-eval ecdbench run` writes it"),
    ],
    to: Annotated[OutFile, typer.Option("--to", help="Score file to write, for `aggregate --scores` beside others.")],
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
    tail = f", {unread} of them unreadable" if unread else ""
    console.print(f"scores: {to}   {len(scores)} verdicts{tail}", soft_wrap=True)


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
    rule: Missing = choice("--missing", missing, get_args(Missing))
    known = load_benchmark(benchmark)
    results = [aggregate(known, one, rule) for one in _of_model(read_scores(scores, known), model)]
    known = known.runnable if rule == "left_out" else known
    figures = {"benchmark": known.name, "missing": missing, "models": [model_figures(result) for result in results]}
    deliver("aggregate", figures, [totals_table(known, results, missing), datasets_table(results)], out, as_json)


@app.command("leaderboard")
def show_leaderboard(
    scores: MoreScores = None,
    published: Annotated[bool, typer.Option("--published", help="The 30 models of the paper's table 5 as well.")] = False,
    benchmark: BenchmarkOption = "ecdbench",
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            help="null: a model without all scores has no total. left_out: what nobody can run (`ecdbench plan`) is left out "
            "of all weights.",
        ),
    ] = "null",
    models: Annotated[
        list[Path] | None,
        typer.Option("--models", help="YAML file with family, type and parameters of models, as configs/ecdbench/models.yaml."),
        IN_NAME,
    ] = None,
    spread: Annotated[float, typer.Option(min=0.01, max=0.99, help="By how much weights are varied, as a share.")] = 0.25,
    page: Annotated[MaybeOutFile, typer.Option("--html", help="Write figures 4 to 7 and the tables as one HTML file.")] = None,
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
    rule: Missing = choice("--missing", missing, ("null", "left_out"))
    results = [aggregate(known, one, rule) for one in every]
    known = known.runnable if rule == "left_out" else known
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
        console.print(f"figures: {page}")


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
    rule: Missing = choice("--missing", missing, get_args(Missing))
    known = load_benchmark(benchmark)
    models = _of_model(read_scores(scores, known), model)
    if len(models) > 1:
        raise UserError(
            f"--model: the files hold {len(models)} models, name one: {', '.join(one.model for one in models[:12])}"
        )
    result = aggregate(known, models[0], rule)
    root = result.root if node is None else _node(result.root, node)
    tables = [
        places(result, rule, root),
        *([items_table(root, items)] if items else []),
    ]
    figures = model_figures(result) | {"tree": tree_figures(root, items)}
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


def _of_model(scores: list[ModelScores], name: str | None) -> list[ModelScores]:
    matching = [one for one in scores if name in (None, one.model)]
    if not matching:
        raise UserError(f"--model: no scores of {name!r}: {near(str(name), (one.model for one in scores))}")
    return matching


def _node(root: Node, name: str) -> Node:
    every = list(root.walk())
    nodes = [node for node in every if node.path == name] or [node for node in every if node.path.split("/")[-1] == name]
    if not nodes:
        raise UserError(f"--node: no part {name!r}: {near(name, {node.path.split('/')[-1] for node in every if node.path})}")
    if len(nodes) > 1:
        raise UserError(f"--node: {name!r} is in several places, name one: {', '.join(node.path for node in nodes[:4])}")
    return nodes[0]


def _next_commands(out: Path, scores: bool, summaries: bool) -> list[str]:
    """What was written, and the commands that use it."""
    lines, scores_option = [], ""
    if scores:
        lines = [f"scores: {out / 'scores.jsonl'}   then: esc-eval ecdbench leaderboard --scores … --html board.html"]
        scores_option = f"--scores {out / 'scores.jsonl'} "
    if summaries:
        written, judged, to = out / "summaries.jsonl", out / "judged", out / "judged_scores.jsonl"
        config = "configs/eval/ecdbench_summaries.yaml"
        lines += [
            f"summaries: {written}   then:",
            f"  esc-eval run --only score --config {config} --judge YOURS --dialogues {written} --out {judged}",
            f"  esc-eval ecdbench judged --judgements {judged / 'judgements.jsonl'} --summaries {written} --to {to}",
            f"  esc-eval ecdbench aggregate {scores_option}--scores {to}",
        ]
    return lines


def _result_tables(benchmark: Benchmark, scores: Path) -> list[Table]:
    """A model's capabilities and datasets; where something cannot be run by anybody, also the total without it."""
    (one,) = read_scores([scores], benchmark)
    result = aggregate(benchmark, one)
    tables = [parts_table(benchmark, result)]
    if result.gated is None and benchmark.not_runnable:
        tables.append(parts_table(benchmark.runnable, aggregate(benchmark, one, "left_out"), "runnable"))
    return [*tables, datasets_table([result])]


def _left_out(missing: dict[str, str]) -> list[str]:
    """What will not be asked, a line a reason."""
    return [f"{len(missing)} datasets are not asked:", *left_out_lines(missing)] if missing else []
