"""What a server's error body means: a prompt that is too long, a content policy, or something else.

Only codes and the server's own message are looked at, never the rest of the body: some send the prompt back in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import orjson

from core.files import CONFIGS, read_yaml
from core.settings import Settings

Meaning = Literal["context_overflow", "content_filter"]
_READ = 4000  # characters of a message that are looked at


class _Signs(Settings):
    """What an error's code or message may say; see configs/serve/answers.yaml."""

    codes: frozenset[str]
    code_endings: tuple[str, ...] = ()
    wordings: tuple[str, ...]

    def fit(self, codes: set[str], message: str) -> bool:
        coded = codes & self.codes or any(code.endswith(self.code_endings) for code in codes)
        return bool(coded or re.search("|".join(self.wordings), message, re.I))


class Vocabulary(Settings):
    """The words of servers, read from configs/serve/answers.yaml."""

    finish_reasons: dict[str, frozenset[str]]
    context_overflow: _Signs
    content_filter: _Signs


@cache
def vocabulary() -> Vocabulary:
    """Read once a process."""
    return read_yaml(CONFIGS / "serve" / "answers.yaml", Vocabulary, "the words of servers")


def meaning_of(status: int, raw: bytes) -> Meaning | None:
    """What an error of this status with this body means for the reply; None for anything but a full context or a policy."""
    codes = {re.sub(r"[_-]", "", code.lower()) for code in _codes(_parsed(raw))}
    message = error_text(raw)[:_READ]
    words = vocabulary()
    if status == 413 or codes & words.context_overflow.codes:
        return "context_overflow"
    if words.content_filter.fit(codes, message):
        return "content_filter"
    return "context_overflow" if words.context_overflow.fit(codes, message) else None


def error_text(raw: bytes) -> str:
    """The server's own words: code and message of a JSON error, or the body as text."""
    body = _parsed(raw)
    if body is None:
        return raw.decode("utf-8", "replace")
    error = body.get("error", body)
    if not isinstance(error, dict):
        return str(error)
    return " ".join(str(error[key]) for key in ("code", "message", "detail") if error.get(key)) or str(error)


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """The body as an object; Gemini puts it into a list of one."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body if isinstance(body, dict) else None


def _codes(body: dict[str, Any] | None) -> Iterator[str]:
    """Every code and type that a body has in the places where servers put them."""
    error = (body or {}).get("error")
    inner = [error.get(name) for name in ("innererror", "metadata")] if isinstance(error, dict) else []
    for part in (body, error, *inner):
        if isinstance(part, dict):
            codes = (part.get(name) for name in ("code", "type", "error_type", "error_code", "status"))
            yield from (str(code) for code in codes if isinstance(code, str | int))
