"""`esc-eval paper ecdbench …`: scores of tasks aggregated to capabilities and one total (ECDBench, or your own benchmark)."""

from pathlib import Path
from shlex import quote
from typing import Annotated, get_args

import typer

from core.errors import UserError, near, need_modules
from core.files import write_jsonl
from core.grouping import group_by
from core.options import choice
from core.paths import IN_FOLDER, InName, MaybeFiles, MaybeModel
from core.specs import load_spec
from core.tables import Screen, Table
from core.verbs import Verbs
from evalsuite.commands.options import JsonOption, out_tables, refuse
from evalsuite.commands.output import deliver, exit_if_lost, plain
from evalsuite.papers.ecdbench.aggregate import Missing, Node, aggregate
from evalsuite.papers.ecdbench.figures import charts, write_page
from evalsuite.papers.ecdbench.plan import Examination, coverage, layout_of, plan_table, plan_tasks
from evalsuite.papers.ecdbench.registry import load_benchmark, load_models
from evalsuite.papers.ecdbench.scores import read_scores
from evalsuite.papers.ecdbench.tables import (
    counts_table,
    datasets_table,
    items_table,
    leaderboard,
    metrics_table,
    parts_table,
    places,
    published_scores,
    ranks_table,
    registry_table,
    separation_table,
)
from evalsuite.papers.ecdbench.tasks import judge_summaries, resolved_judge
from evalsuite.runs.folder import open_run

LOWEST = 5  # single items of every method that `table --node` shows
app = Verbs(
    no_args_is_help=True,
    help="ECDBench: results of its tasks aggregated to capabilities and one total, by the paper's algorithms 1 to 5. Also for "
    "a benchmark of your own, described in one YAML file.",
    epilog="Example: esc-eval paper ecdbench table --published --out board",
)

BenchmarkOption = Annotated[
    InName,
    typer.Option("--benchmark", help="A benchmark's YAML file. Default: ECDBench 1.0 (configs/ecdbench/registry.yaml)."),
]


@app.command("run")
def run(
    model: Annotated[
        MaybeModel,
        typer.Option("--model", metavar="MODEL", help="The model to ask (a spec, or NAME@URL). Without it, print the plan."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder with the datasets' files, laid out as in configs/ecdbench/local.yaml, or as in its own layout.yaml of "
            "the same form.",
        ),
        IN_FOLDER,
    ] = None,
    judge: Annotated[
        MaybeModel,
        typer.Option("--judge", metavar="MODEL", help="The judge of summaries (a spec). Without it, they are only written."),
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="Only these datasets, by their ids. Repeat.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items per dataset. Default: the benchmark's own (300).")] = None,
    hub: Annotated[
        bool, typer.Option("--hub", help="Let lm-eval download data of its own tasks that --data does not have.")
    ] = False,
    benchmark: BenchmarkOption = "ecdbench",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder (runs/ecdbench). The same command resumes."),
        out_tables("ecdbench", "plan.json", "scores.jsonl", "summaries.jsonl", "datasets/*", "judged/*"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the benchmark's tasks on a model (with lm-eval, zero-shot) and aggregate to capabilities: OUT/scores.jsonl.

    Without --model, print the plan: every dataset with its weight, and whether it runs, needs a file, or cannot be run and why.
    Malformed files are reported in one line each, before any call.

    A choice is answered by the likeliest option, so the model's server must return log-probabilities of a prompt: vLLM does,
    chat APIs do not. Summaries are written in chat, OUT/summaries.jsonl, and scored by --judge in OUT/judged. The first total
    is the benchmark's, null if a part is missing; the second leaves out tasks that nobody can run.

    Example: esc-eval paper ecdbench run --model embedded --judge embedded --data corpora --limit 20
    """
    registry = load_benchmark(benchmark)
    planned = plan_tasks(registry, layout_of(data), data, dataset, hub)
    if model is None:
        refuse("no model is asked without --model", judge=judge, limit=limit)
        table = plan_table(registry, planned)
        deliver("plan", plain([table]) | {"notes": table.notes}, [table], out, as_json)
        return
    notices, out = Screen(quiet=as_json), out or Path("runs/ecdbench")
    need_modules("lm_eval", purpose="running tasks")
    spec = load_spec(model)
    planned.check()
    judging = resolved_judge(out, judge) if judge and planned.summaries else None
    by_reason = group_by(planned.missing, planned.missing.__getitem__)
    for line in (
        coverage(registry, planned),
        *(f"not asked: {', '.join(keys)}: {reason}" for reason, keys in by_reason.items()),
    ):
        notices.print(line, soft_wrap=True)
    with open_run(out) as folder:
        scores, summaries = Examination(registry, spec, limit or registry.sample or 300, notices).ask(folder, planned)
    lost = sum(dialogue.lost for dialogue in summaries)
    if summaries and judging and not lost:
        if judging.models.judge.name == spec.name:
            notices.print(f"{spec.name} scores its own summaries: read completeness and conciseness with care")
        scores += judge_summaries(judging, summaries, notices)
    tables: list[Table] = []
    if planned.local or planned.hub or scores:
        write_jsonl(out / "scores.jsonl", scores)
        if not scores:
            raise UserError(f"{out}: no task gave a score for a metric of {registry.name}")
        (model_scores,) = read_scores([out / "scores.jsonl"], registry)
        result = aggregate(registry, model_scores)
        tables.append(parts_table(registry, result))
        if result.gated is None and registry.not_runnable:
            tables.append(parts_table(registry.runnable, aggregate(registry, model_scores, "left_out"), "runnable"))
        tables.append(datasets_table([result]))
    shown = list(tables)
    if planned.missing:
        rows = tuple((key, registry.datasets[key].label, reason) for key, reason in planned.missing.items())
        tables.append(Table("not_run", "Datasets that were not run", ("dataset", "name", "why"), rows))
    if deliver("ecdbench", plain(tables), tables, out, as_json, shown):
        if scores:
            board = f"esc-eval paper ecdbench table --scores {quote(str(out / 'scores.jsonl'))} --out board"
            notices.print(f"scores: {out / 'scores.jsonl'}   then: {board}", soft_wrap=True)
        if summaries and judging is None:
            written = sum(dialogue.exchanges > 0 for dialogue in summaries)
            notices.print(f"{written} of {len(summaries)} summaries: {out / 'summaries.jsonl'}; --judge MODEL scores them")
    exit_if_lost(lost, len(summaries), "summaries")


@app.command("table")
def table(
    scores: Annotated[
        MaybeFiles,
        typer.Option(
            "--scores",
            help="Score file (JSON lines) of items, whole datasets, or whole parts; evalsuite/papers/ecdbench/scores.py "
            "describes the form. Repeat for more files.",
        ),
    ] = None,
    published: Annotated[bool, typer.Option("--published", help="The 30 models of the paper's table 5 as well.")] = False,
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            help="Break one model's scores down below this part: its path (companionship/memory), its last id (longmemeval), "
            "or total.",
        ),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            help="How to treat a dataset without scores. null: as missing, so parts above it get only a partial score. zero: "
            "as 0, as in algorithms 3 and 4. left_out: as null, but datasets that nobody can run, or that are undefined on a "
            "model's answers, are left out of all weights.",
        ),
    ] = "null",
    benchmark: BenchmarkOption = "ecdbench",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the figures as JSON, every table as CSV, and figures 4 to 7 in ecdbench.html."),
        out_tables("*", "ecdbench.html"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Models in order of their totals, with intervals over items (table 5, figures 4 to 7).

    Totals are given as on the paper's leaderboard and by its algorithm 5, which makes them 0 below the gate. If a part is
    missing, the total is null with the reason, and a partial total is given with the share of the benchmark behind it. With
    several models, tables show how far ranks depend on items and weights. --node breaks one part down to single methods and
    items, with weights, chance levels and missing scores.

    Without scores: the benchmark's contents, every task, dataset and method with licence and source (table 6), how every metric
    is mapped to 0 to 100, and table 1's counts.

    Example: esc-eval paper ecdbench table --scores a.jsonl --scores b.jsonl --out board
    """
    rule: Missing = choice("--missing", missing, get_args(Missing))
    registry = load_benchmark(benchmark)
    if not scores and not published:
        refuse("there are no scores: give --scores FILE, --published or both", model=model, node=node)
        contents = list(filter(None, (registry_table(registry), metrics_table(registry), counts_table(registry))))
        deliver("ecdbench", plain(contents), contents, out, as_json)
        return
    if published and benchmark != "ecdbench":
        raise UserError("--published is ECDBench's table 5: it does not fit another --benchmark")
    by_model = (published_scores(registry) if published else []) + (read_scores(scores, registry) if scores else [])
    names = [model_scores.model for model_scores in by_model]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--scores: {doubled[0]!r} is also in the paper's table 5: name yours differently")
    chosen = [model_scores for model_scores in by_model if model in (None, model_scores.model)]
    if not chosen:
        raise UserError(f"--model: no scores of {model!r}: {near(str(model), names)}")
    results = [aggregate(registry, model_scores, rule) for model_scores in chosen]
    if node is not None:
        if len(results) > 1:
            raise UserError(f"--node: {len(results)} models have scores; name one with --model: {', '.join(names[:12])}")
        root = results[0].root if node == "total" else _node(results[0].root, node)
        tables = [places(results[0], rule, root), *(table for table in [items_table(root, LOWEST)] if table.rows)]
        printed = tables if root.layer in ("dataset", "method") else tables[:1]
        deliver("explain", plain(tables), tables, out, as_json, printed)
        return
    registry = registry.runnable if rule == "left_out" else registry
    board = leaderboard(registry, results, rule)
    comparisons = [ranks_table(registry, results, chosen), separation_table(results)] if len(results) > 1 else []
    tables = [board, *(table for table in (*comparisons, datasets_table(results)) if table.rows)]
    figures = charts(registry, results, load_models("models"))
    summary = {"benchmark": registry.name, "missing": missing, "notes": board.notes} | plain(tables)
    summary["charts"] = {chart.key: chart.figure["traces"] for chart in figures}
    deliver("ecdbench", summary, tables, out, as_json, tables[:2])
    if out is not None:
        shown = results[0].model if len(results) == 1 else f"{len(results)} models"
        write_page(out / "ecdbench.html", f"{registry.title}: {shown}", figures, tables)


def _node(root: Node, name: str) -> Node:
    ids = [(node.path.split("/")[-1], node) for node in root.walk()]
    nodes = [node for _, node in ids if node.path == name] or [node for id, node in ids if id == name]
    if not nodes:
        raise UserError(f"--node: no part {name!r}: {near(name, {id for id, _ in ids if id})}")
    if len(nodes) > 1:
        raise UserError(f"--node: {name!r} is in several places, name one: {', '.join(node.path for node in nodes[:4])}")
    return nodes[0]
