"""Which model answered, and which server: what is known of where replies came from."""

from __future__ import annotations

import hashlib
from typing import Any

import aiohttp
import orjson

from core.specs import ModelSpec
from serve.http import BadEncoding, read_body
from serve.store import Origin

KEPT = 32 * 1024  # bytes of a call's messages that the store keeps by default
_MOST = 4096  # bytes of a server's answer about itself


class SameModel:
    """Whether one model answers from a run's start to its end: the name that a server gave with the first answer holds for the
    spec and the name that it is asked for, also when the run goes on later. `known` holds what the store has of them."""

    def __init__(self, known: dict[tuple[str, str], str]) -> None:
        self._known = known

    def problem(self, spec: ModelSpec, served: str, named: str | None) -> str | None:
        """What is wrong with an answer that names this model; None where nothing is, or the server names none."""
        if named is None or spec.endpoint.any_model:
            return None
        first = self._known.setdefault((spec.name, served), named)
        if named == first:
            return None
        return (
            f"asked for {served!r}, the model {named!r} answered; at the start of this run it was {first!r}. Its answer "
            "is not used: ask the old model, use another --out, or set endpoint.any_model: true in the spec if they are one"
        )


def origin(spec: ModelSpec, role: str, body: dict[str, Any], model: str | None, attempt: int, kept: int) -> Origin:
    """What the store keeps beside a reply to `body`, with the messages if they have at most `kept` bytes."""
    messages = orjson.dumps(body["messages"])
    named = None if spec.endpoint.any_model else model  # only a name that is held to is a reference
    hashed = hashlib.sha256(messages).hexdigest()
    return Origin(role, spec.name, body["model"], model, named, attempt, hashed, messages if len(messages) <= kept else None)


async def server_version(session: aiohttp.ClientSession, base_url: str) -> str | None:
    """The version of a vLLM server by its `/version` (asked without a key); None where there is no such thing."""
    url, timeout = f"{base_url.removesuffix('/v1')}/version", aiohttp.ClientTimeout(total=5)
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            raw, whole = await read_body(response, _MOST)
            version = orjson.loads(raw)["version"] if response.status == 200 and whole else None
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError, BadEncoding):
        return None
    return version[:100] if isinstance(version, str) else None
