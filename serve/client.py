"""The chat client: asks OpenAI-compatible servers, many calls at once, and asks nothing twice.

Every finished call goes to the run's store under a key made of what is asked (messages, sampling, constraint), of whom
(the model's fingerprint, never its port) and which sample it is. A call whose key is in the store is answered from there.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import aiohttp
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve import completion
from serve.errors import UserError, near, printable
from serve.files import digest
from serve.limit import CROWDED, MOST, Limit, queue_length
from serve.markers import defang
from serve.specs import ModelSpec, Sampling
from serve.store import Store

Message = dict[Literal["role", "content"], str]
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_OVERFLOW = re.compile(
    r"context[_ ]length|maximum model length|max_model_len|longer than the max|too many tokens|prompt is too long", re.I
)
_EMPTY_TRIES = 3  # an empty answer is believed when it comes this often: servers under load give some that mean nothing
_MASKED_FROM = 12  # characters a key must have to be masked in answers too: "EMPTY" or "x" are no secrets, but ordinary text


Count = Annotated[int, Field(ge=0, le=2**53)]


class ServerLost(Exception):
    """The endpoint kept failing until the retries were used up, or was given up before."""


class NotStored(Exception):
    """An offline client was asked something that the store does not hold."""


class Reply(BaseModel):
    """One answer. `text` is without reasoning; `tokens` holds, per generated token, its alternatives' log-probabilities
    (null: none reported; see `serve.completion.tokens_of`).

    `finish_reason` is the server's, or `context_overflow` when prompt and reply do not fit the model. `refused` is set by the
    server's own signal only (a `refusal` field, or the finish reason content_filter): nothing is guessed from the wording.
    `reasoning_tokens` is what the server reports (0 where it does not), `reasoning_characters` is counted here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    finish_reason: str | None = None
    refused: bool = False
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    reasoning_tokens: Count = 0
    reasoning_characters: Count = 0
    tokens: list[tuple[str, dict[str, float]]] | None = None


@dataclass(frozen=True)
class Question:
    """One call to make. `sample` says which sample it is (dialogue, turn, dimension, repeat): part of its key.

    `choices` (a closed list) or `regex` constrain the answer where the server can; `logprobs` asks for token probabilities.
    `session` keeps calls of one dialogue on one server behind a router, `purpose` is what the tokens are booked under; neither
    is part of the key.
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


@dataclass
class Tally:
    """One model in one role: calls and tokens of all answers, and what this process really asked (retries, seconds, tokens).

    The first four are the same however often a run was interrupted; the others are not.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    asked: int = 0
    retries: int = 0
    generated: int = 0
    seconds: float = 0.0


def split_reasoning(spec: ModelSpec, text: str) -> tuple[str, str]:
    """(reply, reasoning): what stands in think tags is taken out. An unclosed block is reasoning to its end."""
    opening, closing = spec.think_tags
    if spec.think_in_prompt and closing not in text:
        return "", text
    if closing in text and (opening not in text or text.index(closing) < text.index(opening)):
        text = opening + text  # the template opened the block in the prompt
    block = re.compile(re.escape(opening) + "(.*?)(?:" + re.escape(closing) + "|$)", re.S)
    return block.sub("", text).strip(), "".join(block.findall(text))


@dataclass
class ChatClient:
    """Calls for any number of models over one connection pool. Use as an async context manager.

    `endpoints` maps spec names to base URLs of running servers (they win over the spec's own). At most `concurrency` calls
    are in flight; with None each server has as many as it bears (`serve.limit`). A call is tried `attempts` times: on
    408/409/425/429 (Retry-After honoured), 5xx, timeouts, dropped connections and unreadable bodies, with exponential
    back-off, each wait drawn from its upper half (with the defaults a server that restarts has at least half a minute). It
    is not tried again once `give_up_s` have passed, so no call takes longer than `give_up_s` + `timeout_s` (25 minutes;
    about one where the server refuses at once). An answer without a word in it is asked for twice more before it is
    believed. Raises `UserError` (naming model and endpoint) on other 4xx, and `ServerLost` when the tries are used up. A
    model that lost `lost_in_a_row` calls, with no answer between them, is given up: what is asked of it later is lost at
    once. With `offline`, whatever is not in the store raises `NotStored`.
    """

    store: Store
    endpoints: Mapping[str, str] = field(default_factory=dict)
    concurrency: int | None = None
    attempts: int = 8
    timeout_s: float = 600.0
    give_up_s: float = 900.0
    lost_in_a_row: int = 5
    offline: bool = False
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))

    async def __aenter__(self) -> ChatClient:
        # The pool's limit is the concurrency we mean: libraries default to 100 connections.
        self._limits: dict[str, Limit] = defaultdict(lambda: Limit(self.concurrency))  # by base URL; fixed, one for all
        self._begun: dict[str, int] = {}  # session → its place in the order in which they began
        self._silent: set[str] = set()  # servers that tell no queue
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.concurrency or 0), timeout=aiohttp.ClientTimeout(total=self.timeout_s)
        )
        self._fingerprints: dict[str, str] = {}
        self._lost: dict[tuple[str, str], int] = defaultdict(int)  # (endpoint, served name) → calls lost since its last answer
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
        try:
            async with self._session.get(url, headers=self._headers(spec), timeout=aiohttp.ClientTimeout(total=30)) as response:
                if response.status in (404, 405):  # not every server has a list
                    return
                if response.status in (401, 403):
                    raise UserError(f"{where}: the server refused the key (HTTP {response.status})")
                listed = {entry["id"]: entry for entry in orjson.loads(await response.read())["data"]}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: an address with a key in it
            raise UserError(f"{where}: cannot be reached: {self._redact(spec, error)}") from None
        for name in served_names:
            if name not in listed:
                raise UserError(f"{where}: does not serve {name!r}: {near(name, listed)}")

    def key(self, spec: ModelSpec, question: Question) -> str:
        """The call's key (64 hex digits)."""
        if spec.name not in self._fingerprints:
            self._fingerprints[spec.name] = spec.fingerprint()
        return digest([self._fingerprints[spec.name], self._body(spec, question), dict(question.sample)])

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        """The model's reply: from the store when this call was finished before, else from the server."""
        key = self.key(spec, question)
        tally = self.tallies[spec.name, question.purpose]
        stored = self.store.get(key)
        if stored is not None:
            try:
                reply = Reply.model_validate(stored)
            except ValidationError:
                raise UserError(f"{self.store.path}: a stored answer is damaged; move the file aside to start afresh") from None
        elif self.offline:
            raise NotStored(key)
        else:
            limit = self._limits["" if self.concurrency else self.base_url(spec, question.served_name)]
            begun = self._begun.setdefault(question.session, len(self._begun)) if question.session else 0
            await limit.acquire(begun)
            try:
                started = time.perf_counter()
                reply = await self._post(spec, question, tally, limit)
                seconds = time.perf_counter() - started
            finally:
                limit.release()
            await self.store.put(key, reply.model_dump(), seconds)
            tally.asked += 1
            tally.generated += reply.completion_tokens
            tally.seconds += seconds
        tally.calls += 1
        tally.prompt_tokens += reply.prompt_tokens
        tally.completion_tokens += reply.completion_tokens
        tally.reasoning_tokens += reply.reasoning_tokens
        return reply

    def _headers(self, spec: ModelSpec) -> dict[str, str]:
        key = spec.api_key()
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    @staticmethod
    def _redact(spec: ModelSpec, problem: object) -> str:
        """A problem as one short line without the key; the key goes first, so that no half of it is left at the cut."""
        key = spec.api_key()
        text = str(problem).replace(key, "***") if key else str(problem)
        return printable(" ".join(text.split()))[:300] or type(problem).__name__

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
            async with self._session.get(url, timeout=timeout) as response:
                found = queue_length(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
        if found is None:
            self._silent.add(base_url)
        return found

    async def _post(self, spec: ModelSpec, question: Question, tally: Tally, limit: Limit) -> Reply:
        base_url = self.base_url(spec, question.served_name)
        url, where = f"{base_url}/chat/completions", _where(spec, base_url)
        place = base_url, question.served_name
        if self._lost[place] >= self.lost_in_a_row:
            raise ServerLost(f"{where}: given up after {self.lost_in_a_row} lost calls in a row")
        payload = orjson.dumps(self._body(spec, question))
        headers = self._headers(spec) | ({"X-Session-Id": question.session} if question.session else {})
        key = (spec.api_key() or "").encode()
        problem: object = "no attempt was made"
        empty = 0
        started = time.monotonic()
        for attempt in range(self.attempts):
            wait = None
            tried = time.monotonic()
            try:
                async with self._session.post(url, data=payload, headers=headers) as response:
                    raw = await response.read()
                    if len(key) >= _MASKED_FROM:
                        raw = raw.replace(key, b"***")
                    if response.status == 200:
                        reply = self._read(spec, raw)
                        empty += _empty(reply)
                        if not _empty(reply) or empty == _EMPTY_TRIES or attempt + 1 == self.attempts:
                            self._lost[place] = 0
                            if limit.answered(question.purpose, time.monotonic() - tried):
                                limit.adapt(await self._queue(spec, base_url))
                            return reply
                        tally.retries += 1
                        continue
                    problem = f"HTTP {response.status}: {_message(raw)}"
                    if response.status == 400 and _OVERFLOW.search(str(problem)):
                        return Reply(text="", finish_reason="context_overflow")
                    if response.status == 400 and "content_filter" in str(problem):
                        return Reply(text="", finish_reason="content_filter", refused=True)
                    if response.status not in RETRIED_STATUS and response.status < 500:
                        raise UserError(f"{where}: {self._redact(spec, problem)}")
                    wait = _retry_after(response.headers.get("Retry-After"))
                    if response.status in CROWDED:
                        limit.crowded()
            except (aiohttp.ClientError, TimeoutError, OSError, _Unreadable) as error:
                problem = f"{type(error).__name__} {error}"
                if isinstance(error, TimeoutError):
                    limit.crowded()
            left = self.give_up_s - (time.monotonic() - started)
            if attempt + 1 == self.attempts or left <= 0:
                break
            tally.retries += 1
            longest = min(self.backoff_max_s, self.backoff_s * 2**attempt)
            await asyncio.sleep(min((wait or 0.0) + random.uniform(longest / 2, longest), left))
        self._lost[place] += 1
        raise ServerLost(f"{where}: gave up after {attempt + 1} attempts: {self._redact(spec, problem)}")

    @staticmethod
    def _read(spec: ModelSpec, raw: bytes) -> Reply:
        """A 200 body as a Reply; a body that is not a completion (an error in a 200, truncated JSON) counts as a fault."""
        try:
            body = completion.parse(raw)
            choice = body["choices"][0]
            message, usage = choice["message"], body.get("usage")
            text, reasoning = split_reasoning(spec, completion.text_of(message.get("content")))
            separate = message.get("reasoning") or message.get("reasoning_content") or ""
            details = usage.get("completion_tokens_details") if isinstance(usage, Mapping) else None
            return Reply(
                text=text,
                finish_reason=choice.get("finish_reason"),
                refused=bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter",
                prompt_tokens=completion.count_of(usage, "prompt_tokens"),
                completion_tokens=completion.count_of(usage, "completion_tokens"),
                reasoning_tokens=completion.count_of(details, "reasoning_tokens"),
                reasoning_characters=len(reasoning) + (len(separate) if isinstance(separate, str) else 0),
                tokens=completion.tokens_of(choice.get("logprobs")),
            )
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise _Unreadable(f"unreadable answer ({type(error).__name__}): {_message(raw)}") from None


class _Unreadable(Exception):
    """A 200 whose body is not a chat completion."""


def _message(raw: bytes) -> str:
    try:
        body = orjson.loads(raw)
        error = body.get("error", body)
        if isinstance(error, dict):
            return " ".join(str(error[k]) for k in ("code", "message", "detail") if error.get(k)) or str(error)
        return str(error)
    except (orjson.JSONDecodeError, AttributeError):
        return raw[:2000].decode("utf-8", "replace")


def _where(spec: ModelSpec, base_url: str) -> str:
    """A model and its endpoint, for messages: without a password that stands in the address."""
    return f"model {spec.name} at {re.sub(r'//[^/@]*@', '//***@', base_url)}"


def _empty(reply: Reply) -> bool:
    """Whether a completion holds nothing at all, not even reasoning, a refusal or a reason for stopping early."""
    said = reply.text.strip() or reply.reasoning_characters or reply.refused
    return not said and reply.finish_reason in (None, "stop")


def _retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header (seconds or an HTTP date), at most ten minutes."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), 600.0)
