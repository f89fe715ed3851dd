"""A reply that is read while it is written: the events of a streamed chat completion.

They are put together to the body that an answer in one piece has, so that everything else reads both alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from core.masking import mask_answer
from core.specs import ModelSpec
from serve.failures import Unreadable
from serve.reasoning import reasoning_beside, split_reasoning, text_of

_TAG_BEGUN = re.compile(r"(?:<[|/a-z][^<>\s]{0,40}|\[/?T?H?I?N?K?|◁[^▷]{0,10})\Z", re.I)
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}  # of a request, beside what is asked


@dataclass
class _Body:
    """What has come so far."""

    content: str = ""
    reasoning: str = ""
    refusal: str = ""
    error: Any = None
    finish_reason: Any = None
    rest: dict[str, Any] = field(default_factory=dict)
    """Usage and the model's name."""
    ended: bool = False

    def take(self, event: dict[str, Any]) -> None:
        """Add an event's part."""
        self.rest |= {name: event[name] for name in ("model", "usage") if event.get(name)}
        for choice in event.get("choices") or ():
            part = choice.get("delta") or {}
            said, thought = text_of(part.get("content"))
            self.content += said
            self.reasoning += thought + reasoning_beside(part)
            self.refusal += part.get("refusal") or ""
            self.error = choice.get("error") or self.error
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.ended = self.ended or self.finish_reason is not None

    def json(self) -> bytes:
        message = {"content": self.content, "reasoning": self.reasoning, "refusal": self.refusal}
        choice = {"message": message, "finish_reason": self.finish_reason, "error": self.error}
        return orjson.dumps({"choices": [choice], **self.rest})


async def read_stream(response: aiohttp.ClientResponse, most: int, hears: Callable[[str], None]) -> tuple[bytes, bool]:
    """The body that an answer in one piece would have, and whether that is all of it: reading stops after `most` bytes. `hears`
    is told the text so far, reasoning included.

    An error that the server sends in the middle is the body. Raises `Unreadable` for a stream that ends before its reply does.
    """
    body, read, line = _Body(), 0, b""
    async for piece in response.content.iter_any():
        read += len(piece)
        if read > most:
            return b"", False
        *lines, line = (line + piece).split(b"\n")
        before = len(body.content)
        for data in (one.removeprefix(b"data:").strip() for one in lines if one.startswith(b"data:")):
            if data == b"[DONE]":
                body.ended = True
                continue
            try:
                event = orjson.loads(data)
                if event.get("error"):
                    return data, True
                body.take(event)
            except (orjson.JSONDecodeError, TypeError, AttributeError) as error:
                raise Unreadable(
                    f"unreadable event ({type(error).__name__}): {data[:200].decode('utf-8', 'replace')}"
                ) from None
        if len(body.content) > before:
            hears(body.content)
    if not body.ended:
        raise Unreadable("the stream broke off in the middle of the reply")
    return body.json(), True


def so_far(spec: ModelSpec, text: str, key: str | None) -> str:
    """What may be shown of a reply that is not whole: no reasoning, no key, and at the end no beginning of either."""
    said = split_reasoning(spec, text)[0]
    for start in (spec.think_tags[0], key or ""):
        held = next((size for size in range(min(len(start) - 1, len(said)), 0, -1) if start.startswith(said[-size:])), 0)
        said = said[: len(said) - held]
    return mask_answer(_TAG_BEGUN.sub("", said), key)
