"""What holds calls back: slots at a server, a provider's rate, and patience with a server that is away."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
import resource
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from core.endpoints import Endpoint

# ---- slots

START = 16  # calls in flight at a server of which nothing is known yet
MOST = 1024  # where the server reports its queue
MOST_UNSEEN = 256  # elsewhere: a queue that nobody sees must not grow until calls time out
SLOWER = 3.0  # answers that take so many times the shortest time seen are waiting for something
FEW = 8  # fewer answers than this say nothing about how long one takes
QUEUED = 8  # a queue of one in so many calls in flight keeps the server's batch full; a longer one only waits
FILES = 65_536  # the limit of open files is raised to this: programs that close all they might have open take long for more
# Open files that are no connections: the store, outputs, modules loaded late, servers' pipes; a quarter of a low limit.
RESERVE = 48
_WAITING = re.compile(rb"^vllm:num_requests_waiting(?:\{[^}\n]*\})? ([0-9.eE+-]+)\s*$", re.M)


def connections() -> int:
    """How many connections this process may have, at least one: its limit of open files, raised as far as the system lets it
    (`ulimit -Hn`, at most `FILES`), less those that are open already and `RESERVE`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has limits beside this one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    most = FILES if soft == resource.RLIM_INFINITY else soft
    return int(max(most - psutil.Process().num_fds() - min(RESERVE, most // 4), 1))


def queue_length(metrics: bytes) -> int | None:
    """Requests that wait at a vLLM server, by the text of its /metrics; None where it does not say."""
    counts = _WAITING.findall(metrics)
    return int(sum(map(float, counts))) if counts else None


class Limit:
    """Slots for calls at one server: a number that the user fixed, or one that adapts to what the server bears.

    It adapts as TCP does (additive increase, multiplicative decrease): doubled after every round of answers until something
    says that this is too much, from then on one more a round. Too much is, where the server reports its queue (vLLM's
    /metrics), a queue; elsewhere answers that take several times as long as they once did; and everywhere a 429, a 503, a call
    that timed out or one for which this process could open no connection.

    `acquire` waits for a slot. A lower `order` comes first, so that what was begun is ended before more is begun: a dialogue's
    next turn finds its prefix in the server's cache. `limit` is how many slots there are now, never more than `most`.
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
        self._since = 0  # calls that ended, one way or another, since there were last made fewer
        self._seconds: dict[str, list[float]] = defaultdict(list)  # of this round, by purpose
        self._least: dict[str, float] = {}  # the shortest mean of a round, by purpose

    async def acquire(self, order: int = 0) -> None:
        """Wait for a slot. Whoever has one gives it back with `release`."""
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
            if turn.done() and not turn.cancelled():  # the slot came in the same moment
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
        """Book an answer; True when a round is over and `adapt` wants the server's queue."""
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
        """The server said that it is too much, or let a call time out: half as many, once for all calls in flight."""
        self._since += 1
        if self._adaptive and (self._doubling or self._since > self._busy):
            self._shrink(self.limit // 2)

    def adapt(self, waiting: int | None) -> None:
        """At the end of a round: fewer slots where calls queue up, more where slots were missing. `waiting` is how many calls
        wait at the server (None: not reported)."""
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
        """How much longer this round's answers took than the quickest round's, each purpose against itself."""
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

_LOOK_S = 1.0  # how often a waiting call looks whether answers took fewer tokens than was thought
_BYTES_A_TOKEN = 3  # a guess, until the server has counted: Chinese has about three, English four


@dataclass
class Rate:
    """Requests and tokens a minute at one base URL: the lowest that any spec states. Calls are evenly spaced.

    It outlives clients and their event loops: a provider counts what all phases, roles and specs of a command ask.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._request_s = self._token_s = 0.0  # seconds that a request, and a token, take up
        self._requests = self._tokens = float("-inf")  # until when what was begun takes up its share

    def tighten(self, endpoint: Endpoint) -> None:
        """Heed what a spec states."""
        if endpoint.requests_per_minute:
            self._request_s = max(self._request_s, 60 / endpoint.requests_per_minute)
        if endpoint.tokens_per_minute:
            self._token_s = max(self._token_s, 60 / endpoint.tokens_per_minute)

    async def wait(self, payload: int, max_tokens: int) -> int:
        """Wait until a request of so many bytes may be sent; returns the tokens reserved for it until `settle`: those of its
        prompt and as many as its answer may have."""
        if not self._request_s and not self._token_s:
            return 0
        tokens = payload // _BYTES_A_TOKEN + max_tokens
        while (left := max(self._requests, self._tokens) - self.clock()) > 0:
            await self.sleep(min(left, _LOOK_S))
        now = self.clock()
        self._requests, self._tokens = now + self._request_s, now + tokens * self._token_s
        return tokens

    def settle(self, reserved: int, used: int) -> None:
        """A request that had so many tokens reserved has ended and used so many."""
        self._tokens += (used - reserved) * self._token_s


RATES: dict[str, Rate] = {}  # of this process, by base URL


# ---- patience

START_TIMEOUT = 900.0  # seconds: loading 28 GB from a slow disk, compiling and capturing graphs take some minutes
HOUR = 3600.0
_SAY_EVERY_S = 60.0


@dataclass
class Patience:
    """How long one server has been away (it refuses connections, or answers only 429, 503, 529), and whether to go on waiting.

    A try that finds it away is none: it does not count among a call's attempts, for as long as the server answers nobody. One
    that answers other calls meanwhile is there, only busy; then the attempts count. `say` is called once a minute.
    """

    most_s: float
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    answers: int = 0
    _since: float | None = None
    _said: float = 0.0

    def answered(self) -> None:
        """The server answered, whatever it said."""
        self._since = None
        self.answers += 1

    def lasts(self, where: str, problem: str) -> bool:
        """Whether to go on waiting, after another try that found the server away."""
        now = self.clock()
        if self._since is None:
            self._since = self._said = now
        waited = now - self._since
        if waited >= self.most_s:
            return False
        if now - self._said >= _SAY_EVERY_S:
            self._said = now
            self.say(
                f"{where} has not been available for {waited / 60:.0f} min ({problem}); waiting up to "
                f"{self.most_s / 60:.0f} min (patience)"
            )
        return True
