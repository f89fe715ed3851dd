"""Running a benchmark's tasks on lm-eval: documents → questions → one `TaskScore` an item and metric.

A choice is answered by the likeliest option (log-probability of its text after the prompt, not normalised by length), so a
server has to tell the log-probabilities of a prompt (POST /completions with `echo`: vLLM does, chat-only APIs do not). Tasks of
lm-eval are asked in its words, ours in configs/ecdbench/tasks. No examples are shown (zero-shot).
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from core.errors import UserError, near
from core.files import CONFIGS
from evalsuite.fdaef.forms import Doc
from evalsuite.fdaef.local_data import Part
from evalsuite.fdaef.registry import Benchmark, Dataset
from evalsuite.fdaef.scores import TaskScore

TASKS = CONFIGS / "ecdbench" / "tasks"
LmSample = Mapping[str, Any]
T = TypeVar("T")


class Unanswered(Exception):
    """The server gave no answer that lm-eval can read; the text says what came instead."""


class Unavailable(Exception):
    """A task or its data cannot be loaded; the text says why."""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


@dataclass(frozen=True)
class Asked:
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
    import datasets
    from lm_eval.tasks import TaskManager

    datasets.disable_progress_bars()
    # Every dataset says how it was set up, and a server that is gone says so once a question: several screens a run. What
    # matters of it, questions cut to fit the context, is counted by `ask`; errors come back as `Unanswered`.
    logging.getLogger("lm_eval").propagate = False
    return TaskManager(include_path=str(TASKS))


def language_model(url: str, served: str, tokenizer: str | None, key: str | None, context: int, concurrency: int) -> Any:
    """An lm-eval model behind an OpenAI-compatible address that ends in /v1. `tokenizer` is a folder or hub id; None: the
    server's own, where it offers one. The key goes into a header and nowhere else."""
    from evalsuite.fdaef.completions import SharedPrompts

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

        splits = {"custom_dataset": dataset, "test_split": "test", "validation_split": None, "training_split": None}
        # A task of a group of one: that is where lm-eval lets a task's config be overridden.
        tasks |= manager.load([{"group": f"local_{part.task}", "task": [{"task": part.task, **splits}]}])["tasks"]
    return tasks


def hub_tasks(manager: Any, dataset: Dataset) -> dict[str, Any]:
    """lm-eval's own task for a dataset, with the data that it downloads (for a group of tasks, all of them). Raises
    `Unavailable` where it cannot."""
    assert dataset.run is not None and dataset.run.task is not None
    try:
        return dict(manager.load([dataset.run.task])["tasks"])
    except Exception as error:  # of whatever library fetches
        raise Unavailable(f"lm-eval could not load its task {dataset.run.task}: {_first_line(error)}") from error


def draw(every: Sequence[T], name: str, limit: int, seed: int) -> list[T]:
    """The items of dataset `name` that are asked: all, or a sample of `limit`, the same for every model."""
    return list(every) if len(every) <= limit else random.Random(f"{seed}/{name}").sample(every, limit)


def ask(
    benchmark: Benchmark, name: str, tasks: Mapping[str, Any], lm: Any, model: str, limit: int, seed: int, chat: bool
) -> Asked:
    """Ask a sample of a dataset's items (over all of its tasks; all if there are fewer than `limit`).

    Items are the position in the files, so that two models with one seed answer the same ones.
    """
    from lm_eval.evaluator import evaluate

    every = [(task, index) for task in tasks for index in range(len(tasks[task].eval_docs))]
    drawn = draw(every, name, limit, seed)
    chosen = {task: sorted(index for drawn_task, index in drawn if drawn_task == task) for task in tasks}
    used = {task: one for task, one in tasks.items() if chosen[task]}
    for task in used.values():
        task.set_config(key="num_fewshot", value=0)
    asked = {task: chosen[task] for task in used}
    task_dict = {"tasks": used, "groups": {}, "group_map": {}}
    cuts, log = _Cuts(), logging.getLogger("lm_eval")
    log.addHandler(cuts)
    try:
        done = evaluate(lm, task_dict, samples=asked, bootstrap_iters=0, apply_chat_template=chat)
    except Exception as error:  # lm-eval and its HTTP client raise what they like: connections, statuses, missing keys
        raise Unanswered(_first_line(error)) from error
    finally:
        log.removeHandler(cuts)
    assert done is not None  # one process
    samples = [(task, sample) for task in used for sample in done["samples"][task]]
    scores = [score for task, sample in samples for score in scores_of(benchmark, name, model, task, sample)]
    # Where options differ from item to item there is no class that could have a majority.
    gold = [tuple(right) for _, sample in samples if (right := _gold(sample)) is not None and "options" not in sample["doc"]]
    majority = max(map(gold.count, gold)) / len(gold) if gold and len(gold) == len(samples) else None
    return Asked(scores, len(samples), len(every), majority, cuts.count)


def scores_of(benchmark: Benchmark, name: str, model: str, task: str, sample: LmSample) -> list[TaskScore]:
    """One item's scores, for every metric of the dataset that the task gives."""
    dataset = benchmark.datasets[name]
    scores: list[TaskScore] = []
    for method in dataset.methods:
        kind = benchmark.metrics[method.metric].items
        fields = _value(name, dataset, method.metric, kind, sample)
        if fields is not None:
            item = f"{task}:{sample['doc_id']}"
            scores.append(TaskScore(model=model, dataset=name, metric=method.metric, item=item, **fields))
    return scores


def _value(name: str, dataset: Dataset, metric: str, kind: str, sample: LmSample) -> dict[str, Any] | None:
    """The fields of a score that this metric needs; None where the task does not give it."""
    metric = "accuracy" if metric == "preferred" else metric  # right is the reply that people preferred
    if kind.startswith("bbq_"):
        return {"outcome": _bbq(sample)}
    if metric == "rouge_l":
        return {"value": _rouge_l(sample)}
    if metric in ("rouge_acc", "bleu_acc"):
        return {"value": int(sample[metric.replace("rouge", "rouge1")])}
    if metric == "accuracy" and "pct_stereotype" in sample:  # right is the sentence that stereotypes less
        return {"value": 1 - int(sample["pct_stereotype"]), "chance": 0.5}
    if not sample["resps"] or isinstance(sample["filtered_resps"][0], str):  # a reply in words, judged by lm-eval itself
        known = dataset.run.metric if dataset.run else None
        return {"value": int(sample[known])} if metric == "accuracy" and known is not None and known in sample else None
    options = [arguments[1].strip() for arguments in sample["arguments"]]
    chance = len(_right(sample)) / len(options)
    if kind in ("f1", "macro_f1"):
        labels = sample["doc"].get("labels") or options
        return {"outcome": {"gold": [labels[index] for index in _right(sample)], "answer": labels[_likeliest(sample)]}}
    if metric != "accuracy":
        return None
    gold = _gold(sample)
    right = bool(sample["acc"]) if gold is None else _likeliest(sample) in gold
    return {"value": int(right), "chance": chance}


def _gold(sample: LmSample) -> list[int] | None:
    """What our documents name as right; None for those of lm-eval's tasks (where HellaSwag's `gold` is a number)."""
    gold = sample["doc"].get("gold")
    return list(gold) if isinstance(gold, list) else None


def _right(sample: LmSample) -> list[int]:
    """The options that are right, from 0. BBQ's task adds further ways to say that nobody knows, all of them right at once."""
    doc = sample["doc"]
    if (gold := _gold(sample)) is not None:
        return gold
    if "answer_info" in doc and doc["answer_info"][f"ans{doc['label']}"][-1] == "unknown":
        return list(range(2, len(sample["arguments"])))
    return [0]


def _likeliest(sample: LmSample) -> int:
    likelihoods = [reply[0] for reply in sample["filtered_resps"]]
    if any(math.isnan(one) for one in likelihoods):
        raise UserError("the server answered with log-probabilities that are no numbers")
    return max(range(len(likelihoods)), key=likelihoods.__getitem__)


def _bbq(sample: LmSample) -> dict[str, str]:
    """What lm-eval found: whether the answer names anybody, and whether that follows the stereotype."""
    _, biased, known, _ = sample["amb_bias_score"]
    context = {"ambig": "ambiguous", "disambig": "disambiguated"}[sample["doc"]["context_condition"]]
    return {"context": context, "answer": "unknown" if not known else "biased" if biased else "other"}


def _rouge_l(sample: LmSample) -> float | None:
    """ROUGE-L F1 over characters, 0 to 1, against the nearest reference; null for an empty reply."""
    from evalsuite.statistics.text_metrics import rouge_l

    reply = str(sample["filtered_resps"][0]).strip()
    return max(rouge_l(reply, reference, "character") for reference in sample["doc"]["references"]) if reply else None
