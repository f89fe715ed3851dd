"""How many calls are under way at one server: a number that the user fixed, or one that adapts to what the server bears.

It adapts as TCP does (additive increase, multiplicative decrease): doubled after every round of answers until something says
that this is too much, from then on one more a round. Too much is, where the server tells its queue (vLLM's /metrics), a queue;
elsewhere answers that take several times as long as they once did; and everywhere a 429, a 503, a call that timed out or one
for which this process could open no connection. There are never more calls under way than it may open files.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
import resource
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

START = 16  # calls under way at a server of which nothing is known yet
MOST = 1024  # where the server tells its queue
MOST_UNSEEN = 256  # elsewhere: a queue that nobody sees must not grow until calls time out
SLOWER = 3.0  # answers that take so many times the least that was seen wait for something
FEW = 8  # fewer answers than this say nothing about how long one takes
QUEUED = 8  # a queue of one in so many calls under way keeps the server's batch full; a longer one only waits
FILES = 65_536  # what the limit of open files is raised to: programs that close all they might have open take long for more
# Open files that are no connections: the store, what is written, modules that are loaded late, servers' pipes; a quarter of a
# low limit.
RESERVE = 48
CROWDED = frozenset({429, 503, 529})  # statuses that say so
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
    listed = Path("/proc/self/fd")
    most = FILES if soft == resource.RLIM_INFINITY else soft
    reserve = min(RESERVE, most // 4)
    used = len(list(listed.iterdir())) if listed.is_dir() else reserve
    return max(most - used - reserve, 1)


def queue_length(metrics: bytes) -> int | None:
    """Requests that wait at a vLLM server, by the text of its /metrics; None where it does not say."""
    found = _WAITING.findall(metrics)
    return int(sum(map(float, found))) if found else None


class Limit:
    """Slots for calls. `acquire` waits for one; those with a lower `order` come first, so that what was begun is ended before
    more is begun: a dialogue's next turn finds its prefix in the server's cache.

    `limit` is how many there are now, never more than `most`. `fixed` keeps it; None adapts it, by what `answered`, `crowded`
    and `adapt` are told.
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
        """Book an answer; True when a round is over and `adapt` is to be told the server's queue."""
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
        """The server said that it is too much (429, 503), or let a call time out: half as many, once for all calls that were
        under way."""
        self._since += 1
        if self._adaptive and (self._doubling or self._since > self._busy):
            self._shrink(self.limit // 2)

    def adapt(self, waiting: int | None) -> None:
        """At the end of a round: fewer where calls queue up, more where slots were missing. `waiting` is the server's queue
        (None where it tells none)."""
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
