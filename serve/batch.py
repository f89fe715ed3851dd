"""Many calls at once: bounded concurrency, and a batch of questions to one model that resumes from its store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from core.errors import UserError
from core.files import locked
from core.masking import problem_of
from core.specs import ModelSpec
from serve.answers import Reply
from serve.client import ChatClient, Question
from serve.failures import NotStored, Unanswered
from serve.launch import Servers
from serve.plan import plan_servers
from serve.progress import CallProgress
from serve.store import Store

T = TypeVar("T")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all at once, results in order. The first exception cancels the rest and is raised, bare."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def in_flight(jobs: Iterable[T], work: Callable[[T], Awaitable[None]], width: int) -> None:
    """Do `work` on every job, `width` at a time, starting the next as soon as one ends: nobody waits for a wave's slowest."""
    listed = list(jobs)
    queue = iter(listed)

    async def worker() -> None:
        for job in queue:
            await work(job)

    await together(worker() for _ in range(min(width, len(listed))))


class Batch:
    """Questions to one model, many at once. Use as a context manager.

    Finished calls are in `store` (SQLite): asking again answers them from there. A server is launched (logs beside the store)
    only when something is missing and neither `base_url` nor the spec's endpoint names one; it stays up until the block ends.
    Entering raises `UserError` while another process asks from the same store. Raises `UserError` for a `base_url` that holds a
    password.
    """

    def __init__(
        self, spec: ModelSpec, store: Path, console: Console, base_url: str | None = None, concurrency: int | None = None
    ) -> None:
        if base_url and (problem := problem_of(base_url)):
            raise UserError(f"--base-url: {problem}")
        self.spec = spec
        self._store, self._console, self._concurrency = store, console, concurrency
        self._endpoints = {spec.name: base_url} if base_url else {}
        self._servers = ExitStack()

    def __enter__(self) -> Batch:
        with ExitStack() as opened:
            opened.enter_context(locked(self._store.with_name(f".{self._store.name}.lock"), f"call store {self._store}"))
            self._calls = Store(self._store)
            opened.callback(self._calls.close)
            self._servers = opened.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._servers.close()

    def ask(self, questions: Sequence[Question], unit: str) -> list[Reply | Unanswered]:
        """The replies, in the order of the questions, or why there is none. `unit` is what the progress bar counts."""
        try:
            return asyncio.run(self._ask(questions, unit, offline=True))
        except NotStored:
            if not self._endpoints and self.spec.endpoint.base_url is None:
                plans = plan_servers([self.spec], self._store.parent / "logs")
                self._endpoints = dict(self._servers.enter_context(Servers(plans)).endpoints)
            return asyncio.run(self._ask(questions, unit, offline=False))

    async def _ask(self, questions: Sequence[Question], unit: str, offline: bool) -> list[Reply | Unanswered]:
        replies: dict[int, Reply | Unanswered] = {}
        told: set[tuple[str, int | None]] = set()
        async with ChatClient(self._calls, self._endpoints, self._concurrency, offline=offline) as client:
            if not offline:
                await client.check(self.spec, [self.spec.served_name()])
            console = Console(quiet=True) if offline else self._console
            with CallProgress(len(questions), client, console, self.spec.name, unit) as progress:

                async def one(index: int) -> None:
                    try:
                        replies[index] = await client.ask(self.spec, questions[index])
                    except Unanswered as error:
                        replies[index] = error
                        kind = (error.outcome, error.status)
                        if kind not in told:  # a server says much the same of every question
                            told.add(kind)
                            said = "rejected" if error.outcome == "rejected" else "lost"
                            console.print(f"{said}: {error}", highlight=False, markup=False, soft_wrap=True)
                    progress.step()

                failed = self._calls.failed_keys()  # in earlier tries: they come last
                places = list(range(len(questions)))
                if failed:
                    places.sort(key=lambda index: failed.get(client.key(self.spec, questions[index]), 0))
                await in_flight(places, one, client.width)
            if client.threshold.cause:
                console.print(f"ended early: {client.threshold.cause}", highlight=False, markup=False, soft_wrap=True)
        return [replies[index] for index in range(len(questions))]
