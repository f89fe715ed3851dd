"""The chat client: asks OpenAI-compatible servers, many calls at once, and asks nothing twice.

Every finished call goes to the run's store under a key made of what is asked (messages, sampling, constraint), of whom
(the model's fingerprint, never its port) and which sample it is. A call whose key is in the store is answered from there.
"""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

import aiohttp
import orjson
from pydantic import ValidationError

from core.errors import UserError, near, printable
from core.files import digest
from core.masking import mask_message, problem_of
from core.records import Message
from core.specs import ModelSpec, Sampling
from serve import provenance
from serve.answers import BadFinish, Reply, Unreadable, read_reply, reply_of_error
from serve.budget import Budget
from serve.failures import FailedCall, NotAsked, NotStored, Rejected, ServerLost, Threshold, Unanswered
from serve.http import ACCEPTED, BadEncoding, read_body, redirect_target, retry_after
from serve.limit import CROWDED, MOST, Limit, connections, queue_length
from serve.markers import defang
from serve.patience import Patience
from serve.rate import Rate
from serve.retry import Retry
from serve.server_errors import error_text, meaning_of
from serve.store import Store

RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
LOST_DIALOGUES = 3  # a model is not given up for what goes wrong in fewer: one dialogue alone can have a server fail every time
_EMPTY_TRIES = 3  # an empty answer is believed when it comes this often: servers under load give some that mean nothing
_MEGABYTE = 2**20
_LISTED = 8 * _MEGABYTE  # bytes that a list of models or of a server's figures may have


class _Again(Exception):
    """An error that may pass. `wait` is what the server asks to wait, `believed` what the error stands for if it stays."""

    def __init__(self, problem: str, status: int, wait: float | None, believed: Reply | None) -> None:
        super().__init__(problem)
        self.status, self.wait, self.believed = status, wait, believed


@dataclass(frozen=True)
class Question:
    """One call to make. `sample` says which sample it is (dialogue, turn, dimension, repeat): part of its key.

    `choices` (a closed list) or `regex` constrain the answer where the server can; `logprobs` asks for token probabilities.
    `session` keeps calls of one dialogue on one server behind a router, `purpose` is what the tokens are booked under,
    `readable` tells whether a verdict can be read in an answer (None: none is asked for). None of the three is part of the key.
    """

    messages: Sequence[Message]
    sample: Mapping[str, str | int]
    sampling: Sampling
    served_name: str
    purpose: Literal["seeker", "supporter", "judge", "extraction"]
    choices: tuple[str, ...] | None = None
    regex: str | None = None
    logprobs: bool = False
    session: str | None = None
    readable: Callable[[str], bool] | None = None


@dataclass
class Tally:
    """One model in one role: calls, answers cut off at the token limit and tokens of all answers, and what this process really
    asked (retries, seconds, tokens).

    The first five are the same however often a run was interrupted; the others are not.
    """

    calls: int = 0
    cut_off: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    asked: int = 0
    retries: int = 0
    generated: int = 0
    seconds: float = 0.0


@dataclass
class ChatClient:
    """Calls for any number of models over one connection pool. Use as an async context manager.

    `endpoints` maps spec names to base URLs of running servers (they win over the spec's own). At most `concurrency` calls
    are in flight; with None each server has as many as it bears (`serve.limit`); never more than this process may open files.
    A call is tried `attempts` times: on 408/409/425/429 (Retry-After honoured), 5xx, timeouts, dropped connections, unreadable
    bodies and completions that the server broke off, with exponential back-off, each wait drawn from its upper half (with
    the defaults a server that restarts has at least half a minute). It is not tried again once `give_up_s` have passed, so
    no call takes longer than `give_up_s` + `timeout_s` (25 minutes; about one where the server refuses at once). An answer
    without a word in it is asked for twice more before it is believed.

    An error that says that the prompt is too long, or against a content policy, is an answer. Any other status, a redirect, a
    body of more than `endpoint.max_response_mb` and a completion broken off in every try are `Rejected`; `ServerLost` is raised
    when the tries are used up. A model that lost `lost_in_a_row` calls of at least `LOST_DIALOGUES` dialogues, with no answer
    between them, is given up: what is asked of it later is lost at once; so is everything once `threshold` is reached.
    `failures` lists all of these calls.

    An answer that names another model than the first one did is no answer, and ends the run (`provenance.SameModel`). The store
    keeps the messages of a call beside its reply if they have at most `keep_messages` bytes.
    A server that is away is waited for up to `patience_s` (`serve.patience`; not one of `launched`, base URLs of servers that
    died if they are away): such tries and their seconds count neither for `attempts` nor for `give_up_s`. `say` is told so.
    Nothing is asked any more once `budget` is used up. `clock` and `sleep` are for tests.
    Stored answers of the kinds that `retry` names are asked again, once; the old ones stay in the store beside the new.
    With `offline`, whatever is not in the store raises `NotStored`.
    """

    store: Store
    endpoints: Mapping[str, str] = field(default_factory=dict)
    concurrency: int | None = None
    attempts: int = 8
    timeout_s: float = 600.0
    give_up_s: float = 900.0
    lost_in_a_row: int = 5
    offline: bool = False
    threshold: Threshold = field(default_factory=Threshold)
    keep_messages: int = provenance.KEPT
    retry: Retry = field(default_factory=Retry)
    budget: Budget = field(default_factory=Budget)
    patience_s: float = 0.0
    launched: Collection[str] = ()
    say: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    failures: list[FailedCall] = field(default_factory=list)

    async def __aenter__(self) -> ChatClient:
        most = connections()
        # By base URL; fixed, one for all.
        self._limits: dict[str, Limit] = defaultdict(lambda: Limit(self.concurrency, most))
        self._begun: dict[str, int] = {}  # session → its place in the order in which they began
        self._silent: set[str] = set()  # servers that tell no queue
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=most),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            headers={"Accept-Encoding": ACCEPTED},
            auto_decompress=False,  # `read_body` does, and stops in time
        )
        self._fingerprints: dict[str, str] = {}
        self._rates: dict[str, Rate] = defaultdict(lambda: Rate(self.clock, self.sleep))  # by base URL, as all below
        self._patience: dict[str, Patience] = defaultdict(lambda: Patience(self.patience_s, self.say, self.clock))
        self._models = provenance.SameModel(self.store.models())
        # (endpoint, served name) → the dialogues of the calls lost since its last answer
        self._lost: dict[tuple[str, str], list[str]] = defaultdict(list)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    @property
    def width(self) -> int:
        """How many pieces of work are worth having under way at once."""
        return self.concurrency or MOST

    @property
    def found(self) -> dict[str, int]:
        """Base URL → calls that it is given at once at this moment, where that adapts."""
        return {} if self.concurrency else {url: limit.limit for url, limit in self._limits.items()}

    def base_url(self, spec: ModelSpec, served_name: str | None = None) -> str:
        """Where a model (or one of its adapters, by served name) answers; `UserError` when nothing serves it."""
        url = self.endpoints.get(served_name or "") or self.endpoints.get(spec.name) or spec.endpoint.base_url
        if url is None:
            raise UserError(f"model {spec.name}: no server is up for it and its spec has no endpoint.base_url")
        if problem := problem_of(url):
            raise UserError(f"model {spec.name}: {problem}")
        return url.rstrip("/")

    async def check(self, spec: ModelSpec, served_names: Sequence[str]) -> None:
        """Ask the endpoint which models it serves; `UserError` when it cannot be reached or does not serve these names."""
        by_url: dict[str, list[str]] = defaultdict(list)  # on CPU every adapter is a server of its own
        for name in served_names:
            by_url[self.base_url(spec, name)].append(name)
        for url, names in by_url.items():
            await self._check_one(spec, url, names)

    async def _check_one(self, spec: ModelSpec, base_url: str, served_names: Sequence[str]) -> None:
        url, where = f"{base_url}/models", _where(spec, base_url)
        timeout = aiohttp.ClientTimeout(total=30)
        try:
            async with self._session.get(url, headers=_headers(spec), timeout=timeout, allow_redirects=False) as response:
                if response.status in (404, 405):  # not every server has a list
                    return
                if response.status in (401, 403):
                    raise UserError(f"{where}: the server refused the key (HTTP {response.status})")
                if target := redirect_target(response):
                    raise UserError(f"{where}: redirects to {_redact(spec, target)}; if that is the server, name its address")
                raw, _ = await read_body(response, _LISTED)
                listed = {str(entry["id"]) for entry in orjson.loads(raw)["data"]}
        except (orjson.JSONDecodeError, KeyError, TypeError, BadEncoding):
            return
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: an address with a key in it
            raise UserError(f"{where}: cannot be reached: {_redact(spec, error)}") from None
        for name in served_names:
            if name not in listed:
                raise UserError(f"{where}: does not serve {name!r}: {_redact(spec, near(name, listed))}")

    async def server_version(self, spec: ModelSpec, served_name: str) -> str | None:
        """The version of the vLLM server behind a model; None where it is another or does not say."""
        return await provenance.server_version(self._session, self.base_url(spec, served_name))

    def key(self, spec: ModelSpec, question: Question, body: dict[str, Any] | None = None) -> str:
        """The call's key (64 hex digits)."""
        if spec.name not in self._fingerprints:
            self._fingerprints[spec.name] = spec.fingerprint()
        return digest([self._fingerprints[spec.name], body or self._body(spec, question), dict(question.sample)])

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        """The model's reply: from the store when this call was finished before, else from the server."""
        body = self._body(spec, question)
        key = self.key(spec, question, body)
        tally = self.tallies[spec.name, question.purpose]
        stored, again = self.store.get(key), None
        if stored is not None:
            try:
                reply = Reply.model_validate(stored)
            except ValidationError:
                raise UserError(f"{self.store.path}: a stored answer is damaged; move the file aside to start afresh") from None
            readable = question.readable(reply.text) if question.readable and self.retry.reads else None
            again = self.retry.reason(key, reply, readable)
        if stored is None or again:
            if self.offline:
                raise NotStored(key)
            if again and "seed" in body:  # the same seed would draw the same answer
                body = body | {"seed": int(digest([body["seed"], self.store.times_replaced(key)], 7), 16)}
            try:
                reply, seconds, attempt = await self._asked(spec, question, body, tally)
            except Unanswered as error:
                about = str(question.sample.get("dialogue") or " ".join(map(str, question.sample.values())))
                reason = (error.outcome, error.status, str(error))
                self.failures.append(FailedCall(question.purpose, spec.name, about, *reason))
                if not isinstance(error, NotAsked):
                    await self.store.fail(key, about, question.purpose, spec.name, error.outcome, str(error))
                raise
            origin = provenance.origin(spec, question.purpose, body, reply.model, attempt, self.keep_messages)
            await self.store.put(key, reply.model_dump(), seconds, origin, again)
            self.retry.done(key)
            tally.asked += 1
            tally.generated += reply.completion_tokens
            tally.seconds += seconds
        tally.calls += 1
        tally.cut_off += reply.finish_reason == "length"
        tally.prompt_tokens += reply.prompt_tokens
        tally.completion_tokens += reply.completion_tokens
        tally.reasoning_tokens += reply.reasoning_tokens
        return reply

    @staticmethod
    def _body(spec: ModelSpec, question: Question) -> dict[str, Any]:
        sampling = question.sampling
        body: dict[str, Any] = {
            "model": question.served_name,
            "messages": [{"role": m["role"], "content": defang(m["content"], m["role"])} for m in question.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            spec.endpoint.max_tokens_field: sampling.max_tokens,
        }
        if sampling.seed is not None:  # one seed a run, another stream a sample
            body["seed"] = int(digest([sampling.seed, dict(question.sample)], 7), 16)
        if question.logprobs and spec.endpoint.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": spec.endpoint.top_logprobs}
        if spec.endpoint.constrained and question.choices:
            body["structured_outputs"] = {"choice": list(question.choices)}
        if spec.endpoint.constrained and question.regex:
            body["structured_outputs"] = {"regex": question.regex}
        return body

    async def _queue(self, spec: ModelSpec, base_url: str) -> int | None:
        """Calls that wait at a server, where it tells: one that wants a key is somebody else's, and is not asked."""
        if spec.endpoint.api_key_env or base_url in self._silent:
            return None
        url, timeout = f"{base_url.removesuffix('/v1')}/metrics", aiohttp.ClientTimeout(total=5)
        try:
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                found = queue_length((await read_body(response, _LISTED))[0]) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, BadEncoding):
            return None
        if found is None:
            self._silent.add(base_url)
        return found

    async def _asked(self, spec: ModelSpec, question: Question, body: dict[str, Any], tally: Tally) -> tuple[Reply, float, int]:
        """The server's reply, the seconds that it took once the call had its turn, and which try it was."""
        base_url = self.base_url(spec, question.served_name)
        place = base_url, question.served_name
        limit = self._limits["" if self.concurrency else base_url]
        begun = self._begun.setdefault(question.session, len(self._begun)) if question.session else 0
        await limit.acquire(begun)
        reply: Reply | None = None
        if cause := self.budget.begin_call():
            self.threshold.end(cause)
        try:
            started = self.clock()
            reply, attempt, waited = await self._tried(spec, question, orjson.dumps(body), tally, base_url, limit)
            seconds = self.clock() - started - waited
        except Rejected as error:
            self._lost[place].clear()  # it works
            self._patience[base_url].answered()
            self.threshold.rejected(place, error)
            raise
        finally:
            limit.release()
            self.budget.ended(spec, reply)
        self._lost[place].clear()
        self.threshold.answered(place)
        if problem := self._models.problem(spec, question.served_name, reply.model):
            self.threshold.end(f"{_where(spec, base_url)}: {problem}")
            raise Rejected(f"{_where(spec, base_url)}: {problem}")
        return reply, seconds, attempt

    async def _tried(
        self, spec: ModelSpec, question: Question, payload: bytes, tally: Tally, base_url: str, limit: Limit
    ) -> tuple[Reply, int, float]:
        """The reply of as many tries as it takes, how many these were, and the seconds for which nothing was asked of a server
        that was away or had its rate."""
        where, place = _where(spec, base_url), (base_url, question.served_name)
        lost = self._lost[place]
        if len(lost) >= self.lost_in_a_row and len(set(lost)) >= LOST_DIALOGUES:
            raise NotAsked(f"{where}: given up after {len(lost)} lost calls in a row")
        problem: Exception | None = None
        attempt, empty, away, waited = 0, 0, 0, 0.0
        patience, rate = self._patience[base_url], self._rates[base_url]
        rate.tighten(spec.endpoint)
        answers = patience.answers
        started = self.clock()
        while True:
            if cause := self.budget.over():
                self.threshold.end(cause)
            if self.threshold.cause:
                raise NotAsked(f"{where}: not asked any more: the run ended early")
            attempt += 1
            wait = None
            queued = self.clock()
            aside = await rate.wait(len(payload), question.sampling.max_tokens)
            tried = self.clock()
            waited += tried - queued
            try:
                reply = await self._once(spec, question, base_url, payload)
                patience.answered()
                rate.settle(aside, reply.prompt_tokens + reply.completion_tokens or aside)
                empty += reply.empty
                if not reply.empty or empty == _EMPTY_TRIES or attempt == self.attempts:
                    if limit.answered(question.purpose, self.clock() - tried):
                        limit.adapt(await self._queue(spec, base_url))
                    return reply, attempt, waited
                tally.retries += 1
                continue
            except (_Again, Unreadable, BadEncoding, aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = error
                rate.settle(aside, 0)
                wait = error.wait if isinstance(error, _Again) else None
                if _crowds(error):
                    limit.crowded()
            if not _away(problem):
                patience.answered()
            elif (
                patience.answers == answers and base_url not in self.launched and patience.lasts(where, _redact(spec, problem))
            ):
                attempt -= 1
                away += 1
                longest = min(self.backoff_max_s, self.backoff_s * 2 ** min(away, 30))
                await self.sleep(max(wait or 0.0, random.uniform(longest / 2, longest)))
                waited += self.clock() - tried
                continue
            answers = patience.answers
            left = self.give_up_s - (self.clock() - started - waited)
            if attempt == self.attempts or left <= 0:
                break
            tally.retries += 1
            longest = min(self.backoff_max_s, self.backoff_s * 2 ** (attempt - 1))
            await self.sleep(min((wait or 0.0) + random.uniform(longest / 2, longest), left))
        if isinstance(problem, _Again) and problem.believed:
            return problem.believed, attempt, waited
        told = problem if isinstance(problem, _Again | Unreadable) else f"{type(problem).__name__} {problem}"
        last = f"{where}: gave up after {attempt} attempts: {_redact(spec, told)}"
        if isinstance(problem, BadFinish):
            raise Rejected(last)
        lost.append(question.session or str(dict(question.sample)))
        raise ServerLost(last, problem.status if isinstance(problem, _Again) else None)

    async def _once(self, spec: ModelSpec, question: Question, base_url: str, payload: bytes) -> Reply:
        """The reply of one try. Raises `Rejected` where another would change nothing; whatever else is raised may pass."""
        url, where, room = f"{base_url}/chat/completions", _where(spec, base_url), spec.endpoint.max_response_mb
        headers = _headers(spec)
        if question.session:  # an id may hold what no header may carry
            headers["X-Session-Id"] = quote(question.session, safe="")
        async with self._session.post(url, data=payload, headers=headers, allow_redirects=False) as response:
            status = response.status
            # Of an error the beginning will do.
            raw, whole = await read_body(response, (room if status == 200 else 1) * _MEGABYTE)
        if status == 200 and whole:
            return read_reply(spec, raw, spec.api_key())
        if status == 200:
            raise Rejected(f"{where}: an answer of more than {room} MB (endpoint.max_response_mb)", status)
        problem, meaning = f"HTTP {status}: {error_text(raw) or 'an empty body'}", meaning_of(status, raw)
        if status in RETRIED_STATUS or status >= 500:
            believed = reply_of_error(meaning) if meaning and status >= 500 else None
            raise _Again(problem, status, retry_after(response.headers.get("Retry-After")), believed)
        if meaning and status >= 400:
            return reply_of_error(meaning)
        if target := redirect_target(response):
            problem = f"HTTP {status}: redirects to {target}, which is not followed: name that address if it is the server's"
        raise Rejected(f"{where}: {_redact(spec, problem)}", status)


def _headers(spec: ModelSpec) -> dict[str, str]:
    key = spec.api_key()
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


def _redact(spec: ModelSpec, problem: object) -> str:
    """A problem as one short line without the key; the key goes first, so that no half of it is left at the cut."""
    text = mask_message(" ".join(str(problem).split()), spec.api_key())
    return printable(text[:300])[:300] or type(problem).__name__


def _where(spec: ModelSpec, base_url: str) -> str:
    """A model and its endpoint, for messages."""
    return f"model {spec.name} at {base_url}"


def _away(error: Exception) -> bool:
    """Whether an error says that the server is not there for the moment."""
    if isinstance(error, _Again):
        return error.status in CROWDED
    refused = isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError)
    return refused and getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE)


def _crowds(error: Exception) -> bool:
    """Whether an error says that fewer calls at once would be better; no more files may be opened is one that is ours."""
    if isinstance(error, _Again):
        return error.status in CROWDED
    return isinstance(error, TimeoutError) or getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)
