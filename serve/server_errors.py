"""What a server's error body means: a prompt that is too long, a content policy, a throttle, an empty account, or another.

Only codes and the server's own message are looked at, never the rest of the body: some send the prompt back in it. A gateway
writes the vendor's own error into its own, as a field or as JSON in the text of its message: that is unpacked.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import Any, Literal

import orjson

from core.files import CONFIGS, read_yaml
from core.settings import Settings

Meaning = Literal["context_overflow", "content_filter"]
Fault = Literal["throttle", "quota", "passing"]
LASTING = frozenset({401, 404})  # statuses that no waiting mends
_READ = 4000  # characters of a message that are looked at


class _Signs(Settings):
    """What an error's code or message may say; see configs/serve/answers.yaml."""

    codes: frozenset[str]
    code_endings: tuple[str, ...] = ()
    wordings: tuple[str, ...] = ()

    def coded(self, codes: set[str]) -> bool:
        return bool(codes & self.codes) or any(code.endswith(self.code_endings) for code in codes)

    def worded(self, message: str) -> bool:
        return bool(self.wordings) and re.search("|".join(self.wordings), message, re.I) is not None

    def fit(self, codes: set[str], message: str) -> bool:
        return self.coded(codes) or self.worded(message)


class Vocabulary(Settings):
    """The words of servers, read from configs/serve/answers.yaml."""

    finish_reasons: dict[str, frozenset[str]]
    context_overflow: _Signs
    content_filter: _Signs
    throttle: _Signs
    quota: _Signs
    passing: _Signs


@cache
def vocabulary() -> Vocabulary:
    """Read once a process."""
    return read_yaml(CONFIGS / "serve" / "answers.yaml", Vocabulary, "the words of servers")


def meaning_of(status: int, raw: bytes) -> Meaning | None:
    """What an error of this status with this body means for the reply; None for anything but a full context or a policy."""
    codes, message, words = _codes(raw), error_text(raw)[:_READ], vocabulary()
    if fault_of(status, raw):
        return None
    if status == 413 or words.context_overflow.coded(codes):
        return "context_overflow"
    if words.content_filter.fit(codes, message):
        return "content_filter"
    return "context_overflow" if words.context_overflow.worded(message) else None


def fault_of(status: int, raw: bytes) -> Fault | None:
    """What an error says of the server or the account, and so nothing of the model: `throttle` (asked too much, in any
    status), `quota` (nothing is left to pay with), `passing` (this one answer went wrong)."""
    codes, message, words = _codes(raw), error_text(raw)[:_READ], vocabulary()
    if status == 402 or words.quota.coded(codes):
        return "quota"
    # Gemini's throttle speaks of a quota, too. Azure asks to wait a moment where there is no such deployment.
    if words.throttle.coded(codes) or (status not in LASTING and words.throttle.worded(message)):
        return "throttle"
    if words.quota.worded(message):
        return "quota"
    return "passing" if words.passing.coded(codes) else None


def error_text(raw: bytes) -> str:
    """The server's own words: code, message and field of a JSON error, or the body as text."""
    body = _parsed(raw)
    return raw.decode("utf-8", "replace") if body is None else _words(body)


def _words(value: Any) -> str:
    if isinstance(value, str):
        found = _object_in(value)
        return f"{value[: found[0]]}{_words(found[2])}{value[found[1] :]}" if found else value
    error = value.get("error") or value
    if not isinstance(error, dict):
        return _words(str(error))
    metadata = error.get("metadata")
    own = metadata.get("raw") if isinstance(metadata, dict) else error.get("cause")
    said = [_words(str(part)) for part in (error.get("code"), error.get("message"), error.get("detail"), own) if part]
    said = [part for part in said if not re.fullmatch(r"[1-5]\d\d", part)] or said  # the status is told anyway
    if error.get("param") and str(error["param"]) not in " ".join(said):
        said.append(f"(param: {error['param']})")
    return " ".join(said) or str(error)


def _object_in(text: str) -> tuple[int, int, dict[str, Any]] | None:
    """Where a JSON object stands in a text that has more, or is nothing else, and the object. Python's way of writing bytes is
    read, too."""
    found = re.search(r"b?(['\"]?)(\{.*\})\1", text, re.S)
    for form in (found[2], found[2].replace('\\"', '"').replace("\\\\", "\\")) if found else ():
        with suppress(orjson.JSONDecodeError):
            return found.start(), found.end(), orjson.loads(form)  # type: ignore[union-attr]
    return None


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """The body as an object; Gemini puts it into a list of one."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body if isinstance(body, dict) else None


def _codes(raw: bytes) -> set[str]:
    """Every code and type that a body has in the places where servers put them, in lower case without "_" and "-"."""
    parts, codes = [_parsed(raw)], set[str]()
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            found = _object_in(part)
            part = found[2] if found else None
        if isinstance(part, dict):
            named = (part.get(name) for name in ("code", "type", "error_type", "error_code", "status"))
            codes |= {re.sub(r"[_-]", "", str(code).lower()) for code in named if isinstance(code, str | int)}
            parts += [part.get(name) for name in ("error", "innererror", "metadata", "raw", "cause", "message")]
    return codes
