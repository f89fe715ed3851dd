"""A model is asked what a plan names: lm-eval's tasks, and summaries through chat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from core.errors import UserError
from core.files import digest, read_jsonl, sha256_file, write_jsonl
from core.prompts import load_pack
from core.records import Dialogue
from core.specs import ModelSpec
from evalsuite.papers.ecdbench import tasks
from evalsuite.papers.ecdbench.forms import Doc
from evalsuite.papers.ecdbench.local_data import SUMMARY, Files, Part
from evalsuite.papers.ecdbench.plan import TaskPlan, read_dataset
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import TaskScore
from evalsuite.papers.ecdbench.summaries import sampled, summarise
from evalsuite.runs.folder import Run
from evalsuite.runs.identity import identity
from serve.batch import Batch
from serve.checkpoints.places import resolve_checkpoint
from serve.client import ChatClient
from serve.launch import Servers
from serve.plan import plan_servers

CONTEXT = 2048  # tokens that a model behind an address is taken to read, unless its spec says more
CONCURRENCY = 32


@dataclass(frozen=True)
class Examination:
    """A model and the items that it is asked: `limit` of each dataset, drawn by `seed`.

    `chat` puts questions into its chat template; `console` gets a line per dataset.
    """

    benchmark: Benchmark
    spec: ModelSpec
    limit: int
    chat: bool
    console: Console
    seed: int = 0

    def ask(self, run: Run, plan: TaskPlan) -> tuple[list[TaskScore], list[Dialogue]]:
        """Scores of lm-eval's tasks, and summaries, which are also in summaries.jsonl.

        Datasets that the run folder has with the same files are not asked again. Those that lm-eval cannot download are added
        to `plan.missing`.
        """
        self._claim(run, plan)
        with run.timed("ecdbench"), ExitStack() as servers:
            scores: list[TaskScore] = []
            unfinished: list[tuple[str, Path]] = []
            for key in (*plan.local, *plan.hub):
                path = _scores_file(run, key, plan.local.get(key, []))
                if path.is_file():
                    scores += read_jsonl(path, TaskScore, "scores", allow_empty=True)
                else:
                    unfinished.append((key, path))
            datasets = [(key, path, self._read(key, plan.local.get(key, []))) for key, path in unfinished]
            documents = []
            for key, files in plan.summaries.items():
                docs = [doc for _, part_docs in self._read(key, files) for doc in part_docs]
                documents += sampled(key, docs, self.limit, self.seed)
            url = servers.enter_context(_served(run, self.spec, self.console)) if datasets else None
            summaries = []
            if documents:  # first: chat is less than what lm-eval needs of a server
                with Batch(self.spec, run.store.path, self.console, url) as batch:
                    summaries = summarise(batch, documents, self.spec.name)
                write_jsonl(run.folder / "summaries.jsonl", summaries)
            if datasets and url:
                scores += self._ask_tasks(url, datasets, plan.missing)
        return scores, summaries

    def _claim(self, run: Run, plan: TaskPlan) -> None:
        run.claim(
            "ecdbench",
            {
                "benchmark": {"name": self.benchmark.name, "sha256": digest(self.benchmark.model_dump(mode="json"))},
                "model": identity(self.spec),
                "as": self.spec.name,
                "limit": self.limit,
                "seed": self.seed,
                "chat_template": self.chat,
                "lm_eval": version("lm_eval"),
            },
        )
        if plan.summaries:
            run.claim("summaries", {"prompts": load_pack(SUMMARY).fingerprint()})
        run.settle()

    def _read(self, key: str, files: Files) -> list[tuple[Part, list[Doc]]]:
        parts = read_dataset(self.benchmark, key, files)
        for _, _, step in parts:
            for reason, count in step.dropped.items():
                name = self.benchmark.datasets[key].label
                self.console.print(Text(f"{name}: {count} left out: {reason}"), soft_wrap=True)
        return [(part, docs) for part, docs, _ in parts]

    def _ask_tasks(
        self, url: str, datasets: list[tuple[str, Path, list[tuple[Part, list[Doc]]]]], missing: dict[str, str]
    ) -> Iterator[TaskScore]:
        """Ask dataset by dataset; the scores of each are written when it is finished."""
        spec = self.spec
        source = None
        if spec.checkpoint is not None:
            source = resolve_checkpoint(spec.checkpoint, f"model {spec.name}: checkpoint")
        context = spec.context_length or CONTEXT
        try:
            lm = tasks.language_model(url, spec.served_name(), source, spec.api_key(), context, CONCURRENCY)
        except Exception as error:  # of the server, the hub or the tokenizer's files
            why = " ".join(f"{type(error).__name__}: {error}".replace(spec.api_key() or "\0", "…").split())[:300]
            where = f"tokenizer of {source}: cannot be loaded" if source else f"the server at {url} offers no tokenizer"
            raise UserError(
                f"{spec.name}: {where} ({why}). Name a checkpoint with the model's tokenizer in its spec, a folder or a hub id"
            ) from None
        manager = tasks.load_manager()
        for number, (key, path, parts) in enumerate(datasets, start=1):
            started = time.perf_counter()
            try:
                loaded = tasks.local_tasks(manager, parts) if parts else tasks.hub_tasks(manager, self.benchmark.datasets[key])
                asked = tasks.ask(self.benchmark, key, loaded, lm, spec.name, self.limit, self.seed, self.chat)
            except tasks.Unavailable as error:  # the others can still be asked
                missing[key] = str(error)
                continue
            except tasks.UnansweredItem as error:
                raise UserError(_lost(spec, url, key, error)) from None
            path.parent.mkdir(exist_ok=True)
            write_jsonl(path, asked.scores)
            yield from asked.scores
            what = asked.described(self.benchmark.datasets[key].label, time.perf_counter() - started)
            self.console.print(Text(f"{number}/{len(datasets)} {what}"), soft_wrap=True)


def _scores_file(run: Run, key: str, files: Files) -> Path:
    """Where a dataset's scores go; other files of the same dataset have another name."""
    parts = [[part.model_dump(), [sha256_file(path) for path in paths]] for part, paths in files]
    return run.folder / "datasets" / f"{key}-{digest(parts, 8)}.jsonl"


@contextmanager
def _served(run: Run, spec: ModelSpec, console: Console) -> Iterator[str]:
    """Where the model answers: the spec's address, once that was looked up, or a server that is up while the block runs."""
    if spec.endpoint.base_url:

        async def found() -> str:
            async with ChatClient(run.store, say=lambda text: console.print(Text(text), soft_wrap=True)) as client:
                await client.check(spec, [spec.served_name()])
                return client.base_url(spec)

        yield asyncio.run(found())
        return
    from evalsuite.papers.ecdbench.completions import ALTERNATIVES

    arguments = (*spec.serve.extra_args, "--max-logprobs", str(ALTERNATIVES))
    with_alternatives = spec.model_copy(update={"serve": spec.serve.model_copy(update={"extra_args": arguments})})
    with Servers(plan_servers([with_alternatives], run.logs)) as servers:
        yield servers.endpoints[spec.name]


def _lost(spec: ModelSpec, url: str, key: str, error: Exception) -> str:
    what = str(error).replace(spec.api_key() or "\0", "…")[:300]
    return (
        f"{spec.name} at {url} did not answer {key} in a way that log-probabilities can be read from ({what}). It needs "
        "POST /completions with `echo` and `logprobs`, as vLLM has it. What is done is kept: the same command goes on from here"
    )
