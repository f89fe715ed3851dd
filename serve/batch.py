"""Many calls at once: bounded concurrency, and a batch of questions to one model that resumes from its store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from serve.client import ChatClient, NotStored, Question, Reply, ServerLost
from serve.launch import Servers
from serve.plan import plan_servers
from serve.progress import CallProgress
from serve.specs import ModelSpec
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
    queue = iter(jobs)

    async def worker() -> None:
        for job in queue:
            await work(job)

    await together(worker() for _ in range(width))


def ask_all(
    spec: ModelSpec,
    questions: Sequence[Question],
    store: Path,
    console: Console,
    what: str,
    base_url: str | None = None,
    concurrency: int = 64,
) -> list[Reply | None]:
    """One model's replies, in the order of the questions; None where the server was lost for good.

    Finished calls are in `store` (SQLite): asking again answers them from there, and a server is launched (logs beside the
    store) only when something is missing and neither `base_url` nor the spec's endpoint names one. `what` is the unit that the
    progress bar counts.
    """
    calls = Store(store)

    async def work(endpoints: dict[str, str], offline: bool) -> list[Reply | None]:
        replies: list[Reply | None] = [None] * len(questions)
        async with ChatClient(calls, endpoints, concurrency, offline=offline) as client:
            if not offline:
                await client.check(spec, [spec.served_name()])
            quiet = Console(quiet=True) if offline else console
            with CallProgress(len(questions), client, quiet, spec.name, what) as progress:

                async def one(index: int) -> None:
                    try:
                        replies[index] = await client.ask(spec, questions[index])
                    except ServerLost as error:
                        quiet.print(f"lost: {error}")
                    progress.step()

                await in_flight(range(len(questions)), one, concurrency)
        return replies

    try:
        return asyncio.run(work({}, offline=True))
    except NotStored:
        with ExitStack() as stack:
            endpoints = {spec.name: base_url} if base_url else {}
            if not base_url and spec.endpoint.base_url is None:
                endpoints |= stack.enter_context(Servers(plan_servers([spec], store.parent / "logs"))).endpoints
            return asyncio.run(work(endpoints, offline=False))
    finally:
        calls.close()
