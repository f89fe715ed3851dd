"""Running a benchmark's tasks on lm-eval: documents → questions → answers. `answers`, beside this file, makes scores of them.

A choice is answered by the likeliest option (log-probability of its text after the prompt, not normalised by length), so a
server has to tell the log-probabilities of a prompt (POST /completions with `echo`: vLLM does, chat-only APIs do not). Tasks of
lm-eval are asked in its words, ours in configs/ecdbench/tasks. No examples are shown (zero-shot).
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from core.errors import UserError, near
from core.files import CONFIGS
from core.grouping import group_by
from evalsuite.papers.ecdbench.answers import majority_share, scores_of
from evalsuite.papers.ecdbench.forms import Doc
from evalsuite.papers.ecdbench.local_data import Part
from evalsuite.papers.ecdbench.registry import Benchmark, Dataset
from evalsuite.papers.ecdbench.scores import TaskScore

TASKS = CONFIGS / "ecdbench" / "tasks"
T = TypeVar("T")


class UnansweredItem(Exception):
    """The server gave no answer that lm-eval can read; the text says what came instead."""


class Unavailable(Exception):
    """A task or its data cannot be loaded; the text says why."""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


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
        tasks |= manager.load(
            [
                {
                    "group": f"local_{part.task}",
                    "task": [{"task": part.task, "custom_dataset": dataset, "num_fewshot": 0, **splits}],
                }
            ]
        )["tasks"]
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
) -> AskedTask:
    """Ask a sample of a dataset's items (over all of its tasks; all if there are fewer than `limit`).

    Items are the position in the files, so that two models with one seed answer the same ones.
    """
    from lm_eval.evaluator import evaluate

    every = [(task, item) for task in tasks for item in _items(tasks[task].eval_docs)]
    drawn = draw(every, name, limit, seed)
    chosen = {task: sorted(index for drawn_task, item in drawn if drawn_task == task for index in item) for task in tasks}
    used = {task: one for task, one in tasks.items() if chosen[task]}
    for task in used.values():
        task.set_config(key="num_fewshot", value=0)
        _shorten(task, getattr(lm, "max_length", None))
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


def _items(docs: Any) -> list[tuple[int, ...]]:
    """What counts as one item: a document, or all that have one `group` (the answers to one question)."""
    if "group" not in docs.features:
        return [(index,) for index in range(len(docs))]
    return [tuple(index for index, _ in pairs) for pairs in group_by(enumerate(docs["group"]), lambda pair: pair[1]).values()]


def _shorten(task: Any, context: int | None) -> None:
    """Replies in words take at most half of the context: a server refuses a question that leaves no room for its answer."""
    settings = task.config.generation_kwargs or {}
    if context and settings.get("max_gen_toks", 0) > context // 2:
        task.set_config(key="generation_kwargs", value={"max_gen_toks": context // 2}, update=True)
