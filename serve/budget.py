"""The run's budget: its limits on time, calls and money, and the share of them that a dialogue needs to finish."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from core.errors import UserError
from core.specs import ModelSpec
from serve.answers import Reply

_FIRST = 4  # tasks begun at once if time is limited and the duration of a task is not known yet


@dataclass
class Share:
    """The part of a budget that is reserved for a task (a dialogue with its verdicts)."""

    calls: int = 0
    cost: float = 0.0
    asked: int = 0
    """Calls that were answered."""
    beyond: bool = False
    """Whether it exceeds the budget: the task must then leave the shares of others alone."""


_SHARE: ContextVar[Share | None] = ContextVar("_SHARE", default=None)  # of the running task


@dataclass
class Budget:
    """A run's limits on time, calls and money. When one is reached, nothing more is asked, and the results so far are written.

    Seconds count from its creation, so per command; calls (answers) and cost are those of the whole run folder. Calls in flight
    when a limit is reached are finished. Tasks that are useless unfinished run in `room`.
    """

    max_time: float | None = None
    """Seconds."""
    max_calls: int | None = None
    max_cost: float | None = None
    """In the currency of the specs' prices."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._started = self.clock()
        self._calls, self._cost, self._in_flight = 0, 0.0, 0
        self._shares: dict[str, Share] = {}  # of tasks that have begun
        self._running, self._width, self._spent = 0, _FIRST, False
        self._took: list[float] = []  # seconds per finished task
        self._waiting: deque[tuple[str, Share, asyncio.Future[None]]] = deque()

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return any(limit is not None for limit in (self.max_time, self.max_calls, self.max_cost))

    def begin(self, specs: Iterable[ModelSpec], stored: Mapping[str | None, tuple[int, int, int]]) -> None:
        """Count the answers in the store: spec → (answers, prompt tokens, completion tokens). Raises `UserError` for a model
        without prices if there is a limit on cost. A model with a checkpoint is served by the user and costs nothing."""
        by_name = {spec.name: spec for spec in specs}
        self._calls = sum(answers for answers, _, _ in stored.values())
        for spec in by_name.values() if self.max_cost is not None else ():
            if spec.endpoint.price is None and spec.checkpoint is None:
                prices = "endpoint.price: {input: …, output: …} (per million tokens)"
                raise UserError(f"max_cost: model {spec.name} has no prices: put {prices} into its spec")
        self._cost = sum(cost(by_name[name], *tokens) for name, (_, *tokens) in stored.items() if name in by_name)

    @asynccontextmanager
    async def room(self, work: str, share: Share, later: Share | None = None) -> AsyncIterator[None]:
        """Run a task once the budget has room for its share in addition to those that have begun, or nothing else is running.
        Afterwards its `later` share stays reserved; all of its share does if it is left unfinished."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if reserved := self._shares.get(work):
            share = reserved
            self._running += 1
        else:
            self._waiting.append((work, share, turn))
            self._admit()
            await turn
        began, answered, before = self.clock(), share.asked, _SHARE.set(share)
        try:
            yield
            del self._shares[work]
            if later:
                self._shares[work] = later
            if share.asked > answered:
                self._took.append(self.clock() - began)
                self._width += 1
        finally:
            _SHARE.reset(before)
            self._running -= 1
            self._admit()

    def _admit(self) -> None:
        while self._waiting and (self._spent or not self._running or self._fits(self._waiting[0][1])):
            work, share, turn = self._waiting.popleft()
            if not turn.done():
                share.beyond = not self._fits(share)
                self._shares[work] = share
                self._running += 1
                turn.set_result(None)

    def _fits(self, new: Share) -> bool:
        """Whether the budget has room for another task in addition to those that have begun."""
        shares = [new, *self._shares.values()]
        duration = sum(self._took) / len(self._took) if self._took else 0.0
        end = self.clock() - self._started + duration
        return (
            (self.max_calls is None or self._calls + sum(share.calls for share in shares) <= self.max_calls)
            and (self.max_cost is None or self._cost + sum(share.cost for share in shares) <= self.max_cost)
            and (self.max_time is None or (self._running < self._width and end <= self.max_time))
        )

    def _reserved(self, attribute: Literal["calls", "cost"]) -> float:
        """The shares of other tasks, if the running one is beyond the budget."""
        here = _SHARE.get()
        others = [share for share in self._shares.values() if share is not here] if here and here.beyond else []
        return float(sum(getattr(share, attribute) for share in others))

    def begin_call(self) -> str | None:
        """Count a call that begins; returns why it may not be made, or None."""
        cause = self.over()
        if self.max_calls is not None and self._calls + self._in_flight + self._reserved("calls") >= self.max_calls:
            cause = cause or self._end(f"max_calls {self.max_calls} is reached: raise it to continue")
        self._in_flight += 1
        return cause

    def over(self) -> str | None:
        """Why a call that has begun may not be tried (again), or None: time or money is used up."""
        if self.max_time is not None and self.clock() - self._started >= self.max_time:
            return self._end(f"max_time {self.max_time:g} s is over")
        if self.max_cost is not None and self._cost + self._reserved("cost") >= self.max_cost:
            return self._end(f"max_cost {self.max_cost:g} is reached ({self._cost:.4g} spent): raise it to continue")
        return None

    def _end(self, cause: str) -> str:
        self._spent = True
        self._admit()
        return cause

    def end_call(self, spec: ModelSpec, reply: Reply | None) -> None:
        """Count a call that has ended, with or without an answer."""
        self._in_flight -= 1
        if reply is not None:
            spent = cost(spec, reply.prompt_tokens, reply.completion_tokens)
            self._calls += 1
            self._cost += spent
            if share := _SHARE.get():
                share.calls, share.cost, share.asked = max(share.calls - 1, 0), max(share.cost - spent, 0.0), share.asked + 1


def cost(spec: ModelSpec, prompt_tokens: int, completion_tokens: int) -> float:
    """The cost of these tokens by the spec's prices; 0 without prices."""
    price = spec.endpoint.price
    return price.of(prompt_tokens, completion_tokens) if price else 0.0
