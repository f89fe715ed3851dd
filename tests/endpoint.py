"""A chat endpoint on loopback for tests: deterministic answers, scripted faults, and a record of what it was asked.

It stands in for paid APIs and broken servers only; what a model really does is tested against the embedded model.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web


@dataclass
class Answer:
    """What the endpoint does with one request: a status and a body, after a delay; `drop` closes the connection instead."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)  # more fields of the assistant's message
    finish_reason: str = "stop"
    body: bytes | None = None  # in place of a completion
    logprobs: list[dict[str, Any]] | None = None
    delay: float = 0.0
    drop: bool = False


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


class Endpoint:
    """Runs in a thread of its own; `requests` holds the bodies of chat completions in order of arrival, `most` how many were
    under way at once."""

    def __init__(self, behave: Callable[[dict[str, Any], int], Answer] = echo, models: tuple[str, ...] = ("my-model",)) -> None:
        self.behave, self.models = behave, models
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.now = self.most = 0
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
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        left = asyncio.all_tasks(self._loop)  # requests whose client went away while they waited
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

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
        if answer.drop:
            assert request.transport is not None
            request.transport.close()
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
        return web.json_response({"choices": [choice], "usage": usage}, headers=answer.headers)
