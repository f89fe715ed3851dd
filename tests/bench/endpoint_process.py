"""A chat endpoint in a process of its own: answers after LATENCY seconds. Prints its port, then serves until stdin closes."""

from __future__ import annotations

import asyncio
import sys

import orjson
from aiohttp import web


async def serve(latency: float) -> None:
    async def chat(request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        if latency:
            await asyncio.sleep(latency)
        text = "3333333" if "structured_outputs" in body else "I hear you, and I would like to know more about it."
        reply = {
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 12},
        }
        return web.Response(body=orjson.dumps(reply), content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
