"""Runs a plan on a model: lm-eval's tasks, and summaries in chat.

In table 6 of ECDBench a model scores LCSTS, CNewSum and VCSum for completeness and conciseness, but the paper gives neither the
request for a summary nor the meaning of the scores: the request (configs/prompts/summary) and the rubric (summary) are ours.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from core.errors import UserError, near
from core.files import CONFIGS, check_unique, digest, read_jsonl, sha256_file, write_jsonl
from core.grouping import group_by
from core.prompts import load_pack
from core.records import Dialogue, Judgement, Language, Termination, Turn, dialogue_id
from core.rubrics import load_rubric
from core.specs import ModelSpec
from core.tables import Table
from data_prep.scores.human import read_dialogues
from evalsuite.dialogues.hold import utterance
from evalsuite.papers.ecdbench import tasks
from evalsuite.papers.ecdbench.forms import Doc
from evalsuite.papers.ecdbench.plan import SUMMARY, Files, Part, TaskPlan, read_dataset
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import TaskScore
from evalsuite.papers.ecdbench.tasks import draw
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import DialogueFramework, resolve_config
from evalsuite.runs.folder import Run, open_run
from evalsuite.runs.identity import identity
from evalsuite.runs.run_identity import RunIdentity
from serve.answers import Reply
from serve.batch import Batch
from serve.checkpoints.places import resolve_checkpoint
from serve.client import ChatClient
from serve.failures import Unanswered
from serve.launch import Servers
from serve.plan import plan_servers
from serve.questions import Question

FRAMEWORK = "ecdbench"
CONFIG = CONFIGS / "eval" / "ecdbench_summaries.yaml"  # the judge's


@dataclass(frozen=True)
class SourceDocument:
    """A document to summarise; `item` is its place in the dataset's files."""

    dataset: str
    item: str
    language: Language
    text: str


def sampled(name: str, docs: Sequence[Doc], limit: int, seed: int) -> list[SourceDocument]:
    """The documents of dataset `name` to summarise, in file order: `limit` of them, drawn like the items of other tasks."""
    return [
        SourceDocument(name, f"{SUMMARY}:{index}", docs[index]["language"], docs[index]["text"])
        for index in sorted(draw(range(len(docs)), name, limit, seed))
    ]


def summarise(batch: Batch, documents: Iterable[SourceDocument], called: str) -> list[Dialogue]:
    """One dialogue per document: the request with the document, and the summary by the batch's model, recorded as `called`.

    A refused, empty or overflowing reply is no turn, as in `evalsuite.dialogues.hold`; neither is a call that a server lost or
    rejected.
    """
    prompts, spec = load_pack(SUMMARY), batch.spec
    requests = [(document, prompts.render(document.language, "request.j2", text=document.text)) for document in documents]
    questions = [
        Question(
            [{"role": "user", "content": request}],
            sample={"dataset": document.dataset, "item": document.item},
            sampling=spec.sampling,
            served_name=spec.served_name(),
            purpose="supporter",
        )
        for document, request in requests
    ]
    replies = batch.ask(questions, "summaries")
    return [_dialogue(*pair, reply, called) for pair, reply in zip(requests, replies, strict=True)]


def _dialogue(document: SourceDocument, request: str, reply: Reply | Unanswered, called: str) -> Dialogue:
    turns = [Turn(role="seeker", text=request)]
    termination: Termination
    if isinstance(reply, Unanswered):
        termination = reply.outcome
    else:
        summary = utterance(reply)
        termination = summary.stopped or "max_turns"
        if summary.stopped is None:
            turns.append(Turn(role="supporter", text=summary.text))
    id = dialogue_id(FRAMEWORK, f"{document.dataset}/{document.item}", called, "", 0)
    fields = {"language": document.language, "framework": FRAMEWORK, "source": document.dataset, "source_id": document.item}
    return Dialogue(id=id, **fields, supporter=called, turns=tuple(turns), termination=termination)


def summaries_table(benchmark: Benchmark, dialogues: Sequence[Dialogue]) -> Table:
    """How many summaries every dataset has, and why others are missing."""
    rows = []
    for name, items in group_by(dialogues, lambda dialogue: dialogue.source).items():
        missing = Counter(str(dialogue.termination) for dialogue in items if not dialogue.exchanges)
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(missing.items()))
        rows.append((name, benchmark.datasets[name].label, len(items), len(items) - missing.total(), reasons))
    return Table("summaries", "Summaries for a judge", ("dataset", "name", "items", "summaries", "none, because"), tuple(rows))


def judged_scores(judgements: Path, summaries: Path, judge: str | None = None) -> list[TaskScore]:
    """A judge's verdicts on `summaries` as scores, one per summary and dimension, in the order of the summaries.

    An unreadable verdict has no value; for a summary that was not written, every dimension has the scale's lowest value.
    Raises `UserError` for verdicts on another rubric or other dialogues, for several judges without `judge`, and for a verdict
    that is given twice or missing, also if a server failed.
    """
    rubric, by_id = load_rubric(SUMMARY), {dialogue.id: dialogue for dialogue in read_dialogues([summaries])}
    for dialogue in by_id.values():
        if dialogue.framework != FRAMEWORK or dialogue.source_id is None or dialogue.supporter is None:
            raise UserError(f"{summaries}: dialogue {dialogue.id}: not a summary written by `esc-eval paper ecdbench run`")
        if dialogue.lost:
            raise UserError(
                f"{summaries}: {dialogue.source} {dialogue.source_id} has no summary because a server failed "
                f"({dialogue.termination}): run the same `paper ecdbench run` again, then score"
            )
    given = read_jsonl(judgements, Judgement, "judgements")
    names = list(dict.fromkeys(verdict.judge for verdict in given))
    if judge is not None and judge not in names:
        raise UserError(f"--judge: {judgements} has no verdict of {judge!r}: {near(judge, names)}")
    if judge is None and len(names) > 1:
        raise UserError(f"{judgements}: verdicts of {len(names)} judges; give those of a single one: {', '.join(names[:12])}")
    given = [verdict for verdict in given if judge in (None, verdict.judge)]
    verdicts = {(verdict.dialogue_id, verdict.dimension): verdict for verdict in given}
    for (name, dimension), verdict in verdicts.items():
        where = f"{judgements}: dialogue {name}"
        if verdict.rubric != rubric.name:
            raise UserError(f"{where}: rubric {verdict.rubric!r}: summaries are scored on {rubric.name!r}")
        if dimension not in rubric.dimensions:
            raise UserError(f"{where}: {rubric.name} has no dimension {dimension!r}: {near(dimension, rubric.dimensions)}")
        if name not in by_id:
            raise UserError(f"{where}: {summaries} has no such summary: give the file that was scored")
    check_unique(judgements, (f"{verdict.dialogue_id} {verdict.dimension}" for verdict in given), "verdicts")
    scores = []
    for dialogue in by_id.values():
        for dimension in rubric.dimensions:
            judgement = verdicts.get((dialogue.id, dimension))
            if judgement is None or judgement.lost:
                cause = f" ({judgement.condition['failure']})" if judgement else ""
                raise UserError(
                    f"{judgements}: dialogue {dialogue.id}: no verdict{cause} on {dimension}: score all of {summaries} "
                    "(the same command resumes)"
                )
            value = judgement.value if dialogue.exchanges else float(rubric.scale_of(dimension).min)
            place = {"dataset": dialogue.source, "metric": dimension, "item": dialogue.source_id}
            scores.append(TaskScore.model_validate({"model": dialogue.supporter, **place, "value": value}))
    return scores


# --- the judge's own run, in a folder below the summaries: it resumes and grows like any other --------------------------------


def resolved_judge(out: Path, judge: str) -> DialogueFramework:
    """The judge's own run, in OUT/judged, with everything that it needs loaded and checked."""
    resolved = resolve_config(load_config(CONFIG, {"judge": judge, "out": str(out / "judged")}))
    RunIdentity(resolved).score()
    return resolved


def judge_summaries(resolved: DialogueFramework, written: Path, console: Console) -> list[TaskScore]:
    """Have every summary of `written` judged, and return the verdicts as scores. Raises `UserError` if a server failed before
    all were judged: the same command resumes."""
    dialogues = resolved.out / "dialogues.jsonl"
    with open_run(resolved.out) as run:
        write_jsonl(dialogues, read_dialogues([written]))  # the run's own copy, since there may be more later
        with Runner(run, resolved, console, bounded=True) as runner:
            outcome = pipeline.score(runner, dialogues)
    lost = sum(verdict.lost for verdict in outcome.judgements)
    if lost or outcome.ended_early:
        cause = outcome.ended_early or "a server failed"
        judge = resolved.models.judge.name
        raise UserError(f"{judge}: {lost} verdicts on summaries are missing: {cause}. Run the same command to resume")
    return judged_scores(resolved.out / "judgements.jsonl", written, resolved.models.judge.name)


# --- the tested model -------------------------------------------------------------------------------------------------------

CONTEXT = 2048  # tokens, for a model behind an address whose spec does not say
CONCURRENCY = 32


@dataclass(frozen=True)
class Examination:
    """A model and the items to ask it: `limit` of each dataset, drawn with `seed`. `chat` puts questions into its chat
    template; `console` gets a line per dataset."""

    benchmark: Benchmark
    spec: ModelSpec
    limit: int
    chat: bool
    console: Console
    seed: int = 0

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
                documents += sampled(key, docs, self.limit, self.seed)
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
        settings |= {"seed": self.seed, "chat_template": self.chat, "lm_eval": version("lm_eval")}
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
        spec, source = self.spec, None
        if spec.checkpoint is not None:
            source = resolve_checkpoint(spec.checkpoint, f"model {spec.name}: checkpoint")
        context = spec.context_length or CONTEXT
        try:
            lm = tasks.language_model(url, spec.served_name(), source, spec.api_key(), context, CONCURRENCY)
        except Exception as error:  # by the server, the hub or the tokenizer's files
            cause = " ".join(f"{type(error).__name__}: {error}".replace(spec.api_key() or "\0", "…").split())[:300]
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
                results = tasks.ask(self.benchmark, key, loaded, lm, spec.name, self.limit, self.seed, self.chat)
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
            line = results.described(self.benchmark.datasets[key].label, time.perf_counter() - started)
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
