"""A chat endpoint on loopback for tests: deterministic answers, scripted or seeded faults, and a record of what it was asked.

It stands in for paid APIs and broken servers only; what a model really does is tested against the embedded model.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web


@dataclass
class Answer:
    """What the endpoint does with one request: a status and a body, after a delay. `drop` closes the connection instead,
    `reset` breaks it, `restart` takes the whole endpoint away for so many seconds; `drip` sends the body bit by bit over so
    many seconds, `cut` only its first half."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)  # more fields of the assistant's message
    finish_reason: str = "stop"
    body: bytes | None = None  # in place of a completion
    logprobs: list[dict[str, Any]] | None = None
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
        low, high, times = map(int, re.fullmatch(r"\[(\d)-(\d)\]\{(\d+)\}", constraint["regex"]).groups())  # type: ignore[union-attr]
        return Answer("".join(str(low + byte % (high - low + 1)) for byte in seed[:times]))
    return Answer(f"line {seed.hex()[:12]}")


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


class Endpoint:
    """Runs in a thread of its own; `requests` holds the bodies of chat completions in order of arrival, `most` how many were
    under way at once, `answered` how often each (by the hash of its body) was given a completion with text."""

    def __init__(self, behave: Callable[[dict[str, Any], int], Answer] = echo, models: tuple[str, ...] = ("my-model",)) -> None:
        self.behave, self.models = behave, models
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.now = self.most = 0
        self.answered = Counter[str]()
        self._restarting: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Endpoint:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        self._site = web.TCPSite(runner, "127.0.0.1", 0)
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

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.requests.append(body)
        self.headers.append(dict(request.headers))
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
            return web.Response(
                status=answer.status, headers=answer.headers, body=answer.body or b'{"error": {"message": "no"}}'
            )
        choice: dict[str, Any] = {
            "message": {"role": "assistant", "content": answer.text} | answer.message,
            "finish_reason": answer.finish_reason,
        }
        if answer.logprobs is not None:
            choice["logprobs"] = {"content": answer.logprobs}
        usage = {"prompt_tokens": 10, "completion_tokens": len(answer.text.split())}
        payload = orjson.dumps({"choices": [choice], "usage": usage})
        if answer.drip or answer.cut:
            return await self._piecemeal(request, payload, answer)
        response = web.Response(body=payload, content_type="application/json", headers=answer.headers)
        await response.prepare(request)
        await response.write_eof()
        # Counted once it is sent: a restart may take the endpoint away while an answer is on its way out.
        self.answered[hashlib.sha256(orjson.dumps(body)).hexdigest()] += bool(answer.text)
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
