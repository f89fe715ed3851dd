"""A chat endpoint in a process of its own. Prints its port, then serves until stdin closes.

    python -m tests.bench.endpoint_process LATENCY WORDS

It answers after LATENCY seconds: with one fixed line and bare scores, or, with WORDS above 0, as a served model would
(replies of so many words that differ, scores with 20 alternatives a token).
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from aiohttp import web

LINE = "I hear you, and I would like to know more about it."


@contextmanager
def endpoint(latency: float, words: int = 0) -> Iterator[str]:
    """The endpoint process; yields its base URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(latency), str(words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.communicate()


def answers(words: int) -> dict[str, list[bytes]]:
    """Bodies to answer with: `text`, `digits` (seven scores), `digit` (one)."""
    rng = random.Random(0)
    vocabulary = [f"{a}{b}{c}" for a in ("so", "mor", "el", "un") for b in ("a", "ti", "re", "lo") for c in ("n", "s", "d", "")]
    texts = [" ".join(rng.choices(vocabulary, k=words)) for _ in range(256)] if words else [LINE]

    def body(text: str, digits: int = 0) -> bytes:
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        if digits and words:
            near = [{"token": str(n), "logprob": -0.5 - n} for n in range(20)]
            choice["logprobs"] = {"content": [{"token": digit, "logprob": -0.5, "top_logprobs": near} for digit in text]}
        written = digits or max(words, 12)
        usage = {"prompt_tokens": 100, "completion_tokens": written, "total_tokens": 100 + written}
        kind = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "embedded"}
        return orjson.dumps(kind | {"choices": [{"index": 0, **choice}], "usage": usage})

    return {
        "text": [body(text) for text in texts],
        "digits": [body("".join(rng.choices("01234", k=7)) if words else "3333333", 7) for _ in range(64)],
        "digit": [body(str(n % 5), 1) for n in range(5)],
    }


async def serve(latency: float, words: int) -> None:
    known = answers(words)

    async def chat(request: web.Request) -> web.Response:
        raw = await request.read()
        if latency:
            await asyncio.sleep(latency)
        constraint = orjson.loads(raw).get("structured_outputs") or {}
        bodies = known["digits" if "regex" in constraint else "digit" if "choice" in constraint else "text"]
        return web.Response(body=bodies[zlib.crc32(raw) % len(bodies)], content_type="application/json")

    async def models(request: web.Request) -> web.Response:
        """As vLLM lists them: its constraints are then used without a trial."""
        listed = [{"id": name, "object": "model", "owned_by": "vllm"} for name in ("embedded", "embedded-ranker")]
        return web.json_response({"object": "list", "data": listed})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
