"""The chat client: asks OpenAI-compatible servers, many calls at once, and asks nothing twice.

Every finished call goes to the run's store under a key made of what is asked (messages, sampling, constraint), of whom
(the model's fingerprint, never its port) and which sample it is. A call whose key is in the store is answered from there.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from core.errors import UserError
from core.files import digest
from core.masking import problem_of
from core.specs import Constraint, ModelSpec
from serve import http
from serve.answers import BadFinish, Reply, Retry, Tally, Unreadable, answer_in
from serve.dialect import LIMITS, PROBE, PROBED, TRIED, Aspect, Dialect, Voice
from serve.failures import FailedCall, NotAsked, NotStored, NotUp, Rejected, ServerLost, Threshold, Unanswered
from serve.limits import MOST, Budget, Limit, Patience, Rate, connections, queue_length
from serve.questions import Question
from serve.store import KEPT, Origin, SameModel, Store

_LANGUAGES = {"en": "English", "zh": "Chinese"}
LOST_DIALOGUES = 3  # a model is not given up for what goes wrong in fewer: one dialogue alone can have a server fail every time
_UNSUPPORTED = (400, 422)  # how servers refuse a field
_PROBE_TOKENS = 32  # of an answer to the question that tries a constraint
_EMPTY_TRIES = 3  # an empty answer is believed when it comes this often: servers under load give some that mean nothing


def _temperature(spec: ModelSpec) -> str:
    return "the server's own temperature" if (degrees := spec.sampling.temperature) is None else f"temperature {degrees:g}"


def _assumed(spec: ModelSpec, context: int | None) -> str:
    """What is taken for granted of a model that its spec says little of; empty for a spec that says it."""
    if spec.checkpoint is not None or {"roles", "languages"} <= spec.model_fields_set:
        return ""
    known = [f"reads {context} tokens by its own word"] if context and spec.context_length is None else []
    drawn = f"{_temperature(spec)}, at most {spec.sampling.max_tokens} tokens a reply"
    speaks = " and ".join(_LANGUAGES[language] for language in spec.languages)
    return "; ".join([*known, f"assumed: it speaks {speaks}; replies are drawn at {drawn}"])


@dataclass
class _Server:
    """What is known of the server at one base URL."""

    url: str
    limit: Limit
    rate: Rate
    patience: Patience
    tells_queue: bool = True


@dataclass
class _Call:
    """How far a call has come, in seconds of the client's clock."""

    started: float
    sent: float = 0.0  # when its last try was sent
    attempts: int = 0  # tries that count
    absences: int = 0  # tries that found the server away
    empty: int = 0  # empty answers
    idle: float = 0.0  # seconds in which nothing was asked: the server was away, or had its rate


@dataclass
class ChatClient:
    """Calls for any number of models over one connection pool. Use as an async context manager.

    A call is tried again on 408/409/425/429 (Retry-After honoured), 5xx, timeouts, dropped connections, unreadable bodies and
    completions that the server broke off, with exponential back-off, each wait drawn from its upper half (with the defaults a
    server that restarts has at least half a minute). No call takes longer than `give_up_s` + `timeout_s` (25 minutes; about one
    where the server refuses at once). An answer without a word in it is asked for twice more before it is believed.

    An error that says that the prompt is too long, or against a content policy, is an answer. Any other status, a redirect, a
    body of more than `endpoint.max_response_mb` and a completion broken off in every try are `Rejected`; `ServerLost` is raised
    when the tries are used up. An answer that names another model than the first one did is no answer, and ends the run
    (`serve.store.SameModel`). Nothing is asked any more once `threshold` is reached or `budget` used up.
    """

    store: Store
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Spec name → base URL of a running server; wins over the spec's own."""
    concurrency: int | None = None
    """Calls in flight at most. None: each server has as many as it bears (`serve.limits.Limit`). Never more than this process
    may open files."""
    attempts: int = 8
    """Tries a call has. One that finds the server away counts only as `patience_s` says."""
    timeout_s: float = 600.0
    """Seconds that a try may take."""
    give_up_s: float = 900.0
    """Seconds after which a call is not tried again."""
    lost_in_a_row: int = 5
    """A model that lost so many calls, of at least `LOST_DIALOGUES` dialogues, with no answer between them, is given up: what
    is asked of it later is lost at once."""
    offline: bool = False
    """Raise `NotStored` for whatever is not in the store."""
    threshold: Threshold = field(default_factory=Threshold)
    keep_messages: int = KEPT
    """The store keeps the messages of a call beside its reply if they have at most so many bytes."""
    retry: Retry = field(default_factory=Retry)
    """Kinds of stored answers that are asked again, once; the old ones stay in the store beside the new."""
    budget: Budget = field(default_factory=Budget)
    patience_s: float = 0.0
    """Seconds that a server that is away is waited for (`serve.limits.Patience`)."""
    down: Mapping[str, str | None] = field(default_factory=dict)
    """Models without a server now, by name: why what is asked of them is lost; None: they are up in a later phase (`NotUp`)."""
    launched: Collection[str] = ()
    """Base URLs of servers that are not waited for: they died if they are away."""
    say: Callable[[str], None] = lambda text: None
    """Is told once a minute which server is waited for, and what is assumed of models."""
    told: set[str] = field(default_factory=set)
    """What was said already, and is not said again."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    """(Spec name, purpose) → what was asked and answered."""
    failures: list[FailedCall] = field(default_factory=list)
    """All calls without an answer."""

    async def __aenter__(self) -> ChatClient:
        self._connections = connections()
        self._fixed_limit = Limit(self.concurrency, self._connections) if self.concurrency else None
        self._servers: dict[str, _Server] = {}  # by base URL
        self._found: dict[str, str] = {}  # base URL as given → the one below it that has the API
        self._begun: dict[str, int] = {}  # session → its place in the order in which they began
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            headers={"Accept-Encoding": http.ACCEPTED},
        )
        self._fingerprints: dict[str, str] = {}
        self._models = SameModel(self.store.models())
        self._learnt = self.store.dialects()
        self._voices: dict[tuple[str, str], Voice] = {}  # (spec name, served name) → what is known of its server
        self._vllm: set[str] = set()  # base URLs of servers that say that they are vLLM's
        # (base URL, served name) → the dialogues of the calls lost since its last answer
        self._lost: dict[tuple[str, str], list[str]] = defaultdict(list)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    def from_store(self) -> ChatClient:
        """The same client for what is not to be asked now: it takes stored answers as they are, and raises `NotStored` for the
        others."""
        other = copy(self)
        other.offline, other.retry = True, Retry()
        return other

    @property
    def width(self) -> int:
        """How many pieces of work are worth having in flight at once."""
        return self.concurrency or MOST

    @property
    def limits(self) -> dict[str, int]:
        """Base URL → calls that it is given at once at this moment, where that adapts."""
        return {} if self.concurrency else {url: server.limit.limit for url, server in self._servers.items()}

    def base_url(self, spec: ModelSpec, served_name: str | None = None) -> str:
        """Where a model (or one of its adapters, by served name) answers; `UserError` when nothing serves it."""
        url = self.endpoints.get(served_name or "") or self.endpoints.get(spec.name) or spec.endpoint.base_url
        if url is None:
            raise UserError(f"model {spec.name}: no server is up for it and its spec has no endpoint.base_url")
        if problem := problem_of(url):
            raise UserError(f"model {spec.name}: {problem}")
        return self._found.get(url.rstrip("/"), url.rstrip("/"))

    async def check(self, spec: ModelSpec, served_names: Sequence[str]) -> None:
        """Ask the endpoint which models it serves, and say what is found or assumed of them, once.

        Raises `UserError` when it cannot be reached, does not serve these names, or reads less than a reply may have.
        """
        by_url: dict[str, list[str]] = defaultdict(list)  # on CPU every adapter is a server of its own
        for name in served_names:
            by_url[self.base_url(spec, name)].append(name)
        for url, names in by_url.items():
            where, context = http.place(spec, url), None
            if listing := await http.served_models(self._session, spec, url, names):
                context = listing.contexts[names[0]]
                if listing.of_vllm:
                    self._vllm.add(listing.url)
                if listing.url != url:
                    self._found[url] = listing.url
                    self._tell(f"{where}: no API there; {listing.url} has one and is asked")
            if assumed := _assumed(spec, context):
                self._tell(f"model {spec.name}: {assumed}")

    def _tell(self, text: str) -> None:
        """Say something once."""
        if text not in self.told:
            self.told.add(text)
            self.say(text)

    async def server_version(self, spec: ModelSpec, served_name: str) -> str | None:
        """The version of the vLLM server behind a model; None where it is another or does not say."""
        return await http.server_version(self._session, self.base_url(spec, served_name))

    def key(self, spec: ModelSpec, question: Question, body: dict[str, Any] | None = None) -> str:
        """The call's key (64 hex digits): what the room for reasoning is does not count."""
        if spec.name not in self._fingerprints:
            self._fingerprints[spec.name] = spec.fingerprint()
        body = body or question.body(spec, self._voice(spec, question.served_name).dialect)
        return digest([self._fingerprints[spec.name], body, dict(question.sample)])

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        """The model's reply: from the store when this call was finished before, else from the server.

        Raises `Unanswered` where there is no answer, `NotStored` with `offline`, `NotUp` for what a later phase asks.
        """
        try:
            return await self._asked(spec, question, self._voice(spec, question.served_name))
        except Unanswered as error:
            await self._keep_failure(self.key(spec, question), spec, question, error)
            raise

    def _voice(self, spec: ModelSpec, served_name: str) -> Voice:
        """What is known of a model at its server."""
        place = spec.name, served_name
        if place not in self._voices:
            self._voices[place] = Voice.of(spec.endpoint, self._learnt.get(place))
        return self._voices[place]

    async def _asked(self, spec: ModelSpec, question: Question, voice: Voice) -> Reply:
        """The reply, by what is known of the server; what is not known yet is found out."""
        asked = not self.offline and spec.name not in self.down
        missing = question.aspects - voice.settled if asked else set()
        if missing and self._of_vllm(spec, question.served_name):
            voice.dialect = Dialect.of(spec.endpoint, Dialect(constraint="structured_outputs"))
            await self._settle(spec, question.served_name, {"sampling", "constraint", "logprobs"})
        elif "constraint" in missing:
            async with voice.lock:
                if voice.dialect.constraint is None:
                    constraint = await self._constraint(spec, question, voice)
                    voice.dialect = voice.dialect.model_copy(update={"constraint": constraint})
        dialect = voice.dialect
        while True:
            try:
                reply = await self._ask(spec, question, voice, dialect)
            except Rejected as error:
                if voice.dialect != dialect and question.aspects <= voice.settled:  # another call has found out meanwhile
                    dialect = voice.dialect
                    continue
                changed = self._adapted(spec, dialect, question.body(spec, dialect), error)
                if changed is None or question.aspects <= voice.settled:
                    raise
                dialect = changed
                continue
            if asked and not question.aspects <= voice.settled:
                voice.dialect = voice.dialect.joined(dialect)
                await self._settle(spec, question.served_name, question.aspects)
                if sentences := voice.dialect.sentences():
                    self._tell(f"model {spec.name}: {'; '.join(sentences)}")
            return reply

    def _of_vllm(self, spec: ModelSpec, served_name: str) -> bool:
        """Whether a model's server is vLLM, which takes everything."""
        return self.base_url(spec, served_name) in self._vllm.union(self.launched)

    async def _settle(self, spec: ModelSpec, served_name: str, aspects: Collection[Aspect] = ()) -> None:
        """Keep what was found out of a model's server."""
        voice = self._voice(spec, served_name)
        voice.settled.update(aspects)
        await self.store.learn(spec.name, served_name, voice.record())

    def _adapted(self, spec: ModelSpec, dialect: Dialect, body: dict[str, Any], error: Rejected) -> Dialect | None:
        """The dialect without what the server refused; None where it refused something else."""
        if error.status not in _UNSUPPORTED:
            return None
        # Without the model's name and address: they may hold the very words that are looked for.
        told = str(error).partition(f"HTTP {error.status}: ")[2]
        return dialect.adapted(spec.endpoint, body, told)

    def _finding_out(self, spec: ModelSpec, question: Question, body: dict[str, Any], error: Rejected) -> bool:
        """Whether a refusal only says which field to leave out: many first calls at once meet the same, and none is lost."""
        voice = self._voice(spec, question.served_name)
        return not question.aspects <= voice.settled and self._adapted(spec, voice.dialect, body, error) is not None

    async def _constraint(self, spec: ModelSpec, question: Question, voice: Voice) -> Constraint:
        """How the server holds answers to their form, tried on a question of its own."""
        sampling = question.sampling.model_copy(update={"max_tokens": _PROBE_TOKENS})
        for constraint in TRIED:
            probe = Question(
                [{"role": "user", "content": PROBE}],
                sample={"probe": constraint},
                sampling=sampling,
                served_name=question.served_name,
                purpose=question.purpose,
                choices=PROBED,
            )
            dialect = voice.dialect.model_copy(update={"constraint": constraint})
            reply: Reply | None = None
            while reply is None:
                body = probe.body(spec, dialect)
                try:
                    reply, _, _ = await self._with_room(spec, probe, body, voice)
                except Rejected as error:
                    if error.status not in _UNSUPPORTED:
                        raise
                    changed = self._adapted(spec, dialect, body, error)
                    if changed is None or changed.constraint != constraint:
                        break
                    dialect = changed
            if reply is not None and reply.text.strip() in PROBED:
                return constraint
        return "none"

    async def _ask(self, spec: ModelSpec, question: Question, voice: Voice, dialect: Dialect) -> Reply:
        """The reply to a question as it is asked in a dialect."""
        body = question.body(spec, dialect)
        key = self.key(spec, question, body)
        tally = self.tallies[spec.name, question.purpose]
        reply, again = self.store.get(key), None
        if reply is not None:
            again = self.retry.reason(key, reply, question.readable)
        if reply is None or again:
            if self.offline:
                raise NotStored(key)
            if spec.name in self.down:
                raise self._not_up(spec)
            if again and "seed" in body:  # the same seed would draw the same answer
                body |= {"seed": int(digest([body["seed"], self.store.times_replaced(key)], 7), 16)}
            reply, call, seconds = await self._with_room(spec, question, body, voice)
            origin = Origin.of(spec, question.purpose, body, reply.model, call.attempts, self.keep_messages)
            await self.store.put(key, reply.model_dump(), seconds, origin, again)
            self.retry.done.add(key)
            tally.asked += 1
            tally.generated += reply.completion_tokens
            tally.seconds += seconds
        tally.add(reply)
        return reply

    def _not_up(self, spec: ModelSpec) -> NotUp | NotAsked:
        why = self.down[spec.name]
        return NotUp(spec.name) if why is None else NotAsked(why)

    async def _keep_failure(self, key: str, spec: ModelSpec, question: Question, error: Unanswered) -> None:
        item = str(question.sample.get("dialogue") or " ".join(map(str, question.sample.values())))
        self.failures.append(FailedCall(question.purpose, spec.name, item, error.outcome, error.status, str(error)))
        if not isinstance(error, NotAsked):
            await self.store.fail(key, item, question.purpose, spec.name, error.outcome, str(error))

    def _server(self, url: str) -> _Server:
        if url not in self._servers:
            limit = self._fixed_limit or Limit(None, self._connections)
            patience = Patience(self.patience_s, self.say, self.clock)
            self._servers[url] = _Server(url, limit, Rate(self.clock, self.sleep), patience)
        return self._servers[url]

    async def _with_room(
        self, spec: ModelSpec, question: Question, body: dict[str, Any], voice: Voice
    ) -> tuple[Reply, _Call, float]:
        """What `_in_turn` gives. A model that reasons has room for that beside its reply, from the first answer on that its
        reasoning has cut off: that call is made again."""
        tally = self.tallies[spec.name, question.purpose]
        roomy = body | {limit: body[limit] + spec.reasoning_room for limit in LIMITS if limit in body}
        if not voice.reasons:
            answered = await self._in_turn(spec, question, body, tally)
            if not answered[0].cut_while_reasoning or roomy == body:
                return self._unwrapped(answered, body)
            voice.reasons = True
            await self._settle(spec, question.served_name)
            self._tell(f"model {spec.name} reasons: it gets {spec.reasoning_room:,} tokens for that beside its replies")
        return self._unwrapped(await self._in_turn(spec, question, roomy, tally), body)

    @staticmethod
    def _unwrapped(answered: tuple[Reply, _Call, float], body: Mapping[str, Any]) -> tuple[Reply, _Call, float]:
        """An answer from a closed list without the object that our schema put around it."""
        reply, call, seconds = answered
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        if list(schema.get("properties", {})) == ["answer"]:
            reply = reply.model_copy(update={"text": answer_in(reply.text)})
        return reply, call, seconds

    async def _in_turn(
        self, spec: ModelSpec, question: Question, body: dict[str, Any], tally: Tally
    ) -> tuple[Reply, _Call, float]:
        """The server's reply, its call, and the seconds that it took once the call had its turn."""
        server = self._server(self.base_url(spec, question.served_name))
        place = server.url, question.served_name
        begun = self._begun.setdefault(question.session, len(self._begun)) if question.session else 0
        await server.limit.acquire(begun)
        reply: Reply | None = None
        if cause := self.budget.begin_call():
            self.threshold.end(cause)
        call = _Call(self.clock())
        try:
            reply = await self._answer(spec, question, orjson.dumps(body), tally, server, call)
            seconds = self.clock() - call.started - call.idle
        except Rejected as error:
            self._lost[place].clear()  # it works
            server.patience.answered()
            if not self._finding_out(spec, question, body, error):
                self.threshold.rejected(place, error)
            raise
        finally:
            server.limit.release()
            self.budget.end_call(spec, reply)
        self._lost[place].clear()
        self.threshold.answered(place)
        if problem := self._models.problem(spec, question.served_name, reply.model):
            problem = f"{http.place(spec, server.url)}: {problem}"
            self.threshold.end(problem)
            raise Rejected(problem)
        return reply, call, seconds

    async def _answer(
        self, spec: ModelSpec, question: Question, payload: bytes, tally: Tally, server: _Server, call: _Call
    ) -> Reply:
        """The reply, after as many tries as it takes."""
        where, patience = http.place(spec, server.url), server.patience
        lost = self._lost[server.url, question.served_name]
        if len(lost) >= self.lost_in_a_row and len(set(lost)) >= LOST_DIALOGUES:
            raise NotAsked(f"{where}: given up after {len(lost)} lost calls in a row")
        server.rate.tighten(spec.endpoint)
        answers = patience.answers
        while True:
            if cause := self.budget.over():
                self.threshold.end(cause)
            if self.threshold.cause:
                raise NotAsked(f"{where}: not asked any more: the run ended early")
            call.attempts += 1
            try:
                reply = await self._try(spec, question, payload, server, call)
                call.empty += reply.empty
                if not reply.empty or call.empty == _EMPTY_TRIES or call.attempts == self.attempts:
                    return reply
                tally.retries += 1
                continue
            except http.PASSING as error:
                problem = error
            wait = (problem.wait or 0.0) if isinstance(problem, http.PassingError) else 0.0
            if not http.is_away(problem):
                patience.answered()
            elif (  # away from everybody, not only from this call
                patience.answers == answers
                and server.url not in self.launched
                and patience.lasts(where, http.redact(spec, problem))
            ):
                call.attempts -= 1
                call.absences += 1
                await self.sleep(max(wait, self._backoff(call.absences)))
                call.idle += self.clock() - call.sent
                continue
            answers = patience.answers
            left = self.give_up_s - (self.clock() - call.started - call.idle)
            if call.attempts == self.attempts or left <= 0:
                return self._last_resort(spec, question, server, call, problem)
            tally.retries += 1
            await self.sleep(min(wait + self._backoff(call.attempts - 1), left))

    async def _try(self, spec: ModelSpec, question: Question, payload: bytes, server: _Server, call: _Call) -> Reply:
        """One try, when the server's rate allows it; what the server bears is learnt from its outcome."""
        queued = self.clock()
        reserved = await server.rate.wait(len(payload), question.sampling.max_tokens)
        call.sent = self.clock()
        call.idle += call.sent - queued
        try:
            reply = await http.post_chat(self._session, spec, server.url, payload, question.session)
        except http.PASSING as error:
            server.rate.settle(reserved, 0)
            if http.is_crowded(error):
                server.limit.crowded()
            raise
        server.patience.answered()
        server.rate.settle(reserved, reply.prompt_tokens + reply.completion_tokens or reserved)
        if not reply.empty and server.limit.answered(question.purpose, self.clock() - call.sent):
            server.limit.adapt(await self._queue(spec, server))
        return reply

    async def _queue(self, spec: ModelSpec, server: _Server) -> int | None:
        """Calls that wait at a server, where it tells: one that wants a key is somebody else's, and is not asked."""
        if spec.endpoint.api_key_env or not server.tells_queue:
            return None
        metrics = await http.probe(self._session, f"{server.url.removesuffix('/v1')}/metrics")
        waiting = queue_length(metrics or b"")
        server.tells_queue = waiting is not None or metrics is None
        return waiting

    def _backoff(self, exponent: int) -> float:
        longest = min(self.backoff_max_s, self.backoff_s * 2 ** min(exponent, 30))
        return random.uniform(longest / 2, longest)

    def _last_resort(self, spec: ModelSpec, question: Question, server: _Server, call: _Call, problem: Exception) -> Reply:
        """The reply that the last try's error stands for. Raises `Rejected` or `ServerLost` where it stands for none."""
        if isinstance(problem, http.PassingError) and problem.believed:
            return problem.believed
        cause = problem if isinstance(problem, http.PassingError | Unreadable) else f"{type(problem).__name__} {problem}"
        message = f"{http.place(spec, server.url)}: gave up after {call.attempts} attempts: {http.redact(spec, cause)}"
        if isinstance(problem, BadFinish):
            raise Rejected(message)
        self._lost[server.url, question.served_name].append(question.session or str(dict(question.sample)))
        raise ServerLost(message, problem.status if isinstance(problem, http.PassingError) else None)
