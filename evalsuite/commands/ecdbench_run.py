"""`esc-eval ecdbench run` asks a model a benchmark's tasks and adds the scores up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from core.errors import UserError, need_modules
from core.files import write_jsonl
from core.options import ModelOption
from core.paths import IN_FILE, IN_FOLDER, IN_NAME
from core.specs import load_spec
from core.tables import Table
from evalsuite.commands.options import JsonOption, out_tables
from evalsuite.commands.output import deliver, exit_if_lost, plain
from evalsuite.fdaef.aggregate import aggregate
from evalsuite.fdaef.asking import Examination, plan_tasks
from evalsuite.fdaef.local_data import load_layout
from evalsuite.fdaef.registry import load_benchmark
from evalsuite.fdaef.scores import read_scores
from evalsuite.fdaef.summaries import summaries_table
from evalsuite.fdaef.tables import LEFT_OUT, datasets_table, left_out_table, parts_table
from evalsuite.runs.folder import open_run

console = Console()


def run(
    model: ModelOption,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Folder with the datasets' own files, in a folder each as configs/ecdbench/local.yaml says."
        ),
        IN_FOLDER,
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Run folder; the same command again asks only what is missing."),
        out_tables("ecdbench", "scores.jsonl", "summaries.jsonl", "datasets/*"),
    ] = Path("runs/ecdbench"),
    dataset: Annotated[
        list[str] | None, typer.Option("--dataset", help="Only these datasets, by their ids. Repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items a dataset; without it as the benchmark says (300).")] = None,
    seed: Annotated[int, typer.Option(help="Which items are drawn.")] = 0,
    hub: Annotated[
        bool, typer.Option("--hub", help="Let lm-eval download the data of its own tasks where --data has none.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat-template", help="Put every question into the model's chat template (for chat models).")
    ] = False,
    name: Annotated[str | None, typer.Option("--as", help="The model's name in scores and leaderboards.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer (folder or hub id) of a model that its spec gives no checkpoint for."), IN_NAME
    ] = None,
    benchmark: Annotated[
        str, typer.Option("--benchmark", help="A benchmark's YAML file; without it ECDBench 1.0."), IN_NAME
    ] = "ecdbench",
    layout: Annotated[
        Path | None, typer.Option("--layout", help="Your own layout of --data; see configs/ecdbench/local.yaml."), IN_FILE
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a model the benchmark's tasks (on lm-eval, zero-shot) and add the answers up to capabilities: OUT/scores.jsonl.

    A choice is answered by the likeliest option, so the model's server must tell log-probabilities of a prompt: vLLM does, chat
    APIs do not. Summaries are written through chat, OUT/summaries.jsonl, and scored by a judge of yours: how is printed. What
    cannot be run is listed with its reason, and the totals say what share of the benchmark they rest on.

    Example: esc-eval ecdbench run --model embedded --data corpora --limit 20 --out runs/ecdbench
    """
    console.quiet = as_json
    need_modules("lm_eval", purpose="running tasks")
    known, spec = load_benchmark(benchmark), load_spec(model)
    plan = plan_tasks(known, load_layout(layout), data, dataset, hub)
    plan.check()
    items = limit or known.sample or 300
    with open_run(out) as folder:
        examination = Examination(known, spec, name or spec.name, items, seed, chat, tokenizer, console)
        scores, summaries = examination.ask(folder, plan)
    tables: list[Table] = []
    if plan.local or plan.hub:
        write_jsonl(out / "scores.jsonl", scores)
        if not scores:
            raise UserError(f"{out}: no task gave a score for a metric of {known.name}")
        result = aggregate(known, next(iter(read_scores([out / "scores.jsonl"], known))))
        tables += [parts_table(known, result), datasets_table([result])]
    if summaries:
        tables.append(summaries_table(known, summaries))
    if plan.missing:
        tables.append(left_out_table(known, plan.missing))
    if deliver("ecdbench", plain(tables), tables, out, as_json, [table for table in tables if table.key != LEFT_OUT]):
        for line in _left_out(plan.missing, out):
            console.print(Text(line))
        console.print(Text("\n".join(_next_commands(out, bool(scores), bool(summaries)))), soft_wrap=True)
    exit_if_lost(sum(dialogue.lost for dialogue in summaries), len(summaries), "summaries")


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
            f"  esc-eval score --config {config} --judge YOURS --dialogues {written} --out {judged}",
            f"  esc-eval ecdbench judged --judgements {judged / 'judgements.jsonl'} --summaries {written} --to {to}",
            f"  esc-eval ecdbench aggregate {scores_option}--scores {to}",
        ]
    return lines


def _left_out(missing: dict[str, str], out: Path) -> list[str]:
    """What was not run, a line a reason."""
    reasons: dict[str, list[str]] = {}
    for key, why in missing.items():
        reasons.setdefault(why, []).append(key)
    lines = [f"- {why}: {', '.join(keys)}" for why, keys in reasons.items()]
    return [f"{len(missing)} datasets were not run ({out / LEFT_OUT}.csv):", *lines] if missing else []
