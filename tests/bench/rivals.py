"""Other clients on the calls that ours makes, each in a process of its own: a bare loop (aiohttp and orjson), openai-python on
both of its transports, and Inspect AI. Only the calls: nothing is stored, checked or shown.

    python -m tests.bench.rivals NAME URL CALLS IN_FLIGHT REPEAT

asks every request of CALLS (JSON Lines: one dialogue a line, a list of request bodies) REPEAT times over and prints what that
took as JSON. Each client is set up as its documentation says for many calls at once; none is retried or rate-limited here.
"""

import asyncio
import importlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from serve.batch import together
from tests.bench.one_run import PATH, Spent, peak_memory

Body = dict[str, Any]
Ask = Callable[[Body], Awaitable[str]]
_OWN = ("model", "messages", "temperature", "max_tokens", "logprobs", "top_logprobs")  # OpenAI's; the rest is the server's


@asynccontextmanager
async def bare(url: str, concurrency: int) -> AsyncIterator[Ask]:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(body: Body) -> str:
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/chat/completions", data=orjson.dumps(body), headers=headers) as response:
                answer = orjson.loads(await response.read())
            return str(answer["choices"][0]["message"]["content"])

        yield ask


@asynccontextmanager
async def openai(url: str, concurrency: int, aiohttp: bool) -> AsyncIterator[Ask]:
    library = importlib.import_module("openai")
    httpx = importlib.import_module("httpx2")
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    http = (library.DefaultAioHttpClient if aiohttp else library.DefaultAsyncHttpxClient)(limits=limits)
    async with library.AsyncOpenAI(base_url=url, api_key="none", http_client=http) as client:

        async def ask(body: Body) -> str:
            own = {name: body[name] for name in _OWN if name in body}
            reply = await client.chat.completions.create(**own, extra_body=_extra(body))
            return reply.choices[0].message.content or ""

        yield ask


@asynccontextmanager
async def inspect_ai(url: str, concurrency: int) -> AsyncIterator[Ask]:
    inspect = importlib.import_module("inspect_ai.model")
    os.environ.setdefault("BENCH_API_KEY", "none")
    kinds = {"system": inspect.ChatMessageSystem, "user": inspect.ChatMessageUser, "assistant": inspect.ChatMessageAssistant}
    config = inspect.GenerateConfig(max_connections=concurrency)
    model = inspect.get_model("openai-api/bench/embedded", base_url=url, config=config)

    async def ask(body: Body) -> str:
        messages = [kinds[message["role"]](content=message["content"]) for message in body["messages"]]
        own = {name: body[name] for name in _OWN[2:] if name in body}
        reply = await model.generate(messages, config=inspect.GenerateConfig(**own, extra_body=_extra(body)))
        return str(reply.completion)

    yield ask


def _extra(body: Body) -> Body | None:
    return {name: value for name, value in body.items() if name not in _OWN} or None


# Name → what opens it for so many calls in flight.
RIVALS: dict[str, Callable[[str, int], AbstractAsyncContextManager[Ask]]] = {
    "bare loop": bare,
    "openai-python": lambda url, n: openai(url, n, aiohttp=False),
    "openai-python on aiohttp": lambda url, n: openai(url, n, aiohttp=True),
    "Inspect AI": inspect_ai,
}


async def calls(name: str, url: str, dialogues: Sequence[Sequence[Body]], concurrency: int) -> Spent:
    """What these dialogues' calls take a client: one after the other as ours makes them, a dialogue's last ones together."""
    async with RIVALS[name](url, concurrency) as ask:
        asked = 0

        async def counted(body: Body) -> None:
            nonlocal asked
            assert await ask(body)
            asked += 1

        async def one(bodies: Sequence[Body]) -> None:
            for body in bodies[: PATH - 1]:
                await counted(body)
            await together(counted(body) for body in bodies[PATH - 1 :])

        await counted(dialogues[0][0])  # what a client loads with its first call is not counted
        asked = 0
        started, cpu = time.perf_counter(), time.process_time()
        waiting = iter(dialogues)

        async def worker() -> None:
            for bodies in waiting:
                await one(bodies)

        await together(worker() for _ in range(concurrency))
        return Spent(time.perf_counter() - started, time.process_time() - cpu, len(dialogues), asked, peak_memory())


if __name__ == "__main__":
    name, url, file, concurrency, repeat = sys.argv[1:]
    given = [orjson.loads(line) for line in Path(file).read_bytes().splitlines()]
    print(orjson.dumps(asdict(asyncio.run(calls(name, url, given * int(repeat), int(concurrency))))).decode())
