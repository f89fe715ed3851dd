"""Runs a plan on a model: lm-eval's tasks, and summaries in chat.

In table 6 of ECDBench a model scores LCSTS, CNewSum and VCSum for completeness and conciseness, but the paper gives neither the
request for a summary nor the meaning of the scores: the request (configs/prompts/summary) and the rubric (summary) are ours.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from core.errors import UserError
from core.files import CONFIGS, digest, read_jsonl, sha256_file, write_jsonl
from core.prompts import load_pack
from core.records import Dialogue, Termination, Turn, dialogue_id
from core.specs import ModelSpec
from evalsuite.dialogues.hold import utterance
from evalsuite.papers.ecdbench import tasks
from evalsuite.papers.ecdbench.forms import Doc
from evalsuite.papers.ecdbench.plan import SUMMARY, Files, Part, TaskPlan, read_dataset
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import TaskScore
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import DialogueFramework, RunIdentity, resolve_config
from evalsuite.runs.folder import Run, open_run
from evalsuite.runs.run_config import identity
from serve.batch import Batch
from serve.checkpoints.places import resolve_checkpoint
from serve.client import ChatClient
from serve.failures import Unanswered
from serve.launch import Servers
from serve.plan import plan_servers
from serve.questions import Question

FRAMEWORK = "ecdbench"
CONFIG = CONFIGS / "eval" / "ecdbench_summaries.yaml"  # the judge's


def summarise(batch: Batch, documents: Sequence[tuple[str, str, Doc]], called: str) -> list[Dialogue]:
    """One dialogue per document (dataset, name of the item, document): the request, and the summary by the batch's model,
    recorded as `called`.

    A refused, empty or overflowing reply is no turn, as in `evalsuite.dialogues.hold`; neither is a call that a server lost or
    rejected.
    """
    prompts, spec = load_pack(SUMMARY), batch.spec
    requests = [prompts.render(doc["language"], "request.j2", text=doc["text"]) for _, _, doc in documents]
    questions = [
        Question(
            [{"role": "user", "content": request}],
            sample={"dataset": dataset, "item": item},
            sampling=spec.sampling,
            served_name=spec.served_name(),
            purpose="supporter",
        )
        for (dataset, item, _), request in zip(documents, requests, strict=True)
    ]
    dialogues = []
    for (dataset, item, doc), request, reply in zip(documents, requests, batch.ask(questions, "summaries"), strict=True):
        turns = [Turn(role="seeker", text=request)]
        termination: Termination
        if isinstance(reply, Unanswered):
            termination = reply.outcome
        else:
            summary = utterance(reply)
            termination = summary.stopped or "max_turns"
            turns += [] if summary.stopped else [Turn(role="supporter", text=summary.text)]
        fields = {"language": doc["language"], "framework": FRAMEWORK, "source": dataset, "source_id": item}
        id = dialogue_id(FRAMEWORK, f"{dataset}/{item}", called, "", 0)
        dialogues.append(Dialogue(id=id, **fields, supporter=called, turns=tuple(turns), termination=termination))
    return dialogues


# --- the judge's own run, in a folder below the summaries: it resumes and grows like any other --------------------------------


def resolved_judge(out: Path, judge: str) -> DialogueFramework:
    """The judge's own run, in OUT/judged, with everything that it needs loaded and checked."""
    resolved = resolve_config(load_config(CONFIG, {"judge": judge, "out": str(out / "judged")}))
    RunIdentity(resolved).score()
    return resolved


def judge_summaries(resolved: DialogueFramework, summaries: Sequence[Dialogue], console: Console) -> list[TaskScore]:
    """Have every summary judged: its verdicts as scores, one per summary and dimension.

    An unreadable verdict has no value; for a summary that was not written, every dimension has the scale's lowest value. Raises
    `UserError` if a server failed before all were judged: the same command resumes.
    """
    written = resolved.out / "dialogues.jsonl"
    with open_run(resolved.out) as run:
        write_jsonl(written, summaries)
        with Runner(run, resolved, console) as runner:
            outcome = pipeline.score(runner, written)
    lost = sum(verdict.lost for verdict in outcome.judgements)
    if lost or outcome.ended_early:
        cause = outcome.ended_early or "a server failed"
        judge = resolved.models.judge.name
        raise UserError(f"{judge}: {lost} verdicts on summaries are missing: {cause}. Run the same command to resume")
    verdicts = {(verdict.dialogue_id, verdict.dimension): verdict.value for verdict in outcome.judgements}
    scores = []
    for dialogue in summaries:
        for dimension in resolved.rubric.dimensions:
            lowest = float(resolved.rubric.scale_of(dimension).min)
            value = verdicts[dialogue.id, dimension] if dialogue.exchanges else lowest
            place = {"dataset": dialogue.source, "metric": dimension, "item": dialogue.source_id}
            scores.append(TaskScore.model_validate({"model": dialogue.supporter, **place, "value": value}))
    return scores


# --- the tested model -------------------------------------------------------------------------------------------------------

CONTEXT = 2048  # tokens, for a model behind an address whose spec does not say


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
        self._claim(run, plan)
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
                docs = [doc for _, part_docs in self._read(key, parts) for doc in part_docs]
                drawn = sorted(tasks.draw(range(len(docs)), key, self.limit))  # in file order
                documents += [(key, f"{SUMMARY}:{index}", docs[index]) for index in drawn]
            url = servers.enter_context(_served(run, self.spec, self.console)) if datasets else None
            summaries = []
            if documents:  # first, since chat needs less of a server than lm-eval does
                with Batch(self.spec, run.store.path, self.console, url) as batch:
                    summaries = summarise(batch, documents, self.spec.name)
                write_jsonl(run.folder / "summaries.jsonl", summaries)
            if datasets and url:
                scores += self._ask_tasks(url, datasets, plan.missing)
        return scores, summaries

    def _claim(self, run: Run, plan: TaskPlan) -> None:
        benchmark = {"name": self.benchmark.name, "sha256": digest(self.benchmark.model_dump(mode="json"))}
        settings = {"benchmark": benchmark, "model": identity(self.spec), "as": self.spec.name, "limit": self.limit}
        settings |= {"seed": tasks.SEED, "chat_template": False, "lm_eval": version("lm_eval")}
        run.claim("ecdbench", settings)
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
