"""Many calls at once: jobs that are answered from a store or by models, and a batch of questions to one model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from core.files import locked
from core.specs import ModelSpec
from serve.answers import Reply
from serve.client import ChatClient, Question
from serve.failures import NotStored, Unanswered
from serve.launch import Servers
from serve.plan import plan_servers
from serve.store import Store

T = TypeVar("T")
J = TypeVar("J")
R = TypeVar("R")
_LINE_EVERY_S = 30.0  # seconds between two lines of progress where there is no terminal
ServerVersions = dict[str, str | None]  # by model; None where a server tells none


class CallProgress:
    """Progress of long work that asks models: a bar with rate and time left; a line now and then where there is no terminal.

    Counts finished things (`unit`: dialogues, cards …); `client` is read for the tokens that its servers generated.
    """

    def __init__(self, total: int, client: ChatClient, console: Console, what: str, unit: str) -> None:
        self._client, self._console, self._total, self._what, self._unit = client, console, total, what, unit
        self._done = 0
        self._started = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total, rate="")

    def __enter__(self) -> CallProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def rate(self) -> str:
        """`12.3 UNIT/min, 456 tokens/s` since the start."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        generated = sum(tally.generated for tally in self._client.tallies.values())
        return f"{self._done / seconds * 60:.1f} {self._unit}/min, {generated / seconds:.0f} tokens/s"

    def step(self) -> None:
        """One more is finished."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, rate=self.rate())
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._last_line > _LINE_EVERY_S or self._done == self._total):
            self._last_line = now
            self._console.print(f"{self._what}: {self._done}/{self._total}, {self.rate()}")


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


@dataclass
class Desk:
    """Where jobs are answered: the models that are asked, who asks them, and where progress is shown.

    `client` makes a client of `endpoints` and `offline`. `servers` gives base URLs by model name for the time of asking, and
    launches what is not up yet. `names` are the names that a model must be served under.
    """

    specs: Sequence[ModelSpec]
    console: Console
    client: Callable[..., ChatClient]
    servers: Callable[[], AbstractContextManager[Mapping[str, str]]]
    names: Callable[[ModelSpec], Sequence[str]] = lambda spec: [spec.served_name()]


@dataclass(frozen=True, repr=False)  # asyncio.run asks for it: seconds, and a string as large as all records together
class Answers(Generic[R]):
    """Results in the order of the jobs, and the client that they came through, with its tallies and failures.

    `rate` says how fast the work went; it is None where the store held every answer.
    """

    results: list[R]
    client: ChatClient
    rate: str | None


def answered(
    desk: Desk,
    jobs: Sequence[J],
    work: Callable[[ChatClient, J], Awaitable[R]],
    title: str,
    unit: str,
    tries: Callable[[ChatClient, J], int] = lambda client, job: 0,
    checked: Callable[[ServerVersions], None] | None = None,
) -> Answers[R]:
    """Do `work` on every job: from the store where it holds all answers, else with servers up.

    `title` and `unit` are what the progress bar shows and counts. `tries` says in how many earlier tries a job failed: such
    jobs come last, so that they keep nothing else from being asked. `checked` is told the versions of the servers before
    anything is asked. Raises `UserError` when a model is not served.
    """

    async def everything(endpoints: Mapping[str, str], offline: bool) -> Answers[R]:
        results: dict[int, R] = {}
        console = Console(quiet=True) if offline else desk.console
        async with desk.client(endpoints=endpoints, offline=offline) as client:
            for spec in () if offline else desk.specs:
                await client.check(spec, desk.names(spec))
            if checked and not offline:
                checked({spec.name: await client.server_version(spec, min(desk.names(spec))) for spec in desk.specs})
            with CallProgress(len(jobs), client, console, title, unit) as progress:

                async def one(place: int) -> None:
                    results[place] = await work(client, jobs[place])
                    progress.step()

                order = sorted(range(len(jobs)), key=lambda place: tries(client, jobs[place]))
                await in_flight(order, one, client.width)
                rate = None if offline else progress.rate()
        return Answers([results[place] for place in range(len(jobs))], client, rate)

    try:
        return asyncio.run(everything({}, offline=True))
    except NotStored:
        with desk.servers() as endpoints:
            return asyncio.run(everything(endpoints, offline=False))


class Batch:
    """Questions to one model, many at once. Use as a context manager.

    Finished calls are in `store` (SQLite): asking again answers them from there. A server is launched (logs beside the store)
    only when something is missing and neither `base_url` nor the spec's endpoint names one; it stays up until the block ends.
    Entering raises `UserError` while another process asks from the same store.
    """

    def __init__(
        self, spec: ModelSpec, store: Path, console: Console, base_url: str | None = None, concurrency: int | None = None
    ) -> None:
        self.spec = spec
        self._console, self._store, self._concurrency = console, store, concurrency
        self._endpoints = {spec.name: base_url} if base_url else {}
        self._launched = ExitStack()
        self._told: set[str] = set()

    def __enter__(self) -> Batch:
        with ExitStack() as opened:
            opened.enter_context(locked(self._store.with_name(f".{self._store.name}.lock"), f"call store {self._store}"))
            self._calls = Store(self._store)
            opened.callback(self._calls.close)
            self._launched = opened.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._launched.close()

    @contextmanager
    def _servers(self) -> Iterator[Mapping[str, str]]:
        if not self._endpoints and self.spec.endpoint.base_url is None:
            plans = plan_servers([self.spec], self._store.parent / "logs")
            self._endpoints = dict(self._launched.enter_context(Servers(plans)).endpoints)
        yield self._endpoints

    def ask(self, questions: Sequence[Question], unit: str) -> list[Reply | Unanswered]:
        """The replies, in the order of the questions, or why there is none. `unit` is what the progress bar counts."""
        said: set[tuple[str, int | None]] = set()  # a server says much the same of every question
        failed = self._calls.failed_keys()

        async def reply(client: ChatClient, question: Question) -> Reply | Unanswered:
            try:
                return await client.ask(self.spec, question)
            except Unanswered as error:
                if (error.outcome, error.status) not in said:
                    said.add((error.outcome, error.status))
                    self._say(f"{'rejected' if error.outcome == 'rejected' else 'lost'}: {error}")
                return error

        def tries(client: ChatClient, question: Question) -> int:
            return failed.get(client.key(self.spec, question), 0) if failed else 0

        client = partial(ChatClient, self._calls, concurrency=self._concurrency, say=self._say, told=self._told)
        desk = Desk([self.spec], self._console, client, self._servers)
        answers = answered(desk, questions, reply, self.spec.name, unit, tries)
        if cause := answers.client.threshold.cause:
            self._say(f"ended early: {cause}")
        return answers.results

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
