"""A chat endpoint on loopback for tests: deterministic answers, scripted or seeded faults, and a record of what it was asked.

`FAULTS` are those that pass: a run asks again, and its records are as if nothing had been. `LASTING` are those that stay
with one prompt, by what a run makes of them.

It stands in for paid APIs and broken servers only; what a model really does is tested against the embedded model.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol, Self

import orjson
from aiohttp import web

from serve.dialect import PROBED


@dataclass
class Answer:
    """What the endpoint does with one request: a status and a body, after a delay. `drop` closes the connection instead,
    `reset` breaks it, `restart` takes the whole endpoint away for so many seconds; `drip` sends the body bit by bit over so
    many seconds, `cut` only its first half. A request for a stream gets an event a word."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)  # more fields of the assistant's message
    finish_reason: str | None = "stop"
    body: bytes | None = None  # in place of a completion
    logprobs: list[dict[str, Any]] | None = None
    model: str | None = None  # what answers, by its own word
    usage: dict[str, Any] = field(default_factory=dict)  # in place of what is counted
    delay: float = 0.0
    drop: bool = False
    reset: bool = False
    restart: float = 0.0
    drip: float = 0.0
    cut: bool = False


def echo(body: dict[str, Any], count: int) -> Answer:
    """A deterministic answer: digits where digits are asked for, else a line that depends on everything that was asked."""
    seed = hashlib.sha256(orjson.dumps([body["messages"], body["model"]])).digest()
    constraint = body.get("structured_outputs") or {}
    if "choice" in constraint:
        return Answer(constraint["choice"][seed[0] % len(constraint["choice"])])
    if "regex" in constraint:
        return Answer(matching(constraint["regex"], cycle(seed)))
    return Answer(f"line {seed.hex()[:12]}")


def matching(pattern: str, draw: Iterator[int]) -> str:
    """A text that a regular expression matches, drawn from bytes; of what may be repeated without end, few."""

    def one(operation: Any, value: Any) -> str:
        if operation is parser.LITERAL:
            return chr(value)
        if operation is parser.IN and value[0][0] is parser.NEGATE:
            return chr(ord("a") + next(draw) % 26)
        if operation is parser.IN:
            ranges = [part if kind is parser.RANGE else (part, part) for kind, part in value]
            characters = [chr(code) for low, high in ranges for code in range(low, high + 1)]
            return characters[next(draw) % len(characters)]
        if operation is parser.BRANCH:
            return every(value[1][next(draw) % len(value[1])])
        if operation is parser.SUBPATTERN:
            return every(value[-1])
        assert operation is parser.MAX_REPEAT, operation
        least, most, part = value
        times = least if least == most else least + next(draw) % min(most - least, 8)
        return "".join(every(part) for _ in range(times))

    def every(parts: Any) -> str:
        return "".join(one(*part) for part in parts)

    parser: Any = re._parser  # type: ignore[attr-defined]
    return every(parser.parse(pattern))


FAULTS = {
    "429": Answer(status=429),
    "429, Retry-After": Answer(status=429, headers={"Retry-After": "1"}),
    "500": Answer(status=500),
    "503": Answer(status=503, body=b"<html>down for maintenance</html>"),
    "reset": Answer(reset=True),
    "hang": Answer(delay=60),
    "slow drip": Answer(drip=60),
    "truncated JSON": Answer(body=b'{"choices": [{"message": {"content": "I hear'),
    "cut off": Answer("never all of this", cut=True),
    "wrong schema": Answer(body=b'{"choices": [{"text": "an answer of another API"}]}'),
    "no text": Answer(body=b'{"choices": [{"message": {"content": 7}}]}'),
    "empty": Answer(""),
    "error in a 200": Answer(body=b'{"error": {"message": "overloaded"}}'),
    "restart": Answer(restart=0.5),
    "broken off": Answer("I hear that you", finish_reason="abort"),
    "unknown finish reason": Answer("I hear that you", finish_reason="network_error"),
    "unreadable gzip": Answer(body=b"not gzip at all", headers={"Content-Encoding": "gzip"}),
}


def error(status: int, message: str = "", **fields: Any) -> Answer:
    """An error as OpenAI's servers write it."""
    return Answer(status=status, body=orjson.dumps({"error": {"message": message} | fields}))


@cache
def bomb(megabytes: int) -> Answer:
    """So many megabytes of nothing, a thousandth of that as gzip."""
    return Answer(body=gzip.compress(bytes(megabytes * 2**20)), headers={"Content-Encoding": "gzip"})


# Outcome of the dialogue → name → answer. Bodies are as the servers' documents and issue trackers have them.
LASTING: dict[str, dict[str, Answer]] = {
    "rejected": {
        "400": error(400, "the messages are not valid"),
        "418": Answer(status=418, body=b"short and stout"),
        "422": Answer(status=422, body=b'{"detail": [{"loc": ["body", "messages"], "msg": "wrong"}]}'),
        "204": Answer(status=204, body=b""),
        "304": Answer(status=304, body=b""),
        "redirect": Answer(status=307, headers={"Location": "http://u:pw@127.0.0.1:1/v1/x?api_key=k"}, body=b""),
        "always broken off": Answer("I hear that you", finish_reason="abort"),
        "error for a finish reason": Answer("I hear that you", finish_reason="error"),
        "tool call": Answer("", finish_reason="tool_calls"),
        "too large": bomb(9),
    },
    "infrastructure": {
        "always 503": Answer(status=503),
        "always 429": Answer(status=429),
        "never JSON": Answer(body=b"<html>a login page</html>"),
    },
    "refusal": {
        "OpenAI": error(400, "rejected by our safety system", code="content_policy_violation"),
        "Azure": error(
            400,
            "The response was filtered",
            code="content_filter",
            innererror={"code": "ResponsibleAIPolicyViolation"},
        ),
        "DashScope": error(400, "Input data may contain inappropriate content.", code="data_inspection_failed"),
        "DashScope, wrapped": error(400, "<400> InternalError.Algo.DataInspectionFailed: Output data"),
        "Zhipu": error(400, "系统检测到输入或生成内容可能包含不安全或敏感内容", code="1301"),
        "DeepSeek": error(400, "Content Exists Risk", type="invalid_request_error"),
        "Moonshot": error(400, "The request was rejected because it was considered high risk", type="content_filter"),
        "MiniMax": error(422, "input new_sensitive (1026)"),
        "Volcano": error(400, "The request failed", code="InputTextSensitiveContentDetected"),
        "Anthropic": error(400, "Output blocked by content filtering policy", type="invalid_request_error"),
        "OpenRouter": error(403, "Your input was flagged", code=403, metadata={"error_type": "content_policy_violation"}),
        "Gemini": Answer("I hear", finish_reason="PROHIBITED_CONTENT"),
        "in a 200": Answer(body=b'{"error": {"code": "content_filter", "message": "filtered"}}'),
    },
    "context_overflow": {
        "413": Answer(status=413, body=b"<html>Request Entity Too Large</html>"),
        "OpenAI": error(400, "too long", code="context_length_exceeded"),
        "vLLM": error(400, "This model's maximum context length is 2048 tokens. However, you requested 4000."),
        "llama.cpp": error(
            400, "request (4390 tokens) exceeds the available context size (4096 tokens)", type="exceed_context_size_error"
        ),
        "llama.cpp, 500": error(500, "Context size has been exceeded.", code=500, type="server_error"),
        "TGI": Answer(
            status=422,
            body=b'{"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs`'
            b' tokens and 512 `max_new_tokens`", "error_type": "validation"}',
        ),
        "Gemini": Answer(
            status=400,
            body=b'[{"error": {"code": 400, "message": "The input token count (1300000) exceeds the maximum number of tokens'
            b' allowed (1048575).", "status": "INVALID_ARGUMENT"}}]',
        ),
        "DashScope": error(400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"),
        "Zhipu": error(400, "Prompt exceeds max length", code="1261"),
        "Mistral": error(400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),
        "SGLang": error(400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        "Ollama": error(400, "prompt too long; exceeded max context length by 4 tokens"),
        "Anthropic": error(400, "prompt is too long: 213462 tokens > 200000 maximum", type="invalid_request_error"),
        "xAI": error(400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        "Groq": error(400, "Please reduce the length of the messages or completion."),
        "Moonshot": error(400, "Invalid request: Your request exceeded model token limit: 8192"),
        "MiniMax": error(400, "invalid params, context window exceeds limit (2013)"),
        "LiteLLM": error(400, "litellm.ContextWindowExceededError: BadRequestError"),
    },
}


class Faulty:
    """A behaviour with seeded faults: a share `rate` of all requests gets one, every kind in turn, but two restarts at most
    (each takes everything in flight along); `given` counts them."""

    def __init__(self, rate: float, seed: int = 0, behave: Callable[[dict[str, Any], int], Answer] = echo) -> None:
        self.rate, self.behave, self.given = rate, behave, Counter[str]()
        self._draw = random.Random(seed)
        self._kinds: list[str] = []

    def __call__(self, body: dict[str, Any], count: int) -> Answer:
        if self._draw.random() >= self.rate:
            return self.behave(body, count)
        self._kinds = self._kinds or self._draw.sample(sorted(FAULTS), len(FAULTS))
        kind = self._kinds.pop()
        if kind == "restart" and self.given[kind] == 2:
            kind = "reset"
        self.given[kind] += 1
        return FAULTS[kind]


class Refusing(Protocol):
    """A kind of server (`tests.dialects`): what it refuses of a request, and how it lists a model."""

    def problem(self, body: dict[str, Any]) -> Answer | None: ...

    def listed(self, name: str) -> dict[str, Any]: ...


class Endpoint:
    """Runs in a thread of its own; `requests` holds the bodies of chat completions in order of arrival, `refused` of those that
    its dialect or its key turned away, `most` how many were under way at once, `followed` how many followed a redirect,
    `answered` how often each (by the hash of its body) was given a completion with text."""

    def __init__(
        self,
        behave: Callable[[dict[str, Any], int], Answer] = echo,
        models: tuple[str, ...] = ("my-model",),
        dialect: Refusing | None = None,
        key: str | None = None,
        port: int = 0,
        log: Path | None = None,
        health: bool = False,
    ) -> None:
        self.health = health
        self.behave, self.models, self.dialect, self.key, self.log = behave, models, dialect, key, log
        self.port = port
        self.version: str | None = None  # what /version says, as vLLM's does
        self.requests: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.queries: list[dict[str, str]] = []
        self.now = self.most = self.followed = 0
        self.answered = Counter[str]()
        self._restarting: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        if self.health:
            app.router.add_get("/health", self._healthy)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_route("*", "/elsewhere", self._elsewhere)
        app.router.add_get("/moved/models", self._moved)
        self._runner = runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        self._site = web.TCPSite(runner, "127.0.0.1", self.port)
        self._loop.run_until_complete(self._site.start())
        self.port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        left = asyncio.all_tasks(self._loop)  # requests whose client went away while they waited
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _restart(self, seconds: float) -> None:
        """Refuse and break every connection, and come back on the same port."""
        await self._site.stop()
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(seconds)
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await self._site.start()

    async def _elsewhere(self, request: web.Request) -> web.Response:
        """Another origin's path: a redirect that is followed ends here."""
        self.followed += 1
        return web.json_response({"choices": [{"message": {"content": "followed"}, "finish_reason": "stop"}]})

    async def _moved(self, request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async def _models(self, request: web.Request) -> web.Response:
        if refused := self._keyless(request):
            return written(refused)
        listed = [self.dialect.listed(name) if self.dialect else {"id": name, "owned_by": "vllm"} for name in self.models]
        return web.json_response({"object": "list", "data": listed})

    def _keyless(self, request: web.Request) -> Answer | None:
        if self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}":
            return None
        said = "Incorrect API key provided." if "Authorization" in request.headers else "You didn't provide an API key."
        return error(401, said, type="invalid_request_error", param=None, code="invalid_api_key")

    def _turned_away(self, body: dict[str, Any]) -> Answer | None:
        if self.dialect is None:
            return None
        if body.get("model") not in self.models:
            said = f"The model `{body.get('model')}` does not exist or you do not have access to it."
            return error(404, said, type="invalid_request_error", param=None, code="model_not_found")
        return self.dialect.problem(body)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version}) if self.version else web.Response(status=404)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = orjson.loads(raw)
        if self.log:
            with self.log.open("ab") as log:
                log.write(raw + b"\n")
        if type(self) is Endpoint and self.dialect is None and body.get("structured_outputs", {}).get("choice") == list(PROBED):
            # It calls itself vLLM, which holds to a form: what a test has it say is a model's own.
            return web.json_response({"choices": [{"message": {"content": PROBED[0]}, "finish_reason": "stop"}]})
        if refused := self._keyless(request) or self._turned_away(body):
            self.refused.append(body)
            return written(refused)
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.queries.append(dict(request.query))
        answer = self.behave(body, len(self.requests))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(answer.delay)
        self.now -= 1
        if request.transport is None:  # the client is gone, or the endpoint was
            return web.Response()
        if answer.drop or answer.reset or answer.restart:
            if answer.reset:
                connection = request.transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.close()
            if answer.restart and (self._restarting is None or self._restarting.done()):
                self._restarting = asyncio.ensure_future(self._restart(answer.restart))
            return web.Response()
        if answer.body is not None or answer.status != 200:
            return written(answer)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": answer.text} | answer.message,
            "finish_reason": answer.finish_reason,
        }
        if answer.logprobs is not None:
            choice["logprobs"] = {"content": answer.logprobs}
        usage = {"prompt_tokens": 10, "completion_tokens": len(answer.text.split())} | answer.usage
        if not answer.usage:
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        named = {"model": answer.model} if answer.model else {}
        if body.get("stream"):
            return await self._events(request, answer, choice, usage, named)
        whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0}  # what OpenAI's own client insists on
        payload = orjson.dumps(whole | {"choices": [choice], "usage": usage} | named)
        if answer.drip or answer.cut:
            return await self._piecemeal(request, payload, answer)
        response = web.Response(body=payload, content_type="application/json", headers=answer.headers)
        await response.prepare(request)
        await response.write_eof()
        # Counted once it is sent: a restart may take the endpoint away while an answer is on its way out.
        self.answered[hashlib.sha256(orjson.dumps(body)).hexdigest()] += bool(answer.text) and answer.finish_reason == "stop"
        return response

    async def _events(
        self, request: web.Request, answer: Answer, choice: dict[str, Any], usage: dict[str, Any], named: dict[str, str]
    ) -> web.StreamResponse:
        """As vLLM and OpenAI stream: the role, the words, why it ended, what it cost, and `[DONE]`."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        words = re.findall(r"\s*\S+", answer.text)
        deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words), answer.message]
        shown = deltas[: len(deltas) // 2] if answer.cut else deltas
        for delta in shown:
            await response.write(b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": delta}]} | named) + b"\n\n")
            await asyncio.sleep(answer.drip / len(deltas))
        if answer.cut:
            if request.transport is not None:
                request.transport.close()
            return response
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
        for event in (last, {"choices": [], "usage": usage}):
            await response.write(b": a comment\n\ndata: " + orjson.dumps(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _piecemeal(self, request: web.Request, payload: bytes, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(payload))})
        await response.prepare(request)
        shown = payload[: len(payload) // 2] if answer.cut else payload
        for start in range(0, len(shown), 8):
            await response.write(shown[start : start + 8])
            await asyncio.sleep(answer.drip * 8 / len(payload))
        if answer.cut and request.transport is not None:
            request.transport.close()
        return response


def written(answer: Answer) -> web.Response:
    """An error, or a body in place of a completion."""
    body = answer.body if answer.body is not None else b'{"error": {"message": "no"}}'
    return web.Response(status=answer.status, headers=answer.headers, body=body)


if __name__ == "__main__":
    from tests.dialects import main

    main()
