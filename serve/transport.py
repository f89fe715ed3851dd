"""The transport: sends a request to a server that may be away, overloaded or broken, until it is answered or given up."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import orjson

from core.specs import ModelSpec
from serve import http
from serve.answers import Reply, UsageTally, reply_of_error
from serve.callables import CallableSpec
from serve.failures import NotAsked, NotReached, PassingError, Rejected, ServerLost, Threshold
from serve.limits import MOST, RATES, Budget, Limit, Patience, Rate, connections, queue_length
from serve.questions import Question

LOST_DIALOGUES = 3  # a model is not given up for failures in fewer: a single dialogue can make a server fail every time
_DOUBTFUL_TRIES = 3  # tries of a request whose 500 may be a refusal
_EMPTY_TRIES = 3  # an empty answer is accepted after this many: servers under load give meaningless ones


@dataclass
class _Server:
    """The state of the server at a base URL."""

    url: str
    limit: Limit
    rate: Rate
    patience: Patience
    tells_queue: bool = True
    turn: Limit = field(default_factory=lambda: Limit(1))  # the call that waits for the rate, older dialogues first


@dataclass
class _Call:
    """The progress of a call; times are in seconds of the client's clock."""

    spec: ModelSpec
    question: Question
    route: http.Route
    server: _Server
    doubtful: bool
    started: float
    answers: int  # the server's number of answers when the last try that counts began
    sent: float = 0.0  # time of the last try
    attempts: int = 0  # tries that count
    absences: int = 0  # tries that found the server away
    empty: int = 0  # empty answers
    idle: float = 0.0  # seconds of waiting for the server to return, or for the rate


@dataclass(frozen=True)
class Completion:
    """A server's reply, the number of tries, and the seconds since the call's turn came."""

    reply: Reply
    attempts: int
    seconds: float


@dataclass(kw_only=True)
class Transport:
    """Requests to any number of servers over one connection pool. Use as an async context manager.

    A call is retried after 408/409/425/429 (honouring Retry-After), 5xx, timeouts, dropped connections, unreadable bodies and
    aborted completions, with exponential back-off, for at most `give_up_s` + `timeout_s`. An empty answer is accepted only
    after two retries. An error about too long a prompt or a content policy counts as an answer. Any other status, a redirect
    and too large a body are `Rejected`; `ServerLost` is raised if the tries are used up. Nothing more is asked once `threshold`
    is reached or `budget` is used up.
    """

    concurrency: int | None = None
    """Most calls in flight. None: adapted to each server (`serve.limits.Limit`). Never more than the limit of open files."""
    attempts: int = 8
    """Tries per call. Those that find the server away count according to `patience_s`."""
    timeout_s: float = 600.0
    """Seconds for a try or, with streaming, between two pieces of a reply."""
    give_up_s: float = 900.0
    """Seconds after which a call is not retried."""
    lost_in_a_row: int = 5
    """A model that loses this many calls of `LOST_DIALOGUES` or more dialogues in a row is given up: later calls are lost."""
    threshold: Threshold = field(default_factory=Threshold)
    budget: Budget = field(default_factory=Budget)
    patience_s: float = 0.0
    """Seconds to wait for a server that is away (`serve.limits.Patience`)."""
    rates: dict[str, Rate] = field(default_factory=lambda: RATES)
    """Base URL → its rate, shared with other clients."""
    launched: Collection[str] = ()
    """Base URLs of our own servers, for which there is no point in waiting: if away, they have died."""
    say: Callable[[str], None] = lambda text: None
    """Called with notices: once a minute about a server that is away, and about assumptions."""
    told: set[str] = field(default_factory=set)
    """Notices that are not repeated."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    tallies: dict[tuple[str, str], UsageTally] = field(default_factory=lambda: defaultdict(UsageTally))
    """(Spec name, purpose) → usage."""

    async def __aenter__(self) -> Self:
        self._connections = connections()
        self._fixed_limit = Limit(self.concurrency, self._connections) if self.concurrency else None
        self._servers: dict[str, _Server] = {}  # by base URL
        self._routes: dict[tuple[str, str], http.Route] = {}  # by spec name and base URL
        self._begun: dict[str, int] = {}  # session → its place in the order of beginning
        # (base URL, served name) → dialogues of the calls lost since the last answer
        self._lost: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            headers={"Accept-Encoding": http.ACCEPTED},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    @property
    def width(self) -> int:
        """The useful number of concurrent tasks."""
        return self.concurrency or MOST

    @property
    def limits(self) -> dict[str, int]:
        """Base URL → its present limit on concurrent calls, if that adapts."""
        return {} if self.concurrency else {url: server.limit.limit for url, server in self._servers.items()}

    def _tell(self, text: str) -> None:
        """Give a notice, unless it was given before."""
        if text not in self.told:
            self.told.add(text)
            self.say(text)

    def _server(self, url: str) -> _Server:
        if url not in self._servers:
            limit = self._fixed_limit or Limit(None, self._connections)
            patience = Patience(self.patience_s, self.say, self.clock)
            rate = self.rates.setdefault(url, Rate(self.clock, self.sleep))
            self._servers[url] = _Server(url, limit, rate, patience)
        return self._servers[url]

    def _route(self, spec: ModelSpec, url: str) -> http.Route:
        place = spec.name, url
        if place not in self._routes:
            self._routes[place] = http.Route.to(spec, url)
        return self._routes[place]

    async def send(
        self, spec: ModelSpec, url: str, question: Question, body: Mapping[str, Any], doubtful: bool = False
    ) -> Completion:
        """The reply of the server at a base URL, after waiting for the call's turn and as many tries as needed. A `doubtful`
        request, which may be refused, is retried less often after a 500 or a web page. Raises `Rejected` or `ServerLost`."""
        server, route, payload = self._server(url), self._route(spec, url), orjson.dumps(body)
        place = url, question.served_name
        lost, limit, rate = self._lost[place], server.limit, server.rate
        # Dialogues are served in the order in which they began: the next turn of an old one precedes a new one's first.
        begun = self._begun.setdefault(question.session, len(self._begun)) if question.session else 0
        await limit.acquire(begun)
        reply: Reply | None = None
        if cause := self.budget.begin_call():
            self.threshold.end(cause, of_budget=True)
        call = _Call(spec, question, route, server, doubtful, self.clock(), server.patience.answers)
        try:
            if len(lost) >= self.lost_in_a_row and len(set(lost)) >= LOST_DIALOGUES:
                raise NotAsked(f"{call.route.where}: given up after {len(lost)} lost calls in a row")
            rate.tighten(spec.endpoint)
            while reply is None:
                if cause := self.budget.over():
                    self.threshold.end(cause, of_budget=True)
                if self.threshold.cause:
                    failure = NotReached if self.threshold.of_budget else NotAsked
                    raise failure(f"{call.route.where}: not asked any more: the run ended early")
                call.attempts += 1
                # One call at a time waits for the rate, so that none can overtake another.
                queued = self.clock()
                await server.turn.acquire(begun)
                try:
                    reserved = await rate.wait(len(payload), question.sampling.max_tokens)
                finally:
                    server.turn.release()
                call.sent = self.clock()
                call.idle += call.sent - queued
                try:
                    if isinstance(spec, CallableSpec):
                        answer = await spec.reply(orjson.loads(payload)["messages"], question, self.timeout_s)
                    else:
                        answer = await http.post_chat(self._session, call.route, payload, question.session, question.hears)
                except http.PASSING as error:
                    rate.settle(reserved, 0)
                    reply = await self._after(call, error)
                    continue
                server.patience.answered()
                rate.settle(reserved, answer.prompt_tokens + answer.completion_tokens or reserved)
                # An empty answer says nothing about the server's capacity, and is accepted only if it recurs.
                call.empty += answer.empty
                if not answer.empty and limit.answered(question.purpose, self.clock() - call.sent):
                    limit.adapt(await self._queue(spec, server))
                if not answer.empty or call.empty == _EMPTY_TRIES or call.attempts == self.attempts:
                    reply = answer
                else:
                    self.tallies[spec.name, question.purpose].retries += 1
            seconds = self.clock() - call.started - call.idle
        except Rejected:
            lost.clear()  # the server works
            server.patience.answered()
            raise
        finally:
            limit.release()
            self.budget.end_call(spec, reply)
        lost.clear()
        self.threshold.answered(place)
        return Completion(reply, call.attempts, seconds)

    async def _after(self, call: _Call, problem: Exception) -> Reply | None:
        """Wait for the next try (None), or return the last error's reply; raises `Rejected` or `ServerLost` without one."""
        server, patience, wait = call.server, call.server.patience, getattr(problem, "wait", None) or 0.0
        away, crowded = http.away_and_crowded(problem)
        if crowded:
            server.limit.crowded()
        if not away:
            patience.answered()
        elif (  # away for all calls, not only this one
            patience.answers == call.answers
            and server.url not in self.launched
            and patience.lasts(call.route.where, call.route.redact(problem))
        ):
            call.attempts -= 1
            call.absences += 1
            await self.sleep(max(wait, self._backoff(call.absences)))
            call.idle += self.clock() - call.sent
            return None
        call.answers = patience.answers
        left = self.give_up_s - (self.clock() - call.started - call.idle)
        status, told, meaning = (getattr(problem, name, None) for name in ("status", "told", "meaning"))
        refused = call.doubtful and status in (200, 500) and call.attempts >= _DOUBTFUL_TRIES
        if call.attempts < self.attempts and left > 0 and not refused:
            self.tallies[call.spec.name, call.question.purpose].retries += 1
            await self.sleep(min(wait + self._backoff(call.attempts - 1), left))
            return None
        # Some servers report a full context or a content filter as a 500, accepted only after all tries.
        if meaning in ("context_overflow", "content_filter") and (status or 0) >= 500:
            return reply_of_error(meaning)
        cause = problem if isinstance(problem, PassingError) else f"{type(problem).__name__} {problem}"
        message = f"{call.route.where}: gave up after {call.attempts} attempts: {call.route.redact(cause)}"
        if meaning == "passing":
            raise Rejected(message, status, told or "")
        if not refused:  # a refusal does not mean that the server is away
            dialogue = call.question.session or str(dict(call.question.sample))
            self._lost[server.url, call.question.served_name].append(dialogue)
        raise ServerLost(message, status, told or "")

    async def _queue(self, spec: ModelSpec, server: _Server) -> int | None:
        """Calls waiting at a server, if it reports them. Servers that need a key belong to others and are not asked."""
        if spec.endpoint.api_key_env or not server.tells_queue:
            return None
        metrics = await http.probe(self._session, f"{server.url.removesuffix('/v1')}/metrics")
        waiting = queue_length(metrics or b"")
        server.tells_queue = waiting is not None or metrics is None
        return waiting

    def _backoff(self, exponent: int) -> float:
        longest = min(self.backoff_max_s, self.backoff_s * 2 ** min(exponent, 30))
        return random.uniform(longest / 2, longest)
