"""Failures: the meaning of a server's error, calls that remain without an answer, and when a run ends because of them.

Only an error's codes and message are used, never the rest of the body, in which some servers send the prompt back. Gateways put
the vendor's error into their own, as a field or as JSON in the text of the message; it is unpacked.
"""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

import orjson

from core.files import CONFIGS
from core.settings import Settings, read_yaml

Lost = Literal["infrastructure", "rejected"]
Meaning = Literal["context_overflow", "content_filter", "throttle", "quota", "passing"]
"""The meaning of an error. The first two count as answers; the others are problems of the server or the account."""
FATAL = frozenset({401, 403, 404})  # no key, no permission, no such model or URL: the next call would fail too
LASTING = frozenset({401, 404})  # statuses that waiting does not change
CROWDED = frozenset({429, 503, 529})  # statuses of a server that wants fewer calls
FIRST_CALLS = 20  # a model that rejects this many calls before any answer is given up
_READ = 4000  # characters of a message that are searched


class Unanswered(Exception):
    """A call without an answer: `outcome` is for records, `status` the server's HTTP status or None, `told` its message."""

    outcome: ClassVar[Lost]

    def __init__(self, message: str, status: int | None = None, told: str = "") -> None:
        super().__init__(message)
        self.status, self.told = status, told


class ServerLost(Unanswered):
    """The endpoint failed until all retries were used up, or was given up."""

    outcome = "infrastructure"


class NotAsked(ServerLost):
    """The call was not made: its model was given up, or the run has ended early."""


class Rejected(Unanswered):
    """The server works but does not answer this call, and would not do so at once if asked again."""

    outcome = "rejected"


class OutOfQuota(Rejected):
    """The account's quota or balance is used up."""


class NotStored(Exception):
    """An offline client was asked for an answer that is not in the store."""


class NotUp(Exception):
    """The model's server is up in a later phase, in which the call is made."""


class NotReached(NotUp):
    """The budget was used up before the call, which is made when the run is resumed."""


@dataclass(frozen=True, order=True)
class FailedCall:
    """An unanswered call in failures.json: the role and model, the dialogue (or other item), and why there is no answer."""

    role: str
    model: str
    dialogue: str
    outcome: Lost
    status: int | None
    reason: str


class PassingError(Exception):
    """An error that may not recur: the server's status, its message (`told`) and meaning, and the seconds it asks to `wait`."""

    def __init__(
        self, problem: str, status: int | None = None, told: str = "", meaning: Meaning | None = None, wait: float | None = None
    ) -> None:
        super().__init__(problem)
        self.status, self.told, self.meaning, self.wait = status, told, meaning, wait

    @property
    def crowded(self) -> bool:
        """Whether the server wants fewer concurrent calls."""
        return self.meaning == "throttle" or self.status in CROWDED


class Unreadable(PassingError):
    """A 200 whose body is not a finished chat completion."""


@dataclass
class Threshold:
    """When a run ends early, for the reason in `cause`: from then on nothing more is asked."""

    fail_on_error: float | None = None
    """The failed dialogues at which a run ends, as in Inspect AI: a share below 1, a number from 1 on. None: the run ends at
    the first 401, 403 or 404, or if the first `FIRST_CALLS` calls to a model are all rejected."""
    cause: str | None = None
    of_budget: bool = False
    """Whether the cause is the budget."""
    _failed: int = 0
    _answered: set[tuple[str, str]] = field(default_factory=set)
    _rejected: Counter[tuple[str, str]] = field(default_factory=Counter)

    def end(self, cause: str, of_budget: bool = False) -> None:
        """End the run early, whatever `fail_on_error` allows; the first cause is kept."""
        if self.cause is None:
            self.cause, self.of_budget = cause, of_budget

    def answered(self, place: tuple[str, str]) -> None:
        """Note an answered call; `place` is the server's URL and the model's name there."""
        self._answered.add(place)

    def rejected(self, place: tuple[str, str], error: Rejected) -> None:
        """Note a rejected call."""
        if isinstance(error, OutOfQuota):
            self.end(f"{error} (quota or balance used up: top up, and the same command resumes)")
        self._rejected[place] += 1
        if self.fail_on_error is not None or self.cause:
            return
        if error.status in FATAL:
            self.cause = f"{error} (set fail_on_error N to continue nevertheless)"
        elif place not in self._answered and self._rejected[place] >= FIRST_CALLS:
            self.cause = f"the first {FIRST_CALLS} calls were all rejected: {error}"

    def dialogue_failed(self, total: int) -> None:
        """Note that one of the run's `total` dialogues, or its judgement, is missing."""
        self._failed += 1
        if self.fail_on_error is not None and not self.cause:
            allowed = self.fail_on_error * total if self.fail_on_error < 1 else self.fail_on_error
            if self._failed >= allowed:
                self.cause = f"{self._failed} of {total} dialogues failed (fail_on_error {self.fail_on_error:g})"


# ---- the meaning of a server's error


class _Signs(Settings):
    """The signs of a meaning in an error's code or message; see configs/serve/answers.yaml."""

    codes: frozenset[str]
    code_endings: tuple[str, ...] = ()
    wordings: tuple[str, ...] = ()

    def coded(self, codes: set[str]) -> bool:
        return bool(codes & self.codes) or any(code.endswith(self.code_endings) for code in codes)

    def worded(self, message: str) -> bool:
        return bool(self.wordings) and re.search("|".join(self.wordings), message, re.I) is not None


class ErrorVocabulary(Settings):
    """Servers' words, from configs/serve/answers.yaml."""

    finish_reasons: dict[str, frozenset[str]]
    context_overflow: _Signs
    content_filter: _Signs
    throttle: _Signs
    quota: _Signs
    passing: _Signs


@cache
def vocabulary() -> ErrorVocabulary:
    """Servers' words, read once per process."""
    return read_yaml(CONFIGS / "serve" / "answers.yaml", ErrorVocabulary, "the words of servers")


def meaning_of(status: int, raw: bytes, asked_to_wait: bool = False) -> Meaning | None:
    """The meaning of an error with this status and body; `asked_to_wait`: whether the server gave a waiting time."""
    codes, message, words = _codes(raw), error_text(raw)[:_READ], vocabulary()
    if status == 402 or words.quota.coded(codes):
        return "quota"
    # Gemini's throttle mentions a quota, too. Azure asks to wait a moment if a deployment does not exist.
    if words.throttle.coded(codes) or (status not in LASTING and words.throttle.worded(message)):
        return "throttle"
    if words.quota.worded(message):
        return "quota"
    if words.passing.coded(codes):
        return "passing"
    if asked_to_wait and status not in LASTING:
        return "throttle"
    if status == 413 or words.context_overflow.coded(codes):
        return "context_overflow"
    if words.content_filter.coded(codes) or words.content_filter.worded(message):
        return "content_filter"
    return "context_overflow" if words.context_overflow.worded(message) else None


def error_text(raw: bytes) -> str:
    """The server's message: code, message and field of a JSON error, or the body as text."""
    body = _parsed(raw)
    return raw.decode("utf-8", "replace") if body is None else _words(body)


def _words(value: Any) -> str:
    if isinstance(value, str):
        embedded = _object_in(value)
        return f"{value[: embedded[0]]}{_words(embedded[2])}{value[embedded[1] :]}" if embedded else value
    error = value.get("error") or value
    if not isinstance(error, dict):
        return _words(str(error))
    metadata = error.get("metadata")
    vendors = metadata.get("raw") if isinstance(metadata, dict) else error.get("cause")
    parts = [_words(str(part)) for part in (error.get("code"), error.get("message"), error.get("detail"), vendors) if part]
    parts = [part for part in parts if not re.fullmatch(r"[1-5]\d\d", part)] or parts  # messages have the status anyway
    if error.get("param") and str(error["param"]) not in " ".join(parts):
        parts.append(f"(param: {error['param']})")
    return " ".join(parts) or str(error)


def _object_in(text: str) -> tuple[int, int, dict[str, Any]] | None:
    """Start and end of a JSON object in a text, and the object. Python's notation of bytes is read, too."""
    match = re.search(r"b?(['\"]?)(\{.*\})\1", text, re.S)
    for form in (match[2], match[2].replace('\\"', '"').replace("\\\\", "\\")) if match else ():
        with suppress(orjson.JSONDecodeError):
            return match.start(), match.end(), orjson.loads(form)  # type: ignore[union-attr]
    return None


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """The body as an object, which Gemini puts into a list."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body if isinstance(body, dict) else None


def _codes(raw: bytes) -> set[str]:
    """The codes and types in a body, in the fields where servers put them, in lower case without "_" and "-"."""
    parts, codes = [_parsed(raw)], set[str]()
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            embedded = _object_in(part)
            part = embedded[2] if embedded else None
        if isinstance(part, dict):
            values = (part.get(name) for name in ("code", "type", "error_type", "error_code", "status"))
            codes |= {re.sub(r"[_-]", "", str(code).lower()) for code in values if isinstance(code, str | int)}
            parts += [part.get(name) for name in ("error", "innererror", "metadata", "raw", "cause", "message")]
    return codes
