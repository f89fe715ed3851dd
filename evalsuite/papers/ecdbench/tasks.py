"""Running a benchmark's tasks on lm-eval: documents → questions → answers.

A choice is answered by the likeliest option (log-probability of its text after the prompt, not normalised by length), so a
server has to tell the log-probabilities of a prompt (POST /completions with `echo`: vLLM does, chat-only APIs do not). Tasks of
lm-eval are asked in its words, ours in configs/ecdbench/tasks. No examples are shown (zero-shot).
"""

from __future__ import annotations

import logging
import math
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from core.errors import UserError, near
from core.files import CONFIGS
from core.grouping import group_by
from evalsuite.papers.ecdbench.forms import Doc
from evalsuite.papers.ecdbench.plan import Part
from evalsuite.papers.ecdbench.registry import Benchmark, DatasetMethod
from evalsuite.papers.ecdbench.scores import TaskScore
from evalsuite.papers.text_metrics import rouge_l

LmSample = Mapping[str, Any]
Fields = dict[str, Any]


def scores_of(benchmark: Benchmark, name: str, model: str, item: str, samples: Sequence[LmSample]) -> Iterator[TaskScore]:
    """One item's scores, for every metric of the dataset that the task gives. `samples` is one, or those of a group."""
    known = benchmark.datasets[name].run
    for method in benchmark.datasets[name].methods:
        kind = benchmark.metrics[method.metric].items
        fields = _fields(method, kind, samples, known.metric if known else None)
        if fields is not None:
            yield TaskScore(model=model, dataset=name, metric=method.metric, item=item, **fields)


def majority_share(samples: Sequence[LmSample]) -> float | None:
    """The share of the commonest right answer; None where options differ from item to item, or no answer is right."""
    docs = [sample["doc"] for sample in samples]
    if any("options" in doc or "points" in doc or _gold(doc) is None for doc in docs):
        return None
    gold = [tuple(doc["gold"]) for doc in docs]
    return max(map(gold.count, gold)) / len(gold) if gold else None


def _fields(method: DatasetMethod, kind: str, samples: Sequence[LmSample], known: str | None) -> Fields | None:
    """The fields of a score that this metric needs; None where the task does not give it. `known`: lm-eval's own metric."""
    sample, doc = samples[0], samples[0]["doc"]
    match method.metric, kind:
        case _, "bbq_ambiguous" | "bbq_disambiguated":
            # lm-eval says whether the answer names anybody, and whether that follows the stereotype.
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
        case "accuracy", _ if "pct_stereotype" in sample:  # right is the sentence that stereotypes less
            return {"value": 1 - int(sample["pct_stereotype"]), "chance": 0.5}
    if not sample["resps"] or isinstance(sample["filtered_resps"][0], str):  # a reply in words: judged by lm-eval itself
        own = next((name for name in (known, "acc") if name is not None and name in sample), None)
        return {"value": int(sample[own])} if method.metric == "accuracy" and own is not None else None
    return _chosen(method, kind, sample)


def _chosen(method: DatasetMethod, kind: str, sample: LmSample) -> Fields | None:
    """The fields of a score for a choice, or for options in order of their likelihood."""
    right, count = _right(sample), len(sample["arguments"])
    match method.metric, kind:
        case _, "f1" | "macro_f1":
            labels = sample["doc"].get("labels") or [arguments[1].strip() for arguments in sample["arguments"]]
            return {"outcome": {"gold": [labels[place] for place in right], "answer": labels[_likeliest(sample)]}}
        case "recall_at_k", _:
            k = min(method.k or 1, count)
            found = len(set(_ranked(sample)[:k]) & set(right))
            return {"value": found / len(right), "chance": k / count}
        case "mrr", _:
            first = min(_ranked(sample).index(place) for place in right)
            return {"value": 1 / (first + 1), "chance": reciprocal_rank_by_chance(count, len(right))}
        case "accuracy" | "preferred", _:
            gold = _gold(sample["doc"])
            correct = bool(sample["acc"]) if gold is None else _likeliest(sample) in gold
            return {"value": int(correct), "chance": len(right) / count}
    return None


def reciprocal_rank_by_chance(options: int, right: int) -> float:
    """What a random order gives: the mean of 1 / rank of the first of `right` among `options`."""
    orders = math.comb(options, right)
    return sum(math.comb(options - rank, right - 1) / rank for rank in range(1, options - right + 2)) / orders


def _answers(samples: Sequence[LmSample]) -> tuple[list[str], list[str]]:
    """Of the answers to one question, those that are right and those that the model calls right, by their places."""
    right = [str(place) for place, sample in enumerate(samples) if sample["doc"]["gold"] == [1]]
    return right, [str(place) for place, sample in enumerate(samples) if _likeliest(sample) == 1]


def _gold(doc: Doc) -> list[int] | None:
    """What our documents name as right; None for those of lm-eval's tasks (where HellaSwag's `gold` is a number)."""
    gold = doc.get("gold")
    return list(gold) if isinstance(gold, list) else None


def _right(sample: LmSample) -> list[int]:
    """The options that are right, from 0. BBQ's task adds further ways to say that nobody knows, all of them right at once."""
    doc = sample["doc"]
    if (gold := _gold(doc)) is not None:
        return gold
    if "answer_info" in doc and doc["answer_info"][f"ans{doc['label']}"][-1] == "unknown":
        return list(range(2, len(sample["arguments"])))
    return [0]


def _likeliest(sample: LmSample) -> int:
    return _ranked(sample)[0]


def _ranked(sample: LmSample) -> list[int]:
    """The options, likeliest first; of equally likely ones the first that was offered."""
    likelihoods = [reply[0] for reply in sample["filtered_resps"]]
    if any(math.isnan(one) for one in likelihoods):
        raise UserError("the server answered with log-probabilities that are no numbers")
    return sorted(range(len(likelihoods)), key=lambda place: -likelihoods[place])


# --- from documents to answers ----------------------------------------------------------------------------------------------


TASKS = CONFIGS / "ecdbench" / "tasks"
T = TypeVar("T")


class UnansweredItem(Exception):
    """The server gave no answer that lm-eval can read; the text says what came instead."""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


class Unavailable(Exception):
    """A task or its data cannot be loaded; the text says why."""


@dataclass(frozen=True)
class AskedTask:
    """A dataset's scores, how many items there were to draw from, the majority class's share where labels are fixed, and how
    many questions lost their beginning because they were longer than the model's context."""

    scores: list[TaskScore]
    items: int
    available: int
    majority: float | None
    cut: int

    def described(self, label: str, seconds: float) -> str:
        """One line on a dataset: items, time, accuracy beside chance and the majority class."""
        rated = [score for score in self.scores if score.metric in ("accuracy", "preferred") and score.value is not None]
        drawn = f"{self.items} of {self.available}" if self.items < self.available else f"all {self.items}"
        text = f"{label}: {drawn} items, {seconds:.0f} s"
        if rated:
            text += f", accuracy {100 * sum(float(score.value or 0) for score in rated) / len(rated):.1f}"
        if rated and rated[0].chance is not None:
            text += f", chance {100 * sum(score.chance or 0 for score in rated) / len(rated):.1f}"
        if self.majority is not None:
            text += f", majority class {100 * self.majority:.1f}"
        return text + (f"; {self.cut} questions were longer than the context and lost their beginning" if self.cut else "")


class _Cuts(logging.Handler):
    """Counts lm-eval's warnings of questions that were cut."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "truncat" in record.getMessage().lower()


def load_manager() -> Any:
    """lm-eval's tasks and ours. Takes some seconds."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # else a job's log is full of lm-eval's bars; read when tqdm is imported
    import datasets
    from lm_eval.tasks import TaskManager

    datasets.disable_progress_bars()
    # Every dataset says how it was set up, and a server that is gone says so once a question: several screens a run. What
    # matters of it, questions cut to fit the context, is counted by `ask`; errors come back as `Unanswered`.
    log = logging.getLogger("lm_eval")
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())  # without any, Python prints warnings to the console
    return TaskManager(include_path=str(TASKS))


def language_model(url: str, served: str, tokenizer: str | None, key: str | None, context: int, concurrency: int) -> Any:
    """An lm-eval model behind an OpenAI-compatible address that ends in /v1. `tokenizer` is a folder or hub id; None: the
    server's own, where it offers one. The key goes into a header and nowhere else."""
    from evalsuite.papers.ecdbench.completions import SharedPrompts

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return SharedPrompts(
        base_url=f"{url.rstrip('/')}/completions",
        model=served,
        tokenizer=tokenizer,
        tokenizer_backend="huggingface" if tokenizer else "remote",
        num_concurrent=concurrency,
        max_retries=5,
        timeout=600,
        max_length=context,
        header={"Authorization": f"Bearer {key or 'none'}"},
    )


def local_tasks(manager: Any, parts: Sequence[tuple[Part, list[Doc]]]) -> dict[str, Any]:
    """Tasks by name over documents read from files. Raises `UserError` for a task that neither lm-eval nor we have."""
    from datasets import Dataset as Table
    from datasets import DatasetDict

    tasks: dict[str, Any] = {}
    for part, docs in parts:
        if part.task not in manager.all_tasks:
            raise UserError(f"no task {part.task!r} in lm-eval or {TASKS}: {near(part.task, manager.all_tasks)}")

        def dataset(docs: list[Doc] = docs, **_: object) -> Any:
            return DatasetDict({"test": Table.from_list(docs)})

        splits = {"test_split": "test", "validation_split": None, "training_split": None, "fewshot_split": "test"}
        # A task of a group of one: that is where lm-eval lets a task's config be overridden.
        own = {"task": part.task, "custom_dataset": dataset, "num_fewshot": 0, **splits}
        tasks |= manager.load([{"group": f"local_{part.task}", "task": [own]}])["tasks"]
    return tasks


def hub_tasks(manager: Any, task: str) -> dict[str, Any]:
    """A task of lm-eval's own, with the data that it downloads (for a group of tasks, all of them). Raises `Unavailable` where
    it cannot."""
    try:
        return dict(manager.load([task])["tasks"])
    except Exception as error:  # of whatever library fetches
        raise Unavailable(f"lm-eval could not load its task {task}: {_first_line(error)}") from error


def draw(every: Sequence[T], name: str, limit: int, seed: int) -> list[T]:
    """The items of dataset `name` that are asked: all, or a sample of `limit`, the same for every model."""
    return list(every) if len(every) <= limit else random.Random(f"{seed}/{name}").sample(every, limit)


def ask(
    benchmark: Benchmark, name: str, tasks: Mapping[str, Any], lm: Any, model: str, limit: int, seed: int, chat: bool
) -> AskedTask:
    """Ask a sample of a dataset's items (over all of its tasks; all if there are fewer than `limit`).

    Items are the position in the files, so that two models with one seed answer the same ones.
    """
    from lm_eval.evaluator import evaluate

    every: list[tuple[str, tuple[int, ...]]] = []
    for task in tasks:  # an item is a document, or all that have one `group` (the answers to one question)
        docs = tasks[task].eval_docs
        groups = docs["group"] if "group" in docs.features else range(len(docs))
        every += [(task, tuple(index for index, _ in pairs)) for pairs in group_by(enumerate(groups), itemgetter(1)).values()]
    drawn = draw(every, name, limit, seed)
    chosen = {task: sorted(index for drawn_task, item in drawn if drawn_task == task for index in item) for task in tasks}
    used = {task: one for task, one in tasks.items() if chosen[task]}
    for task in used.values():
        task.set_config(key="num_fewshot", value=0)
        # Replies in words take at most half of the context: a server refuses a question that leaves no room for its answer.
        half = (getattr(lm, "max_length", None) or 0) // 2
        if half and (task.config.generation_kwargs or {}).get("max_gen_toks", 0) > half:
            task.set_config(key="generation_kwargs", value={"max_gen_toks": half}, update=True)
    asked = {task: chosen[task] for task in used}
    task_dict = {"tasks": used, "groups": {}, "group_map": {}}
    cuts, log = _Cuts(), logging.getLogger("lm_eval")
    log.addHandler(cuts)
    try:
        done = evaluate(lm, task_dict, samples=asked, bootstrap_iters=0, apply_chat_template=chat)
    except Exception as error:  # lm-eval and its HTTP client raise what they like: connections, statuses, missing keys
        raise UnansweredItem(_first_line(error)) from error
    finally:
        log.removeHandler(cuts)
    assert done is not None  # one process
    answered = {(task, sample["doc_id"]): sample for task in used for sample in done["samples"][task]}
    items = sorted(drawn, key=lambda one: (list(tasks).index(one[0]), one[1]))
    scores = [
        score
        for task, item in items
        for score in scores_of(benchmark, name, model, f"{task}:{item[0]}", [answered[task, index] for index in item])
    ]
    return AskedTask(scores, len(items), len(every), majority_share(list(answered.values())), cuts.count)
