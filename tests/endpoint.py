"""A chat endpoint on loopback for tests: deterministic answers, scripted or seeded faults, and a record of what it was asked.

What it answers is in `tests.answers`.

It stands in for paid APIs and broken servers only; what a model really does is tested against the embedded model.
"""

import argparse
import asyncio
import hashlib
import os
import re
import signal
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

import orjson
from aiohttp import web

from serve.dialect import PROBED
from tests.answers import FAULTS as FAULTS
from tests.answers import LASTING as LASTING
from tests.answers import Answer as Answer
from tests.answers import Faulty as Faulty
from tests.answers import bomb as bomb
from tests.answers import echo as echo
from tests.answers import error as error


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
        health: bool = False,
    ) -> None:
        self.behave, self.models, self.dialect, self.key = behave, models, dialect, key
        self.port, self.health = port, health
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
        body = orjson.loads(await request.read())
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


def main() -> None:
    """`python -m tests.endpoint` in place of vLLM's server: takes its command line, and notes in the file STAND_IN_LOG when it
    began, when it ended and how often it was asked. One whose model STAND_IN_DYING names ends at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--gpu-memory-utilization")
    parser.add_argument("--max-model-len")
    chosen, _ = parser.parse_known_args()
    (name, *_) = names = chosen.served_model_name
    if name in os.environ.get("STAND_IN_DYING", "").split(","):
        print("ValueError: the moon is full", flush=True)
        sys.exit(1)

    def note(what: str) -> None:
        with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
            log.write(f"{name} {what}\n")

    length = f"{int(chosen.max_model_len):,}"
    print(f"GPU KV cache size: 90,000 tokens, Maximum concurrency for {length} tokens per request: 9.50x", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Endpoint(models=tuple(names), port=chosen.port, health=True) as endpoint:
        note(f"up {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')} {chosen.gpu_memory_utilization} {chosen.max_model_len}")
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        note(f"down {len(endpoint.requests)}")


if __name__ == "__main__":
    main()
