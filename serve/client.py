"""The chat client: asks OpenAI-compatible servers, many calls at once, and asks nothing twice.

Every finished call goes to the run's store under a key made of what is asked (messages, sampling, constraint), of whom
(the model's fingerprint, never its port) and which sample it is. A call whose key is in the store is answered from there.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
from pydantic import BaseModel, ConfigDict

from serve.errors import UserError, near
from serve.files import digest
from serve.specs import ModelSpec, Sampling
from serve.store import Store

Message = dict[Literal["role", "content"], str]
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_OVERFLOW = re.compile(
    r"context[_ ]length|maximum model length|max_model_len|longer than the max|too many tokens|prompt is too long", re.I
)
_CONTROL = re.compile(r"<\|([^|<>\n]{1,40})\|>|<(/?s|/?(?:start|end)_of_turn|bos|eos)>|\[(/?INST)\]|<<(/?SYS)>>")


class ServerLost(Exception):
    """The endpoint kept failing until the retries were used up."""


class NotStored(Exception):
    """An offline client was asked something that the store does not hold."""


class Reply(BaseModel):
    """One answer. `text` is without reasoning; `tokens` holds, per generated token, its alternatives' log-probabilities.

    `finish_reason` is the server's, or `context_overflow` when prompt and reply do not fit the model. `refused` is set by the
    server's own signal only (a `refusal` field, or the finish reason content_filter): nothing is guessed from the wording.
    `reasoning_tokens` is what the server reports (0 where it does not), `reasoning_characters` is counted here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    finish_reason: str | None = None
    refused: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    reasoning_characters: int = 0
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


def defang(text: str) -> str:
    """Chat-control markers in model text (`<|im_end|>`, `[INST]`, `</s>` …) broken up with a space, so that no text can open a
    turn of its own: tokenizers read such markers inside a message as control tokens. Records keep the text as it was."""
    return _CONTROL.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)


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

    `endpoints` maps spec names to base URLs of running servers (they win over the spec's own). At most `concurrency` calls are
    in flight. A call is tried `attempts` times: on 408/409/425/429 (Retry-After honoured), 5xx, timeouts, dropped connections
    and unreadable bodies, with exponential back-off and full jitter. Raises `UserError` (naming model and endpoint) on other
    4xx, and `ServerLost` when the attempts are used up. With `offline`, whatever is not in the store raises `NotStored`.
    """

    store: Store
    endpoints: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 64
    attempts: int = 6
    timeout_s: float = 600.0
    offline: bool = False
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))

    async def __aenter__(self) -> ChatClient:
        # The pool's limit is the concurrency we mean: libraries default to 100 connections.
        self._slots = asyncio.Semaphore(self.concurrency)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.concurrency), timeout=aiohttp.ClientTimeout(total=self.timeout_s)
        )
        self._fingerprints: dict[str, str] = {}
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

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
        url, where = f"{base_url}/models", f"model {spec.name} at {base_url}"
        try:
            async with self._session.get(url, headers=self._headers(spec), timeout=aiohttp.ClientTimeout(total=30)) as response:
                if response.status in (404, 405):  # not every server has a list
                    return
                if response.status in (401, 403):
                    raise UserError(f"{where}: the server refused the key (HTTP {response.status})")
                listed = {entry["id"]: entry for entry in orjson.loads(await response.read())["data"]}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UserError(f"{where}: cannot be reached: {self._redact(spec, error)}") from None
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return
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
            reply = Reply.model_validate(stored)
        elif self.offline:
            raise NotStored(key)
        else:
            async with self._slots:
                started = time.perf_counter()
                reply = await self._post(spec, question, tally)
                seconds = time.perf_counter() - started
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
        key = spec.api_key()
        text = " ".join(str(problem).split())[:300] or type(problem).__name__
        return text.replace(key, "***") if key else text

    @staticmethod
    def _body(spec: ModelSpec, question: Question) -> dict[str, Any]:
        sampling = question.sampling
        body: dict[str, Any] = {
            "model": question.served_name,
            "messages": [{"role": m["role"], "content": defang(m["content"])} for m in question.messages],
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

    async def _post(self, spec: ModelSpec, question: Question, tally: Tally) -> Reply:
        base_url = self.base_url(spec, question.served_name)
        url = f"{base_url}/chat/completions"
        payload = orjson.dumps(self._body(spec, question))
        headers = self._headers(spec) | ({"X-Session-Id": question.session} if question.session else {})
        problem: object = "no attempt was made"
        for attempt in range(self.attempts):
            wait = None
            try:
                async with self._session.post(url, data=payload, headers=headers) as response:
                    raw = await response.read()
                    if response.status == 200:
                        return self._read(spec, raw)
                    problem = f"HTTP {response.status}: {_message(raw)}"
                    if response.status == 400 and _OVERFLOW.search(str(problem)):
                        return Reply(text="", finish_reason="context_overflow")
                    if response.status == 400 and "content_filter" in str(problem):
                        return Reply(text="", finish_reason="content_filter", refused=True)
                    if response.status not in RETRIED_STATUS and response.status < 500:
                        raise UserError(f"model {spec.name} at {base_url}: {self._redact(spec, problem)}")
                    wait = _retry_after(response.headers.get("Retry-After"))
            except (aiohttp.ClientError, TimeoutError, OSError, _Unreadable) as error:
                problem = f"{type(error).__name__} {error}"
            if attempt + 1 < self.attempts:
                tally.retries += 1
                backoff = random.uniform(0, min(self.backoff_max_s, self.backoff_s * 2**attempt))  # full jitter
                await asyncio.sleep(backoff if wait is None else wait + backoff)
        raise ServerLost(
            f"model {spec.name} at {base_url}: gave up after {self.attempts} attempts: {self._redact(spec, problem)}"
        )

    @staticmethod
    def _read(spec: ModelSpec, raw: bytes) -> Reply:
        """A 200 body as a Reply; a body that is not a completion (an error in a 200, truncated JSON) counts as a fault."""
        try:
            body = orjson.loads(raw)
            choice = body["choices"][0]
            message = choice["message"]
            content = message.get("content") or ""
            usage = body.get("usage") or {}
            text, reasoning = split_reasoning(spec, content)
            separate = message.get("reasoning") or message.get("reasoning_content") or ""
            tokens = None
            if choice.get("logprobs") and choice["logprobs"].get("content"):
                tokens = [
                    (t["token"], {a["token"]: a["logprob"] for a in [*t.get("top_logprobs", []), t]})
                    for t in choice["logprobs"]["content"]
                ]
            return Reply(
                text=text,
                finish_reason=choice.get("finish_reason"),
                refused=bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter",
                prompt_tokens=usage.get("prompt_tokens") or 0,
                completion_tokens=usage.get("completion_tokens") or 0,
                reasoning_tokens=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
                reasoning_characters=len(reasoning) + len(separate),
                tokens=tokens,
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
            return " ".join(str(error[k]) for k in ("code", "message", "detail") if error.get(k)) or str(error)[:300]
        return str(error)[:300]
    except (orjson.JSONDecodeError, AttributeError):
        return raw[:200].decode("utf-8", "replace")


def _retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header (seconds or an HTTP date), at most ten minutes."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), 600.0)
