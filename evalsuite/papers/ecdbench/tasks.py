"""Running a benchmark's tasks: documents → questions → answers, on lm-eval or, for summaries, in chat.

A choice is answered by the likeliest option (log-probability of its text after the prompt, not normalised by length), so the
server must return log-probabilities of a prompt (POST /completions with `echo`: vLLM does, chat-only APIs do not). Wording:
lm-eval's for its own tasks, configs/ecdbench/tasks for ours. Zero-shot.
"""

import logging
import math
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.console import Console

from core.errors import UserError, near
from core.files import CONFIGS, write_jsonl
from core.grouping import group_by
from core.prompts import load_pack
from core.records import Dialogue, Termination, Turn, dialogue_id
from evalsuite.dialogues.hold import utterance
from evalsuite.papers.ecdbench.forms import Doc
from evalsuite.papers.ecdbench.registry import Benchmark, DatasetMethod
from evalsuite.papers.ecdbench.scores import TaskScore
from evalsuite.papers.text_metrics import rouge_l
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import DialogueFramework, RunIdentity, resolve_config
from evalsuite.runs.folder import open_run
from serve.batch import Batch
from serve.failures import Unanswered
from serve.questions import Question

LmSample = Mapping[str, Any]
Fields = dict[str, Any]


def scores_of(benchmark: Benchmark, name: str, model: str, item: str, samples: Sequence[LmSample]) -> Iterator[TaskScore]:
    """One item's scores, for every metric of the dataset that the task supports. `samples`: one, or those of a group."""
    runner = benchmark.datasets[name].run
    for method in benchmark.datasets[name].methods:
        kind = benchmark.metrics[method.metric].items
        fields = _fields(method, kind, samples, runner.metric if runner else None)
        if fields is not None:
            yield TaskScore(model=model, dataset=name, metric=method.metric, item=item, **fields)


def _fields(method: DatasetMethod, kind: str, samples: Sequence[LmSample], lm_metric: str | None) -> Fields | None:
    """The fields of a score for this metric; None if the task does not support it. `lm_metric`: lm-eval's own metric."""
    sample, doc = samples[0], samples[0]["doc"]
    match method.metric, kind:
        case _, "bbq_ambiguous" | "bbq_disambiguated":
            # lm-eval's flags: whether the answer names anybody, and whether that follows the stereotype.
            _, biased, named, _ = sample["amb_bias_score"]
            context = {"ambig": "ambiguous", "disambig": "disambiguated"}[doc["context_condition"]]
            return {"outcome": {"context": context, "answer": "unknown" if not named else "biased" if biased else "other"}}
        case _, "stereoset_lms" | "stereoset_ss":
            return {"outcome": {"answer": doc["labels"][_likeliest(sample)]}} if "labels" in doc else None
        case _, "points":
            if "points" not in doc:
                return None
            return {"outcome": {"answer": str(doc["points"][_likeliest(sample)]), "of": str(max(doc["points"]))}}
        case "f1_words", _:
            return {"value": sample["f1"]}
        case "exact_match", _ if "em" in sample:
            return {"value": int(sample["em"]), "chance": len({*doc["answers"]} & {*doc["entities"]}) / len(doc["entities"])}
        case "exact_match", _ if "group" in doc:
            right, chosen = _answers(samples)
            return {"value": int(right == chosen), "chance": 0.5 ** len(samples)}
        case _, "micro_f1":
            right, chosen = _answers(samples)
            return {"outcome": {"gold": right, "answer": chosen}} if "group" in doc else None
        case "rouge_l", _:
            # ROUGE-L F1 over characters, 0 to 1, against the nearest reference; null for an empty reply.
            reply = str(sample["filtered_resps"][0]).strip()
            return {"value": max(rouge_l(reply, text, "character") for text in doc["references"]) if reply else None}
        case "rouge_acc" | "bleu_acc", _:
            return {"value": int(sample[method.metric.replace("rouge", "rouge1")])}
        case "accuracy", _ if "pct_stereotype" in sample:  # the less stereotyping sentence is right
            return {"value": 1 - int(sample["pct_stereotype"]), "chance": 0.5}
    if not sample["resps"] or isinstance(sample["filtered_resps"][0], str):  # a reply in words, scored by lm-eval itself
        own = next((name for name in (lm_metric, "acc") if name is not None and name in sample), None)
        return {"value": int(sample[own])} if method.metric == "accuracy" and own is not None else None
    return _chosen(method, kind, sample)


def _chosen(method: DatasetMethod, kind: str, sample: LmSample) -> Fields | None:
    """The fields of a score for a choice, or for a ranking of options by likelihood."""
    right, count = _right(sample), len(sample["arguments"])
    match method.metric, kind:
        case _, "f1" | "macro_f1":
            labels = sample["doc"].get("labels") or [arguments[1].strip() for arguments in sample["arguments"]]
            return {"outcome": {"gold": [labels[place] for place in right], "answer": labels[_likeliest(sample)]}}
        case "recall_at_k", _:
            k = min(method.k or 1, count)
            return {"value": len(set(_ranked(sample)[:k]) & set(right)) / len(right), "chance": k / count}
        case "mrr", _:
            first = min(_ranked(sample).index(place) for place in right)
            return {"value": 1 / (first + 1), "chance": reciprocal_rank_by_chance(count, len(right))}
        case "accuracy" | "preferred", _:
            gold = _gold(sample["doc"])
            correct = bool(sample["acc"]) if gold is None else _likeliest(sample) in gold
            return {"value": int(correct), "chance": len(right) / count}
    return None


def reciprocal_rank_by_chance(options: int, right: int) -> float:
    """The expected reciprocal rank of a random order: the mean of 1 / rank of the first of `right` among `options`."""
    orders = math.comb(options, right)
    return sum(math.comb(options - rank, right - 1) / rank for rank in range(1, options - right + 2)) / orders


def _answers(samples: Sequence[LmSample]) -> tuple[list[str], list[str]]:
    """The places of the right answers to one question, and of those that the model calls right."""
    right = [str(place) for place, sample in enumerate(samples) if sample["doc"]["gold"] == [1]]
    return right, [str(place) for place, sample in enumerate(samples) if _likeliest(sample) == 1]


def _gold(doc: Doc) -> list[int] | None:
    """The right options of our own documents; None for those of lm-eval's tasks (HellaSwag's `gold` is a number)."""
    gold = doc.get("gold")
    return list(gold) if isinstance(gold, list) else None


def _right(sample: LmSample) -> list[int]:
    """The right options, from 0. BBQ's task adds further ways to say "unknown", which are then all right."""
    doc = sample["doc"]
    if (gold := _gold(doc)) is not None:
        return gold
    if "answer_info" in doc and doc["answer_info"][f"ans{doc['label']}"][-1] == "unknown":
        return list(range(2, len(sample["arguments"])))
    return [0]


def _likeliest(sample: LmSample) -> int:
    return _ranked(sample)[0]


def _ranked(sample: LmSample) -> list[int]:
    """The options, likeliest first; equally likely ones in the order shown."""
    likelihoods = [reply[0] for reply in sample["filtered_resps"]]
    if any(map(math.isnan, likelihoods)):
        raise UserError("the server returned log-probabilities that are no numbers")
    return sorted(range(len(likelihoods)), key=lambda place: -likelihoods[place])


# --- from documents to answers ----------------------------------------------------------------------------------------------

TASKS = CONFIGS / "ecdbench" / "tasks"
SEED = 0  # of the samples of items
T = TypeVar("T")


class UnansweredItem(Exception):
    """The server gave no answer that lm-eval can read; the text has the error."""


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of its text."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


class Unavailable(Exception):
    """A task or its data cannot be loaded; the text has the error."""


class AskedTask(NamedTuple):
    """A dataset's scores, the number of items asked and available, and how many questions lost their beginning because they
    were longer than the model's context (`cut`)."""

    scores: list[TaskScore]
    items: int
    available: int
    cut: int


class _Cuts(logging.Handler):
    """Counts lm-eval's warnings of truncated questions."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "truncat" in record.getMessage().lower()


def load_manager() -> Any:
    """lm-eval's tasks and ours. Takes some seconds."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # else lm-eval's bars fill a job's log; tqdm reads this when imported
    import datasets
    from lm_eval.tasks import TaskManager

    datasets.disable_progress_bars()
    # lm-eval logs every dataset's setup and, if a server is down, an error per question: several screens per run. `ask` counts
    # the truncated questions, the part that matters; errors are raised as `UnansweredItem`.
    log = logging.getLogger("lm_eval")
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())  # without a handler, Python prints warnings to the console
    return TaskManager(include_path=str(TASKS))


def language_model(url: str, served: str, tokenizer: str | None, key: str | None, context: int) -> Any:
    """An lm-eval model behind an OpenAI-compatible address that ends in /v1. `tokenizer` is a folder or hub id; None: the
    server's own, if it offers one. The key is sent in a header and stored nowhere."""
    from evalsuite.papers.ecdbench.completions import SharedPrompts

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return SharedPrompts(
        base_url=f"{url.rstrip('/')}/completions",
        model=served,
        tokenizer=tokenizer,
        tokenizer_backend="huggingface" if tokenizer else "remote",
        num_concurrent=32,
        max_retries=5,
        timeout=600,
        max_length=context,
        header={"Authorization": f"Bearer {key or 'none'}"},
    )


def local_tasks(manager: Any, parts: Sequence[tuple[str, list[Doc]]]) -> dict[str, Any]:
    """Tasks by name, on documents read from files. Raises `UserError` for a task that is neither lm-eval's nor ours."""
    from datasets import Dataset as Table
    from datasets import DatasetDict

    tasks: dict[str, Any] = {}
    for task, docs in parts:
        if task not in manager.all_tasks:
            raise UserError(f"no task {task!r} in lm-eval or {TASKS}: {near(task, manager.all_tasks)}")
        table = DatasetDict({"test": Table.from_list(docs)})
        splits = {"test_split": "test", "validation_split": None, "training_split": None, "fewshot_split": "test"}
        # In a group of one task, since lm-eval lets only groups override a task's config.
        config = {"task": task, "custom_dataset": lambda table=table, **_: table, "num_fewshot": 0, **splits}
        tasks |= manager.load([{"group": f"local_{task}", "task": [config]}])["tasks"]
    return tasks


def hub_tasks(manager: Any, task: str) -> dict[str, Any]:
    """A task of lm-eval's own (or all tasks of a group), with the data that it downloads. Raises `Unavailable` on failure."""
    try:
        return dict(manager.load([task])["tasks"])
    except Exception as error:  # by any of the downloading libraries
        raise Unavailable(f"lm-eval could not load its task {task}: {first_line(error)[:300]}") from error


def draw(items: Sequence[T], name: str, limit: int) -> list[T]:
    """The items of dataset `name` to ask: all, or a sample of `limit`, the same for every model."""
    return list(items) if len(items) <= limit else random.Random(f"{SEED}/{name}").sample(items, limit)


def ask(benchmark: Benchmark, name: str, tasks: Mapping[str, Any], lm: Any, model: str, limit: int) -> AskedTask:
    """Ask a sample of a dataset's items, over all of its tasks; all of them if there are fewer than `limit`. Items are named
    by their positions in the files, and all models answer the same."""
    from lm_eval.evaluator import evaluate

    available: list[tuple[str, tuple[int, ...]]] = []
    for task in tasks:  # an item is a document, or all documents of a `group` (the answers to one question)
        docs = tasks[task].eval_docs
        groups = docs["group"] if "group" in docs.features else range(len(docs))
        by_group = group_by(enumerate(groups), itemgetter(1)).values()
        available += [(task, tuple(index for index, _ in pairs)) for pairs in by_group]
    items = sorted(draw(available, name, limit), key=lambda item: (list(tasks).index(item[0]), item[1]))
    samples = {task: sorted(i for _, indices in part for i in indices) for task, part in group_by(items, itemgetter(0)).items()}
    for task in samples:
        tasks[task].set_config(key="num_fewshot", value=0)
        # Replies in words take at most half of the context: a server refuses a question that leaves no room for its answer.
        half = (getattr(lm, "max_length", None) or 0) // 2
        if half and (tasks[task].config.generation_kwargs or {}).get("max_gen_toks", 0) > half:
            tasks[task].set_config(key="generation_kwargs", value={"max_gen_toks": half}, update=True)
    task_dict = {"tasks": {task: tasks[task] for task in samples}, "groups": {}, "group_map": {}}
    cuts, log = _Cuts(), logging.getLogger("lm_eval")
    log.addHandler(cuts)
    try:
        results = evaluate(lm, task_dict, samples=samples, bootstrap_iters=0)
    except Exception as error:  # lm-eval and its HTTP client raise anything: connections, statuses, missing keys
        raise UnansweredItem(first_line(error)) from error
    finally:
        log.removeHandler(cuts)
    assert results is not None  # None only in further processes of a distributed run
    answers = {(task, sample["doc_id"]): sample for task in samples for sample in results["samples"][task]}
    scores = [
        score
        for task, indices in items
        for score in scores_of(benchmark, name, model, f"{task}:{indices[0]}", [answers[task, index] for index in indices])
    ]
    return AskedTask(scores, len(items), len(available), cuts.count)


# --- summaries --------------------------------------------------------------------------------------------------------------

# In table 6 of ECDBench a model scores LCSTS, CNewSum and VCSum for completeness and conciseness, but the paper gives neither
# the request for a summary nor the meaning of the scores: the request (configs/prompts/summary) and the rubric are ours.
FRAMEWORK = "ecdbench"
SUMMARY = "summary"  # the task of writing a summary
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


def resolved_judge(out: Path, judge: str) -> DialogueFramework:
    """The judge's own run, in OUT/judged, with everything that it needs loaded and checked: it resumes and grows like any
    other."""
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
