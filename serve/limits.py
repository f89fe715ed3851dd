"""Limits on calls: slots at a server, a provider's rate, and patience with a server that is not available."""

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
