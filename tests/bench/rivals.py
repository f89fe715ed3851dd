"""Other clients on the same calls: openai-python with both of its transports, and Inspect AI. Only the calls: nothing is
stored, checked or shown."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from serve.batch import in_flight, together
from tests.bench.one_run import EXCHANGES, Spent, peak_memory

Messages = list[dict[str, str]]
Ask = Callable[[Messages], Awaitable[str]]
SYSTEM = "Play the person described below in a chat. " * 30  # about as long as a seeker's instructions
DIMENSIONS = 7


@asynccontextmanager
async def openai(url: str, concurrency: int, aiohttp: bool) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI, DefaultAioHttpClient, DefaultAsyncHttpxClient

    httpx = importlib.import_module("httpx2" if importlib.util.find_spec("httpx2") else "httpx")  # by openai's release
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    http = (DefaultAioHttpClient if aiohttp else DefaultAsyncHttpxClient)(limits=limits)
    async with AsyncOpenAI(base_url=url, api_key="none", http_client=http) as client:

        async def ask(messages: Messages) -> str:
            reply = await client.chat.completions.create(model="embedded", messages=messages, temperature=0, max_tokens=64)  # type: ignore[arg-type]
            return reply.choices[0].message.content or ""

        yield ask


@asynccontextmanager
async def inspect_ai(url: str, concurrency: int) -> AsyncIterator[Ask]:
    inspect = importlib.import_module("inspect_ai.model")  # not among our own extras
    os.environ.setdefault("BENCH_API_KEY", "none")
    kinds = {"system": inspect.ChatMessageSystem, "user": inspect.ChatMessageUser, "assistant": inspect.ChatMessageAssistant}
    model = inspect.get_model(
        "openai-api/bench/embedded",
        base_url=url,
        config=inspect.GenerateConfig(temperature=0, max_tokens=64, max_connections=concurrency),
    )

    async def ask(messages: Messages) -> str:
        reply = await model.generate([kinds[message["role"]](content=message["content"]) for message in messages])
        return str(reply.completion)

    yield ask


# Name → the modules that it needs, and what opens it for so many calls in flight.
RIVALS: dict[str, tuple[tuple[str, ...], Callable[[str, int], AbstractAsyncContextManager[Ask]]]] = {
    "openai-python": (("openai",), lambda url, n: openai(url, n, aiohttp=False)),
    "openai-python on aiohttp": (("openai", "aiohttp"), lambda url, n: openai(url, n, aiohttp=True)),
    "Inspect AI": (("inspect_ai",), inspect_ai),
}


def installed() -> list[str]:
    """The clients that can be measured here."""
    return [name for name, (modules, _) in RIVALS.items() if all(map(importlib.util.find_spec, modules))]


def rival(name: str, url: str, dialogues: int, concurrency: int) -> Spent:
    """What the calls of so many dialogues take another client."""
    return asyncio.run(_calls(name, url, dialogues, concurrency))


async def _calls(name: str, url: str, dialogues: int, concurrency: int) -> Spent:
    async with RIVALS[name][1](url, concurrency) as ask:
        asked = 0

        async def counted(messages: Messages) -> str:
            nonlocal asked
            asked += 1
            return await ask(messages)

        async def one(number: int) -> None:
            messages = [{"role": "system", "content": f"{number} {SYSTEM}"}, {"role": "user", "content": "Hello."}]
            for turn in range(2 * EXCHANGES):
                messages.append({"role": "user" if turn % 2 else "assistant", "content": await counted(messages)})
            await counted(messages)
            await together(counted(messages) for _ in range(DIMENSIONS - 1))

        started, cpu = time.perf_counter(), time.process_time()
        await in_flight(range(dialogues), one, concurrency)
        return Spent(time.perf_counter() - started, time.process_time() - cpu, dialogues, asked, peak_memory())
