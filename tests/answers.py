"""What the endpoint of tests answers: by what it was asked, with faults that pass (`FAULTS`: a run asks again, and its records
are as if nothing had been), and with faults that stay with one prompt (`LASTING`, by what a run makes of them)."""

import gzip
import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from typing import Any

import orjson


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
            400, "The response was filtered", code="content_filter", innererror={"code": "ResponsibleAIPolicyViolation"}
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
