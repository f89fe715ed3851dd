"""`esc-eval ecdbench run` asks a model a benchmark's tasks and adds the scores up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from core.errors import UserError, near, need_modules
from core.files import digest, read_jsonl, sha256_file, write_jsonl
from core.paths import IN_FILE, IN_FOLDER, IN_NAME
from core.prompts import load_pack
from core.specs import ModelSpec, load_spec
from core.tables import Table
from evalsuite.commands.options import EndpointOption, endpoints_of, out_tables
from evalsuite.commands.output import deliver, exit_if_lost, plain
from evalsuite.fdaef.aggregate import aggregate
from evalsuite.fdaef.forms import Doc
from evalsuite.fdaef.local_data import SUMMARY, Layout, Part, find_files, load_layout, read_part
from evalsuite.fdaef.registry import Benchmark, load_benchmark
from evalsuite.fdaef.scores import Score, read_scores
from evalsuite.fdaef.summaries import sampled, summaries_table, summarise
from evalsuite.fdaef.tables import GAPS, cell_of, datasets_table
from evalsuite.runs.folder import Run, open_run
from evalsuite.runs.identity import identity
from serve.batch import Batch
from serve.checkpoints.places import resolve_checkpoint
from serve.launch import Servers
from serve.plan import plan_servers

console = Console()
CONTEXT = 2048  # tokens that a model behind an address is taken to read, unless its spec says more
CONCURRENCY = 32
LEFT_OUT = "not_run"

Files = list[tuple[Part, list[Path]]]
Todo = list[tuple[str, Path, list[tuple[Part, list[Doc]]]]]


@dataclass(frozen=True)
class _Plan:
    """What is to be asked: dataset → its parts with their files, datasets with lm-eval's own data, datasets to be summarised;
    and what is not, and why."""

    local: dict[str, Files]
    hub: list[str]
    summaries: dict[str, Files]
    missing: dict[str, str]


def run(
    model: Annotated[str, typer.Option("--model", help="Model to ask: a name in configs/models, or a spec file."), IN_NAME],
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
    endpoint: EndpointOption = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer (folder or hub id) of a model that its spec gives no checkpoint for."), IN_NAME
    ] = None,
    benchmark: Annotated[
        str, typer.Option("--benchmark", help="A benchmark's YAML file; without it ECDBench 1.0."), IN_NAME
    ] = "ecdbench",
    layout: Annotated[
        Path | None, typer.Option("--layout", help="Your own layout of --data; see configs/ecdbench/local.yaml."), IN_FILE
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")] = False,
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
    places = load_layout(layout)
    plan, url = _plan(known, places, data, dataset, hub), _address(spec, endpoints_of(endpoint))
    if not plan.local and not plan.hub and not plan.summaries:
        reasons = "; ".join(f"{key}: {why}" for key, why in list(plan.missing.items())[:4])
        raise UserError(f"nothing to ask: {reasons}" + (" …" if len(plan.missing) > 4 else ""))
    count, called = limit or known.sample or 300, name or spec.name
    with open_run(out) as folder:
        folder.claim(
            "ecdbench",
            {
                "benchmark": {"name": known.name, "sha256": digest(known.model_dump(mode="json"))},
                "model": identity(spec),
                "as": called,
                "limit": count,
                "seed": seed,
                "chat_template": chat,
                "lm_eval": version("lm_eval"),
            },
        )
        if plan.summaries:
            folder.claim("summaries", {"prompts": load_pack(SUMMARY).fingerprint()})
        with folder.timed("ecdbench"), ExitStack() as servers:
            rows, todo = _finished(folder, plan)
            documents = [one for key, files in plan.summaries.items() for one in sampled(key, _docs(files), count, seed)]
            if todo:
                url = servers.enter_context(_served(folder, spec, url))
            written = []
            if documents:  # first: chat is less than what lm-eval needs of a server
                with Batch(spec, folder.store.path, console, url) as batch:
                    written = summarise(batch, documents, called)
                write_jsonl(out / "summaries.jsonl", written)
            if todo and url:
                rows += _ask_all(url, known, spec, todo, called, count, seed, chat, tokenizer, plan.missing)
    tables: list[Table] = []
    if plan.local or plan.hub:
        write_jsonl(out / "scores.jsonl", rows)
        if not rows:
            raise UserError(f"{out}: no task gave a score for a metric of {known.name}")
        result = aggregate(known, next(iter(read_scores([out / "scores.jsonl"], known))))
        tables += [_capabilities(known, result), datasets_table([result])]
    if written:
        tables.append(summaries_table(known, written))
    if plan.missing:
        tables.append(_left_out(known, plan.missing))
    if deliver("ecdbench", plain(tables), tables, out, as_json, [table for table in tables if table.key != LEFT_OUT]):
        for line in _grouped(plan.missing, out):
            console.print(Text(line))
        console.print(Text("\n".join(_next(out, bool(rows), bool(written)))), soft_wrap=True)
    exit_if_lost(sum(dialogue.lost for dialogue in written), len(written), "summaries")


def _next(out: Path, scores: bool, summaries: bool) -> list[str]:
    """What was written, and the commands that use it."""
    said = [f"scores: {out / 'scores.jsonl'}   then: esc-eval ecdbench leaderboard --scores … --html board.html"] * scores
    if summaries:
        own, judged, to = out / "summaries.jsonl", out / "judged", out / "judged_scores.jsonl"
        config = "configs/eval/ecdbench_summaries.yaml"
        both = f"--scores {out / 'scores.jsonl'} " * scores
        said += [
            f"summaries: {own}   then:",
            f"  esc-eval score --config {config} --judge YOURS --dialogues {own} --out {judged}",
            f"  esc-eval ecdbench judged --judgements {judged / 'judgements.jsonl'} --summaries {own} --to {to}",
            f"  esc-eval ecdbench aggregate {both}--scores {to}",
        ]
    return said


def _plan(known: Benchmark, layout: Layout, data: Path | None, wanted: list[str] | None, hub: bool) -> _Plan:
    """What can be asked: files where they are, lm-eval's own data with `hub`. Raises `UserError` for unknown names."""
    for key in (*(wanted or []), *layout.datasets):
        if key not in known.datasets:
            raise UserError(f"dataset {key!r}: {known.name} has none of this name: {near(key, known.datasets)}")
        if any((part.task == SUMMARY) != _judged(known, key) for part in layout.datasets.get(key, [])):
            raise UserError(
                f"dataset {key!r}: task {SUMMARY} is for datasets that {known.name} has `run: {{by: judge}}`, and only it"
            )
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data}: no such folder")
    local: dict[str, Files] = {}
    summaries: dict[str, Files] = {}
    own, missing = [], {}
    for key in wanted or known.datasets:
        runner, parts = known.datasets[key].run, layout.datasets.get(key, [])
        found = [(part, find_files(data, part)) for part in parts] if data else []
        there = [(part, files) for part, files in found if files]
        if there:
            (summaries if _judged(known, key) else local)[key] = there
        elif hub and runner is not None and runner.by == "lm_eval":
            own.append(key)
        elif runner is not None and runner.reason:
            missing[key] = runner.reason
        elif runner is not None and runner.by == "adapter":
            missing[key] = "needs your own licensed copy: put its answers into a score file (see `aggregate --scores`)"
        elif runner is not None and runner.by == "lm_eval":
            missing[key] = "lm-eval can download it (--hub)" + (f"; no {parts[0].files[0]} in --data" if parts else "")
        elif parts:
            missing[key] = f"no {parts[0].files[0]} in {data}" if data else "needs --data"
        else:
            form = "documents" if _judged(known, key) else "items"
            missing[key] = (
                f"no reader for its files: give it in the form `{form}` with --layout (see configs/ecdbench/local.yaml)"
            )
    return _Plan(local, own, summaries, missing)


def _judged(known: Benchmark, key: str) -> bool:
    runner = known.datasets[key].run
    return runner is not None and runner.by == "judge"


def _finished(folder: Run, plan: _Plan) -> tuple[list[Score], Todo]:
    """The scores of datasets that the folder has with the same files, and what lm-eval is to ask: dataset, where its scores go,
    documents."""
    done: list[Score] = []
    todo: Todo = []
    for key in (*plan.local, *plan.hub):
        parts = plan.local.get(key, [])
        print_of_files = digest([[part.model_dump(), [sha256_file(file) for file in files]] for part, files in parts], 8)
        path = folder.folder / "datasets" / f"{key}-{print_of_files}.jsonl"
        if path.is_file():
            done += read_jsonl(path, Score, "scores", allow_empty=True)
        else:
            todo.append((key, path, [(part, _read(part, files)) for part, files in parts]))
    return done, todo


def _docs(parts: Files) -> list[Doc]:
    return [doc for part, files in parts for doc in _read(part, files)]


def _ask_all(
    url: str,
    known: Benchmark,
    spec: ModelSpec,
    todo: Todo,
    called: str,
    limit: int,
    seed: int,
    chat: bool,
    tokenizer: str | None,
    missing: dict[str, str],
) -> list[Score]:
    """What lm-eval is to ask of the model at `url`; every dataset's scores are written when it is finished. Datasets that it
    cannot download are added to `missing`, with the reason."""
    from evalsuite.fdaef.tasks import Unanswered, Unavailable, ask, hub_tasks, language_model, load_manager, local_tasks

    found: list[Score] = []
    context = spec.context_length or CONTEXT
    source = tokenizer or (resolve_checkpoint(spec.checkpoint, f"model {spec.name}: checkpoint") if spec.checkpoint else None)
    lm = language_model(url, spec.served_name(), source, spec.api_key(), context, CONCURRENCY)
    manager = load_manager()
    for number, (key, path, given) in enumerate(todo, start=1):
        started = time.perf_counter()
        try:
            tasks = local_tasks(manager, given) if given else hub_tasks(manager, known.datasets[key])
        except Unavailable as error:  # the others can still be asked
            missing[key] = str(error)
            continue
        try:
            asked = ask(known, key, tasks, lm, called, limit, seed, chat)
        except Unanswered as error:
            raise UserError(_lost(spec, url, key, error)) from None
        path.parent.mkdir(exist_ok=True)
        write_jsonl(path, asked.scores)
        found += asked.scores
        took = time.perf_counter() - started
        console.print(Text(_line(known, key, asked, f"{number}/{len(todo)}", took)), soft_wrap=True)
    return found


def _read(part: Part, files: list[Path]) -> list[Doc]:
    docs, step = read_part(part, files)
    for reason, count in step.dropped.items():
        console.print(Text(f"{files[0].parent.name}: {count} left out: {reason}"), soft_wrap=True)
    return docs


def _address(spec: ModelSpec, endpoints: dict[str, str]) -> str | None:
    """Where the model answers already: the address given, or the spec's own."""
    for given in endpoints:
        if given != spec.name:
            raise UserError(f"endpoint for {given!r}: the model of this run is {spec.name!r}")
    return endpoints.get(spec.name) or spec.endpoint.base_url


@contextmanager
def _served(folder: Run, spec: ModelSpec, url: str | None) -> Iterator[str]:
    """Where the model answers: the address given, or a server that is up while the block runs."""
    if url:
        yield url
        return
    from evalsuite.fdaef.completions import ALTERNATIVES

    more = (*spec.serve.extra_args, "--max-logprobs", str(ALTERNATIVES))
    told = spec.model_copy(update={"serve": spec.serve.model_copy(update={"extra_args": more})})
    with Servers(plan_servers([told], folder.logs)) as servers:
        yield servers.endpoints[spec.name]


def _lost(spec: ModelSpec, url: str, key: str, error: Exception) -> str:
    what = str(error).replace(spec.api_key() or "\0", "…")[:300]
    return (
        f"{spec.name} at {url} did not answer {key} in a way that log-probabilities can be read from ({what}). It needs "
        "POST /completions with `echo` and `logprobs`, as vLLM has it. What is done is kept: the same command goes on from here"
    )


def _line(known: Benchmark, key: str, asked: Any, place: str, took: float) -> str:
    scores = [score for score in asked.scores if score.metric in ("accuracy", "preferred") and score.value is not None]
    drawn = f"{asked.items} of {asked.available}" if asked.items < asked.available else f"all {asked.items}"
    text = f"{place} {known.datasets[key].label}: {drawn} items, {took:.0f} s"
    if scores:
        text += f", accuracy {100 * sum(float(s.value) for s in scores) / len(scores):.1f}"
        text += f", chance {100 * sum(s.chance or 0 for s in scores) / len(scores):.1f}" if scores[0].chance is not None else ""
    text += f", majority class {100 * asked.majority:.1f}" if asked.majority is not None else ""
    return text + (f"; {asked.cut} questions were longer than the context and lost their beginning" if asked.cut else "")


def _capabilities(known: Benchmark, result: Any) -> Table:
    """The total, and every capability as far as there is something to add up."""
    rows = [(node.label, node.score, cell_of(node), 100 * node.share, node.n) for node in (result.root, *result.root.children)]
    tail = f" and {len(result.reasons) - GAPS} more" if len(result.reasons) > GAPS else ""
    why = f"No total: {'; '.join(result.reasons[:GAPS])}{tail}." if result.reasons else ""
    return Table(
        key="capabilities",
        title=f"{known.title}: {result.model}, 0 to 100",
        columns=("part", "score", "partial [95 % interval]", "share of weights %", "items"),
        rows=tuple(rows),
        notes=tuple(filter(None, [why, "partial: over what was run; a score needs all of its datasets."])),
    )


def _left_out(known: Benchmark, missing: dict[str, str]) -> Table:
    rows = tuple((key, known.datasets[key].label, why) for key, why in missing.items())
    return Table(LEFT_OUT, "Datasets that were not run", ("dataset", "name", "why"), rows)


def _grouped(missing: dict[str, str], out: Path) -> list[str]:
    """What was not run, a line a reason."""
    if not missing:
        return []
    reasons: dict[str, list[str]] = {}
    for key, why in missing.items():
        reasons.setdefault(why, []).append(key)
    lines = [f"- {why}: {', '.join(keys)}" for why, keys in reasons.items()]
    return [f"{len(missing)} datasets were not run ({out / LEFT_OUT}.csv):", *lines]
