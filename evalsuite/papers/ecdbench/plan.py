"""A benchmark's run on a model: the plan, made before any call (which datasets can run, on which data, and which cannot and
why), and its execution.

`configs/ecdbench/local.yaml` says which files belong to which dataset and how they are read (`forms`, beside this file). A
document is a dict: for a task of lm-eval, with that task's columns; for ours, with the columns that its file in
configs/ecdbench/tasks names and `gold`, the list of right choices (from 0). Items without an answer are left out and counted.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import Field
from rich.console import Console
from rich.text import Text

from core.errors import UserError, at, near
from core.files import CONFIGS, digest, read_jsonl, sha256_file, write_jsonl
from core.ledger import BuildStep
from core.prompts import load_pack
from core.records import Dialogue
from core.rows import CorpusReader
from core.settings import Settings, read_yaml
from core.specs import ModelSpec
from core.tables import Cell, Table
from evalsuite.papers.ecdbench import tasks
from evalsuite.papers.ecdbench.aggregate import aggregate
from evalsuite.papers.ecdbench.forms import Doc, ReadForm
from evalsuite.papers.ecdbench.forms.foundational import FOUNDATIONAL, SUMMARISED
from evalsuite.papers.ecdbench.forms.people import ABOUT_PEOPLE
from evalsuite.papers.ecdbench.registry import Benchmark, Dataset
from evalsuite.papers.ecdbench.scores import ModelScores, TaskScore
from evalsuite.papers.ecdbench.tasks import SUMMARY
from evalsuite.runs.folder import Run
from evalsuite.runs.run_config import identity
from serve.batch import Batch
from serve.checkpoints.places import resolve_checkpoint
from serve.client import ChatClient
from serve.launch import Servers
from serve.plan import plan_servers

# The field that a document of our own tasks needs for a metric, by the metric's name or the kind of its items.
NEEDS = {
    **dict.fromkeys(("accuracy", "preferred", "recall_at_k", "mrr", "macro_f1"), "gold"),
    **dict.fromkeys(("exact_match", "micro_f1"), "group"),
    **dict.fromkeys(("f1", "stereoset_lms", "stereoset_ss"), "labels"),
    "points": "points",
    "rouge_l": "references",
}
OURS = "esc_"  # prefix of our own tasks' names
FORMS: dict[str, ReadForm] = {**FOUNDATIONAL, **ABOUT_PEOPLE}  # a reader for every kind of publisher's file
SUMMARIES = {"documents", *SUMMARISED}  # forms of texts to summarise


class Part(Settings):
    """One set of a dataset's files: the task to run on them, their form, and the category to keep (None: all)."""

    task: str
    form: str
    files: Annotated[list[str], Field(min_length=1)]
    category: str | None = None


Files = list[tuple[Part, list[Path]]]


class Layout(Settings):
    """Dataset → its parts. Files are paths below the data folder, as patterns."""

    datasets: dict[str, list[Part]]


def layout_of(data: Path | None) -> Layout:
    """A data folder's layout: its own layout.yaml, else configs/ecdbench/local.yaml. Raises `UserError` for a form that is
    unknown or does not fit the task."""
    own = data and data / "layout.yaml"
    path = own if own and own.is_file() else CONFIGS / "ecdbench" / "local.yaml"
    layout = read_yaml(path, Layout, "layout of local data")
    for name, part in ((name, part) for name, parts in layout.datasets.items() for part in parts):
        with at(f"{path}: datasets.{name}"):
            if part.form not in FORMS:
                raise UserError(f"unknown form {part.form!r}: {near(part.form, FORMS)}")
            if absolute := [pattern for pattern in part.files if Path(pattern).is_absolute()]:
                raise UserError(f"files: {absolute[0]} is not below the data folder")
            if (part.form in SUMMARIES) != (part.task == SUMMARY):
                raise UserError(f"task {SUMMARY} needs a form of {', '.join(sorted(SUMMARIES))}")
    return layout


def read_parts(files: Files) -> list[tuple[Part, list[Doc], BuildStep]]:
    """The documents of all parts of a dataset in file order, and the counts of items left out. A category without items is left
    out. Raises `UserError` with file and line for malformed items, and if no item is left."""
    parts = []
    for part, paths in files:
        step = BuildStep(part.task)
        docs = FORMS[part.form](paths, CorpusReader(step, strict=True, tidy=False))
        if kept := [doc for doc in docs if part.category in (None, doc.get("category"))]:
            parts.append((part, kept, step))
    if files and not parts:
        part, paths = files[0]
        raise UserError(f"{paths[0]}: no item{f' of category {part.category!r}' if part.category else ''} with an answer")
    return parts


# --- the plan ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskPlan:
    """The datasets to run: from local files (dataset → parts with files), with lm-eval's own data, and to be summarised; and
    the others (dataset → why not)."""

    local: dict[str, Files]
    hub: list[str]
    summaries: dict[str, Files]
    missing: dict[str, str]

    def check(self) -> None:
        """Raise `UserError` if no dataset can run."""
        if not self.local and not self.hub and not self.summaries:
            reasons = "; ".join(f"{key}: {reason}" for key, reason in list(self.missing.items())[:4])
            raise UserError(f"no dataset can run: {reasons}" + (" …" if len(self.missing) > 4 else ""))


def plan_tasks(benchmark: Benchmark, layout: Layout, data: Path | None, wanted: list[str] | None, hub: bool) -> TaskPlan:
    """The plan for local files, or lm-eval's own data with `hub`. Raises `UserError` for unknown names."""
    for key in (*(wanted or []), *layout.datasets):
        if key not in benchmark.datasets:
            raise UserError(f"dataset {key!r}: {benchmark.name} has no such dataset: {near(key, benchmark.datasets)}")
        if any((part.task == SUMMARY) != benchmark.datasets[key].judged for part in layout.datasets.get(key, [])):
            raise UserError(
                f"dataset {key!r}: the layout must have task {SUMMARY} exactly if {benchmark.name} has `run: {{by: judge}}`"
            )
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data}: no such folder")
    plan = TaskPlan({}, [], {}, {})
    for key in wanted or benchmark.datasets:
        dataset, parts, files = benchmark.datasets[key], layout.datasets.get(key, []), []
        for part in parts if data else ():
            matches = [sorted(data.glob(pattern)) for pattern in part.files] if data else []
            if all(matches):  # in the patterns' order
                files.append((part, list(chain.from_iterable(matches))))
        if files:
            (plan.summaries if dataset.judged else plan.local)[key] = files
        elif hub and dataset.run is not None and dataset.run.by == "lm_eval":
            plan.hub.append(key)
        else:
            plan.missing[key] = _why_not(dataset, parts[0].files[0] if parts else None)
    return plan


def _why_not(dataset: Dataset, file: str | None) -> str:
    form = "documents" if dataset.judged else "items"
    missing = f"no {file}" if file else f"needs a file in the form `{form}` and a layout.yaml (see configs/ecdbench/local.yaml)"
    if dataset.run is not None and dataset.run.reason:
        return dataset.run.reason
    why = {"adapter": "needs your own licensed copy", "lm_eval": "lm-eval downloads it with --hub"}
    return "; ".join(filter(None, [why.get(dataset.run.by) if dataset.run else None, missing]))


def read_dataset(benchmark: Benchmark, key: str, files: Files) -> list[tuple[Part, list[Doc], BuildStep]]:
    """A dataset's documents, part by part. Raises `UserError` for malformed files, and for a part whose task cannot score one
    of the dataset's metrics: nobody should pay for calls that measure nothing."""
    parts = read_parts(files)
    methods = [method for method in benchmark.datasets[key].methods if method.unavailable is None]
    fields = {m.metric: NEEDS.get(m.metric) or NEEDS.get(benchmark.metrics[m.metric].items) for m in methods}
    for part, docs, _ in parts:
        missing = [metric for metric, field in fields.items() if field not in docs[0]]
        if missing and part.task.startswith(OURS):  # not known for lm-eval's own tasks
            raise UserError(
                f"dataset {key!r}: form {part.form} with task {part.task} gives no score for {', '.join(missing)}: "
                "name another in the layout (configs/ecdbench/local.yaml has one for every dataset)"
            )
    return parts


def plan_table(benchmark: Benchmark, plan: TaskPlan) -> Table:
    """Every dataset of a plan with its state, items and weights, and how it runs or why not. Reads all files."""
    shares, local = method_shares(benchmark), plan.local | plan.summaries
    rows: list[dict[str, Cell]] = []
    for key in (key for key in benchmark.datasets if key in {*local, *plan.hub, *plan.missing}):
        dataset, items = benchmark.datasets[key], None
        if key in plan.missing:
            state, how = "cannot run" if dataset.run is not None and dataset.run.reason else "needs a file", plan.missing[key]
        elif key in local:
            parts = read_dataset(benchmark, key, local[key])
            tasks = ", ".join(part.task for part, _, _ in parts[:3]) + (", …" if len(parts) > 3 else "")
            missing = [f"no {method.metric}: {method.unavailable}" for method in dataset.methods if method.unavailable]
            state, how = "runs", "; ".join(["summaries, for a judge (--judge)" if dataset.judged else tasks, *missing])
            items = sum(len({doc["group"] for doc in docs} if "group" in docs[0] else docs) for _, docs, _ in parts)
        else:
            state, how = "runs", f"lm-eval downloads {dataset.run and dataset.run.task}"
        row: dict[str, Cell] = {"dataset": key, "state": state, "items": items}
        for target, by_method in shares.items():
            row[f"% of {target}"] = 100 * sum(share for (name, _), share in by_method.items() if name == key) or None
        rows.append(row | {"how, or why not": how})
    return Table.of("plan", f"{benchmark.title}: what would run", rows, [coverage(benchmark, plan)])


def method_shares(benchmark: Benchmark) -> dict[str, dict[tuple[str, str], float]]:
    """The weight of every method: (dataset, metric) → share of the total and, separately, of the gate."""
    gate = benchmark.gate.capability if benchmark.gate else None
    shares: dict[str, dict[tuple[str, str], float]] = {"total": {}, "gate": {}} if gate else {"total": {}}
    weights = {"": 1.0}
    for node in aggregate(benchmark, ModelScores("", {}, {})).root.walk():
        if node.path:
            weights[node.path] = weights[node.path.rpartition("/")[0]] * (1.0 if node.path == gate else node.weight)
        if node.layer == "method":
            capability, *_, dataset, metric = node.path.split("/")
            by_method = shares["gate" if capability == gate else "total"]
            by_method[dataset, metric] = by_method.get((dataset, metric), 0) + weights[node.path]
    return shares


def coverage(benchmark: Benchmark, plan: TaskPlan) -> str:
    """How much of the benchmark a plan covers."""
    runs = {*plan.local, *plan.hub, *plan.summaries}
    unavailable = {(name, m.metric) for name in runs for m in benchmark.datasets[name].methods if m.unavailable}
    parts = [f"{len(runs)} of {len(benchmark.datasets)} datasets are asked"]
    for target, shares in method_shares(benchmark).items():
        covered = sum(share for method, share in shares.items() if method[0] in runs and method not in unavailable)
        parts.append(f"{100 * covered:.1f} % of the weights of the {target}")
    return ", ".join(parts) + (", with a judge of the summaries (--judge)." if plan.summaries else ".")


# --- the tested model -------------------------------------------------------------------------------------------------------

CONTEXT = 2048  # tokens, for a model behind an address whose spec does not say
Docs = list[tuple[str, list[Doc]]]  # the documents of every task of a dataset


@dataclass(frozen=True)
class Examination:
    """A model and the items to ask it: `limit` of each dataset. `console` gets a line per dataset."""

    benchmark: Benchmark
    spec: ModelSpec
    limit: int
    console: Console

    def ask(self, run: Run, plan: TaskPlan) -> tuple[list[TaskScore], list[Dialogue]]:
        """Scores of lm-eval's tasks, and summaries, which are also in summaries.jsonl. Datasets already in the run folder with
        the same files are not asked again. Datasets that lm-eval cannot download are added to `plan.missing`."""
        benchmark = {"name": self.benchmark.name, "sha256": digest(self.benchmark.model_dump(mode="json"))}
        settings = {"benchmark": benchmark, "model": identity(self.spec), "as": self.spec.name, "limit": self.limit}
        settings |= {"seed": tasks.SEED, "chat_template": False, "lm_eval": version("lm_eval")}
        run.claim("ecdbench", settings)
        if plan.summaries:
            run.claim("summaries", {"prompts": load_pack(SUMMARY).fingerprint()})
        run.settle()
        with run.timed("ecdbench"), ExitStack() as servers:
            scores: list[TaskScore] = []
            unfinished: list[tuple[str, Path]] = []
            for key in (*plan.local, *plan.hub):
                # The hash of the dataset's files in the name: with other files, it is asked again.
                files = [[part.model_dump(), [sha256_file(path) for path in paths]] for part, paths in plan.local.get(key, [])]
                path = run.folder / "datasets" / f"{key}-{digest(files, 8)}.jsonl"
                if path.is_file():
                    scores += read_jsonl(path, TaskScore, "scores", allow_empty=True)
                else:
                    unfinished.append((key, path))
            datasets = [(key, path, self._read(key, plan.local.get(key, []))) for key, path in unfinished]
            documents = []
            for key, parts in plan.summaries.items():
                docs = [doc for _, of_part in self._read(key, parts) for doc in of_part]
                drawn = sorted(tasks.draw(range(len(docs)), key, self.limit))  # in file order
                documents += [(key, f"{SUMMARY}:{index}", docs[index]) for index in drawn]
            url = servers.enter_context(_served(run, self.spec, self.console)) if datasets else None
            summaries = []
            if documents:  # first, since chat needs less of a server than lm-eval does
                with Batch(self.spec, run.store.path, self.console, url) as batch:
                    summaries = tasks.summarise(batch, documents, self.spec.name)
                write_jsonl(run.folder / "summaries.jsonl", summaries)
            if datasets and url:
                scores += self._ask_tasks(url, datasets, plan.missing)
        return scores, summaries

    def _read(self, key: str, files: Files) -> Docs:
        parts = read_dataset(self.benchmark, key, files)
        for _, _, step in parts:
            for reason, count in step.dropped.items():
                name = self.benchmark.datasets[key].label
                self.console.print(Text(f"{name}: {count} left out: {reason}"), soft_wrap=True)
        return [(part.task, docs) for part, docs, _ in parts]

    def _ask_tasks(self, url: str, datasets: list[tuple[str, Path, Docs]], missing: dict[str, str]) -> Iterator[TaskScore]:
        """Ask dataset by dataset; each one's scores are written when it is finished."""
        spec = self.spec
        source = spec.checkpoint and resolve_checkpoint(spec.checkpoint, f"model {spec.name}: checkpoint")
        try:
            lm = tasks.language_model(url, spec.served_name(), source, spec.api_key(), spec.context_length or CONTEXT)
        except Exception as error:  # by the server, the hub or the tokenizer's files
            cause = tasks.first_line(error).replace(spec.api_key() or "\0", "…")[:300]
            problem = f"tokenizer of {source}: cannot be loaded" if source else f"the server at {url} offers no tokenizer"
            raise UserError(
                f"{spec.name}: {problem} ({cause}). In its spec, name a checkpoint with the tokenizer: a folder or a hub id"
            ) from None
        manager = tasks.load_manager()
        for number, (key, path, parts) in enumerate(datasets, start=1):
            started = time.perf_counter()
            try:
                runner = self.benchmark.datasets[key].run
                loaded = tasks.local_tasks(manager, parts) if parts else tasks.hub_tasks(manager, str(runner and runner.task))
                results = tasks.ask(self.benchmark, key, loaded, lm, spec.name, self.limit)
            except tasks.Unavailable as error:  # the others can still be asked
                missing[key] = str(error)
                continue
            except tasks.UnansweredItem as error:
                cause = str(error).replace(spec.api_key() or "\0", "…")[:300]
                raise UserError(
                    f"{spec.name} at {url} did not answer {key} with log-probabilities ({cause}). It needs POST /completions "
                    "with `echo` and `logprobs`, as in vLLM. Finished datasets are kept: the same command resumes"
                ) from None
            path.parent.mkdir(exist_ok=True)
            write_jsonl(path, results.scores)
            yield from results.scores
            line = f"{self.benchmark.datasets[key].label}: {results.items} of {results.available} items"
            line += f", {time.perf_counter() - started:.0f} s"
            if results.cut:
                line += f"; {results.cut} questions were longer than the context and lost their beginning"
            self.console.print(Text(f"{number}/{len(datasets)} {line}"), soft_wrap=True)


@contextmanager
def _served(run: Run, spec: ModelSpec, console: Console) -> Iterator[str]:
    """The model's base URL: the spec's address, after a check, or a server that is up while the block runs."""
    if spec.endpoint.base_url:

        async def checked() -> str:
            async with ChatClient(run.store, say=lambda text: console.print(Text(text), soft_wrap=True)) as client:
                await client.check(spec, [spec.served_name()])
                return client.base_url(spec)

        yield asyncio.run(checked())
        return
    from evalsuite.papers.ecdbench.completions import ALTERNATIVES

    arguments = (*spec.serve.extra_args, "--max-logprobs", str(ALTERNATIVES))
    with_alternatives = spec.model_copy(update={"serve": spec.serve.model_copy(update={"extra_args": arguments})})
    with Servers(plan_servers([with_alternatives], run.logs)) as servers:
        yield servers.endpoints[spec.name]
