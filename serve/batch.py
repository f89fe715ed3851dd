"""Many calls at once: jobs answered from a store or by models, and batches of questions to one model."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from core.files import locked
from core.specs import ModelSpec
from core.tables import Screen
from serve.answers import Reply
from serve.callables import CallableSpec
from serve.client import ChatClient
from serve.failures import FailedCall, NotReached, NotStored, NotUp, Threshold, Unanswered
from serve.questions import Question
from serve.store import CallStore

T = TypeVar("T")
J = TypeVar("J")
R = TypeVar("R")
E = TypeVar("E")
_LINE_EVERY_S = 30.0  # seconds between two lines of progress without a terminal
ServerVersions = dict[str, str | None]  # by model; None if a server reports none


class CallProgress(Progress):
    """Progress of long work with models: a bar with rate and time left or, without a terminal, a line now and then. It counts
    finished items (`unit`: dialogues, cards …), and the tokens generated for `client`."""

    def __init__(self, total: int, client: ChatClient, console: Console, what: str, unit: str) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=4,  # the default of 10 would slow the calls
            disable=not console.is_terminal,
        )
        self._client, self._total, self._what, self._unit, self._done = client, total, what, unit, 0
        self._started = time.monotonic()
        self._last_line = -_LINE_EVERY_S
        self._shown = self.add_task(what, total=total, rate="")

    def rate(self) -> str:
        """`12.3 UNIT/min, 456 tokens/s` since the start."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        generated = sum(tally.generated for tally in self._client.tallies.values())
        return f"{self._done / seconds * 60:.1f} {self._unit}/min, {generated / seconds:.0f} tokens/s"

    def step(self) -> None:
        """Count a finished item."""
        self._done += 1
        self.update(self._shown, completed=self._done, rate=self.rate())
        now = time.monotonic()
        if not self.console.is_terminal and (now - self._last_line > _LINE_EVERY_S or self._done == self._total):
            self._last_line = now
            left = (now - self._started) / self._done * (self._total - self._done)
            ahead = f", about {timedelta(seconds=round(left))} left" if self._done < self._total else ""
            self.console.print(f"{self._what}: {self._done}/{self._total}, {self.rate()}{ahead}")


@contextmanager
def rare_collections(objects: int = 50_000) -> Iterator[None]:
    """Run Python's collector of reference cycles only after so many new objects: the objects of thousands of calls have few
    cycles, and searching for them after every 700 objects takes a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(objects, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all concurrently; results are in order. The first exception cancels the rest, but `NotUp` waits for it."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
            errors = [error for task in done if (error := task.exception())]
            for error in errors:
                if not isinstance(error, NotUp):
                    raise error
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    return [task.result() for task in tasks]


@dataclass(frozen=True)
class Phase:
    """Models that are up at the same time."""

    specs: Sequence[ModelSpec]
    endpoints: Mapping[str, str]
    """Base URLs by model name."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Models whose server did not start, with the reason."""
    number: int = 1
    of: int = 1
    """The number of phases. All jobs end in the last."""


@dataclass
class Desk(Generic[J, R, E]):
    """Jobs to answer, and the means: the models, their servers and client, and the console for progress.

    `client` makes a client from `endpoints`, `offline` and `down`. `servers` yields the phases (usually one), whose servers are
    up by then. `names` are the names under which a model must be served. `title` and `unit` are for the progress bar.
    """

    specs: Sequence[ModelSpec]
    console: Console
    client: Callable[..., ChatClient]
    servers: Callable[[], Generator[Phase, None, None]]
    jobs: Sequence[J]
    work: Callable[[ChatClient, J], Awaitable[R]]
    title: str
    unit: str
    done: Callable[[Answers[R]], E]
    """Makes what `answered` returns of the answers to all jobs."""
    names: Callable[[ModelSpec], Sequence[str]] = lambda spec: [spec.served_name()]
    order: Callable[[ChatClient, J], Any] = lambda client, job: 0
    """Jobs begin in this order: by the number of earlier failures, so that failing jobs do not keep others from being asked."""
    checked: Callable[[ServerVersions], None] = lambda versions: None
    """Gets the versions of the servers before anything is asked."""


@dataclass(frozen=True, repr=False)  # asyncio.run calls repr, which would take seconds and as much memory as all records
class Answers(Generic[R]):
    """Results in the order of the jobs, the client that got them, with its tallies and failures, the speed of the work (None if
    all answers were in the store), and base URL → its final limit on concurrent calls."""

    results: list[R]
    client: ChatClient
    rate: str | None
    in_flight: Mapping[str, int]


def answered(desk: Desk[J, R, E]) -> E:
    """Do the work on every job: from the store if it has all answers, else with servers. Raises `UserError` if a model is not
    served.

    A job has no result (`NotUp`) if it needs a model that is not up, or a call beyond the budget. If the model is up in a later
    phase, the job begins again there: its earlier answers are in the store.
    """
    jobs = desk.jobs
    versions: ServerVersions = {}

    async def everything(phase: Phase | None, down: Mapping[str, str | None], ended: Threshold | None = None) -> Answers[R]:
        results: dict[int, R] = {}
        offline = phase is None
        console = Screen(quiet=True) if phase is None or ended else desk.console
        endpoints = phase.endpoints if phase else {}
        async with desk.client(endpoints=endpoints, offline=offline, down=down) as client:
            if ended and ended.cause:
                client.threshold.end(ended.cause, ended.of_budget)
            for spec in phase.specs if phase else ():
                await client.check(spec, desk.names(spec))
                versions[spec.name] = await client.server_version(spec, min(desk.names(spec)))
            if phase:
                desk.checked(versions)
            named = desk.title
            if phase and phase.of > 1:
                named += f" {phase.number}/{phase.of} ({', '.join(spec.name for spec in phase.specs)})"
            with rare_collections(), CallProgress(len(jobs), client, console, named, desk.unit) as progress:
                places = iter(sorted(range(len(jobs)), key=lambda place: desk.order(client, jobs[place])))

                async def worker() -> None:  # takes the next job as soon as one ends
                    for place in places:
                        try:
                            results[place] = await desk.work(client, jobs[place])
                        except NotReached:
                            continue
                        except NotUp:  # done for this phase
                            pass
                        progress.step()

                try:
                    await together(worker() for _ in range(min(client.width, len(jobs))))
                finally:
                    for spec in desk.specs:
                        if isinstance(spec, CallableSpec):
                            await spec.end(client.timeout_s)
                rate = None if offline else progress.rate()
        return Answers([results[place] for place in sorted(results)], client, rate, client.limits)

    # First without servers: if all answers are in the store, none is started.
    with suppress(NotStored):
        return desk.done(asyncio.run(everything(None, {})))
    named = {spec.name for spec in desk.specs}
    done: list[tuple[Phase, Answers[R]]] = []
    failed: dict[str, str] = {}
    with closing(desk.servers()) as phases:
        for phase in phases:
            up = {spec.name for spec in phase.specs}
            earlier = {spec.name for before, _ in done for spec in before.specs}
            failed |= phase.failed
            # Jobs that need a model of a later phase wait for it (None); those that need an earlier one are lost (a reason).
            down: dict[str, str | None] = dict.fromkeys(named - up, "its server is stopped: all others were asked")
            if phase.number < phase.of:
                down |= dict.fromkeys(named - up - earlier, None)
            down |= failed
            done.append((phase, asyncio.run(everything(phase, down))))
            ended = done[-1][1].client.threshold
            if ended.cause and phase.number < phase.of:  # ask nothing more, and start no further servers
                last = Phase([], {}, number=phase.of, of=phase.of)
                lost = dict.fromkeys(named, f"not asked any more: the run ended early: {ended.cause}")
                done.append((last, asyncio.run(everything(last, lost, ended))))
                break
    return desk.done(_joined(done) if len(done) > 1 else done[0][1])


def _joined(done: Sequence[tuple[Phase, Answers[R]]]) -> Answers[R]:
    """The last phase's answers, with the calls, failures and times of all phases."""
    last = done[-1][1]
    failures: list[FailedCall] = []
    for phase, answers in done:
        models = {*(spec.name for spec in phase.specs), *phase.failed}
        earlier = {(failure.role, failure.model, failure.dialogue) for failure in failures}
        failures = [failure for failure in failures if failure.model not in models]
        failures += [
            failure
            for failure in answers.client.failures
            if failure.model in models or (answers is last and (failure.role, failure.model, failure.dialogue) not in earlier)
        ]
        for role_and_model, tally in answers.client.tallies.items() if answers is not last else ():
            last.client.tallies[role_and_model].took(tally)
    last.client.failures[:] = failures
    rates = [answers.rate for phase, answers in done if answers.rate and phase.specs]
    limits = {url: limit for _, answers in done for url, limit in answers.in_flight.items()}
    return Answers(last.results, last.client, "; then ".join(rates), limits)


class Batch:
    """Questions to one model, many at once. Use as a context manager. Finished calls are kept in `store` and not repeated. A
    server is launched only if an answer is missing and neither `base_url` nor the spec's endpoint names one; it stays up until
    the block ends. Entering raises `UserError` while another process uses the store."""

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
            self._calls = CallStore(self._store)
            opened.callback(self._calls.close)
            self._launched = opened.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._launched.close()

    def _servers(self) -> Generator[Phase, None, None]:
        if not self._endpoints and self.spec.endpoint.base_url is None:
            from serve.launch import Servers  # loaded only to start a server
            from serve.plan import plan_servers

            plans = plan_servers([self.spec], self._store.parent / "logs")
            self._endpoints = dict(self._launched.enter_context(Servers(plans)).endpoints)
        yield Phase([self.spec], self._endpoints)

    def ask(self, questions: Sequence[Question], unit: str) -> list[Reply | Unanswered]:
        """The replies, in the order of the questions, or why there is none. `unit` is the progress bar's."""
        reported: set[tuple[str, int | None]] = set()  # report similar errors once
        failed = self._calls.failed_keys()

        async def reply(client: ChatClient, question: Question) -> Reply | Unanswered:
            try:
                return await client.ask(self.spec, question)
            except Unanswered as error:
                if (error.outcome, error.status) not in reported:
                    reported.add((error.outcome, error.status))
                    self._say(f"{'rejected' if error.outcome == 'rejected' else 'lost'}: {error}")
                return error

        def tries(client: ChatClient, question: Question) -> int:
            return failed.get(client.key(self.spec, question), 0) if failed else 0

        client = partial(ChatClient, self._calls, concurrency=self._concurrency, say=self._say, told=self._told)

        def results(answers: Answers[Reply | Unanswered]) -> list[Reply | Unanswered]:
            if cause := answers.client.threshold.cause:
                self._say(f"ended early: {cause}")
            return answers.results

        desk = Desk(
            specs=[self.spec],
            console=self._console,
            client=client,
            servers=self._servers,
            jobs=questions,
            work=reply,
            title=self.spec.name,
            unit=unit,
            done=results,
            order=tries,
        )
        return answered(desk)

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
