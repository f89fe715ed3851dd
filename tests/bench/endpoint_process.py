"""A chat endpoint in a process of its own. Prints its port, then serves until stdin closes.

    python -m tests.bench.endpoint_process LATENCY WORDS

It answers after LATENCY seconds: with one fixed line and bare scores, or, with WORDS above 0, as a served model would
(replies of so many words that differ, scores with 20 alternatives a token). It knows just enough of HTTP/1.1 for the clients
that are measured: a server of a library takes several times as long for a call as they do, and would be what is measured.
"""

import asyncio
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

LINE = "I hear you, and I would like to know more about it."
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


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
    """Responses to answer with: `text`, `digits` (seven scores), `digit` (one)."""
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
        return response(kind | {"choices": [{"index": 0, **choice}], "usage": usage})

    return {
        "text": [body(text) for text in texts],
        "digits": [body("".join(rng.choices("01234", k=7)) if words else "3333333", 7) for _ in range(64)],
        "digit": [body(str(n % 5), 1) for n in range(5)],
    }


def response(body: Any, status: str = "200 OK") -> bytes:
    raw = orjson.dumps(body)
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


# As vLLM lists its models: its constraints are then used without a trial.
MODELS = response(
    {
        "object": "list",
        "data": [{"id": name, "object": "model", "owned_by": "vllm"} for name in ("embedded", "embedded-ranker")],
    }
)
NOTHING = response({"error": {"message": "no such path"}}, "404 Not Found")


class Connection(asyncio.Protocol):
    """One client's connection: requests one after the other, each answered after the latency."""

    def __init__(self, latency: float, known: dict[str, list[bytes]]) -> None:
        self._latency, self._known, self._read = latency, known, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport, self._loop = transport, asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, blank, body = self._read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not blank or len(body) < (int(length[1]) if length else 0):
            return
        self._read = b""
        if not head.startswith(b"POST /v1/chat/completions"):
            self._transport.write(MODELS if head.startswith(b"GET /v1/models") else NOTHING)
        elif self._latency:
            self._loop.call_later(self._latency, self._answer, self._of(body))
        else:
            self._answer(self._of(body))

    def _of(self, body: bytes) -> bytes:
        """The answer to a request: one and the same as often as it is asked."""
        kind = "digits" if b'"regex"' in body else "digit" if b'"choice"' in body else "text"
        return self._known[kind][zlib.crc32(body) % len(self._known[kind])]

    def _answer(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


async def serve(latency: float, words: int) -> None:
    known = answers(words)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(latency, known), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
