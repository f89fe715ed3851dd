"""Limits on calls: slots at a server, a provider's rate, patience with a server that is not available, and the run's budget of
time, calls and money, with the share of it that a dialogue needs to finish."""

import asyncio
import heapq
import itertools
import re
import resource
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import psutil

from core.endpoints import Endpoint
from core.errors import UserError
from core.specs import ModelSpec
from serve.answers import Reply

# ---- slots

START = 16  # calls in flight at an unknown server
MOST = 1024  # most calls in flight, if the server reports its queue
MOST_UNSEEN = 256  # otherwise: an invisible queue must not grow until calls time out
SLOWER = 3.0  # answers that take this many times the shortest time are waiting for something
FEW = 8  # fewest answers from which to estimate a duration
QUEUED = 8  # a queue of one in this many calls in flight keeps the server's batch full; a longer one only waits
FILES = 65_536  # our limit of open files: programs that close all possible files would take long with a higher one
# Open files other than connections (store, outputs, late imports, servers' pipes), at most a quarter of a low limit.
RESERVE = 48
_WAITING = re.compile(rb"^vllm:num_requests_waiting(?:\{[^}\n]*\})? ([0-9.eE+-]+)\s*$", re.M)


def connections() -> int:
    """The number of connections that the limit of open files, raised as far as possible, leaves to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(OSError, ValueError):  # macOS has other limits too
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    most = FILES if soft == resource.RLIM_INFINITY else soft
    return int(max(most - psutil.Process().num_fds() - min(RESERVE, most // 4), 1))


def queue_length(metrics: bytes) -> int | None:
    """Requests waiting at a vLLM server, from the text of its /metrics; None if that has no such figure."""
    counts = _WAITING.findall(metrics)
    return int(sum(map(float, counts))) if counts else None


class Limit:
    """Slots for calls at a server: a number fixed by the user, or one that adapts to the server's capacity.

    It adapts like TCP (additive increase, multiplicative decrease): doubled after every round of answers until there are signs
    of overload, then increased by one per round. The signs are a queue, if the server reports it (vLLM's /metrics), otherwise
    answers that take several times as long as before, and always a 429, a 503, a timeout or a lack of connections on our side.
    `limit` is the present number of slots.
    """

    def __init__(self, fixed: int | None = None, most: int = MOST) -> None:
        self.limit = min(fixed or START, most)
        self._adaptive = fixed is None
        self._most = most
        self._busy = 0
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()
        self._doubling = True
        self._wanted = False  # whether a call had to wait in this round
        self._answers = 0  # of this round
        self._since = 0  # calls that have ended, answered or not, since the last decrease
        self._seconds: dict[str, list[float]] = defaultdict(list)  # of this round, by purpose
        self._least: dict[str, float] = {}  # the shortest mean of a round, by purpose

    async def acquire(self, order: int = 0) -> None:
        """Wait for a slot, to be given back with `release`. A lower `order` comes first: a dialogue's next turn should find its
        prefix in the server's cache before new dialogues begin."""
        if self._busy < self.limit and not self._queue:
            self._busy += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (order, next(self._arrivals), turn))
        self._admit()
        self._wanted |= not turn.done()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot came at the same moment
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back."""
        self._busy -= 1
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._busy < self.limit:
            _, _, turn = heapq.heappop(self._queue)
            if not turn.done():  # cancelled while it waited
                self._busy += 1
                turn.set_result(None)

    def answered(self, purpose: str, seconds: float) -> bool:
        """Note an answer; True if a round is over and `adapt` needs the server's queue."""
        if not self._adaptive:
            return False
        self._answers += 1
        self._since += 1
        self._seconds[purpose].append(seconds)
        if self._answers < max(self.limit, FEW):
            return False
        self._answers = 0
        return True

    def crowded(self) -> None:
        """Halve the slots after a sign of overload, once for all calls in flight."""
        self._since += 1
        if self._adaptive and (self._doubling or self._since > self._busy):
            self._shrink(self.limit // 2)

    def adapt(self, waiting: int | None) -> None:
        """Adjust the slots after a round: fewer if calls queue up (`waiting`, if known), more if slots were missing."""
        slower = self._slower()
        if waiting is not None and waiting * QUEUED > self.limit:
            self._shrink(max(self.limit - waiting, self.limit // 2))
        elif waiting is None and slower > SLOWER:
            self._shrink(self.limit * 3 // 4)
        elif self._wanted:
            most = max(self.limit, MOST_UNSEEN if waiting is None else MOST)
            self.limit = min(self.limit + (self.limit if self._doubling else 1), most, self._most)
            self._admit()
        self._wanted = bool(self._queue)

    def _shrink(self, limit: int) -> None:
        self.limit = max(limit, 1)
        self._doubling = False
        self._answers = self._since = 0
        self._seconds.clear()

    def _slower(self) -> float:
        """The duration of this round's answers relative to the quickest round's, compared per purpose."""
        ratios = []
        for purpose, seconds in self._seconds.items():
            if len(seconds) < FEW:
                continue
            mean = sum(seconds) / len(seconds)
            self._least[purpose] = min(mean, self._least.get(purpose, mean))
            ratios += [mean / max(self._least[purpose], 1e-9)] * len(seconds)
        self._seconds.clear()
        return sum(ratios) / len(ratios) if ratios else 1.0


# ---- rate

_LOOK_S = 1.0  # seconds between a waiting call's checks, since answers may need fewer tokens than reserved
_BYTES_A_TOKEN = 3  # an estimate before the server's count: Chinese has about three, English four


@dataclass
class Rate:
    """Requests and tokens per minute at a base URL, evenly spaced: the lowest limits of all specs, over a whole command."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._request_s = self._token_s = 0.0  # seconds per request and per token
        self._requests = self._tokens = float("-inf")  # times until which earlier requests use up the rate

    def tighten(self, endpoint: Endpoint) -> None:
        """Apply a spec's limits."""
        if endpoint.requests_per_minute:
            self._request_s = max(self._request_s, 60 / endpoint.requests_per_minute)
        if endpoint.tokens_per_minute:
            self._token_s = max(self._token_s, 60 / endpoint.tokens_per_minute)

    async def wait(self, payload: int, max_tokens: int) -> int:
        """Wait until a request of this size in bytes may be sent; returns the tokens reserved for it until `settle`."""
        if not self._request_s and not self._token_s:
            return 0
        tokens = payload // _BYTES_A_TOKEN + max_tokens
        while (left := max(self._requests, self._tokens) - self.clock()) > 0:
            await self.sleep(min(left, _LOOK_S))
        now = self.clock()
        self._requests, self._tokens = now + self._request_s, now + tokens * self._token_s
        return tokens

    def settle(self, reserved: int, used: int) -> None:
        """Replace a finished request's reserved tokens by those it used."""
        self._tokens += (used - reserved) * self._token_s


RATES: dict[str, Rate] = {}  # this process's rates by base URL


# ---- patience

START_TIMEOUT = 900.0  # seconds: loading 28 GB from a slow disk, compiling and capturing graphs take several minutes
HOUR = 3600.0
_SAY_EVERY_S = 60.0


@dataclass
class Patience:
    """The time for which a server has been away (it refuses connections, or answers only 429, 503, 529), and its limit. While
    it answers no call at all, tries do not count among a call's attempts. `say` is called once a minute."""

    most_s: float
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    answers: int = 0
    _since: float | None = None
    _said: float = 0.0

    def answered(self) -> None:
        """Note any answer of the server."""
        self._since = None
        self.answers += 1

    def lasts(self, where: str, problem: str) -> bool:
        """Whether to continue waiting after a try that found the server away."""
        now = self.clock()
        if self._since is None:
            self._since = self._said = now
        waited = now - self._since
        if waited >= self.most_s:
            return False
        if now - self._said >= _SAY_EVERY_S:
            self._said = now
            minutes = f"for {waited / 60:.0f} min ({problem}); waiting up to {self.most_s / 60:.0f} min (patience)"
            self.say(f"{where} has not been available {minutes}")
        return True


# ---- budget

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
