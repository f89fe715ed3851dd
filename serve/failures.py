"""An answer that is none: what a server's error means, calls that stay without an answer, and when a run ends for them.

Of an error only codes and the server's own message are looked at, never the rest of the body: some send the prompt back in it.
A gateway writes the vendor's own error into its own, as a field or as JSON in the text of its message: that is unpacked. A call
without an answer is never stored: the same command asks it again.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

import orjson

from core.files import CONFIGS
from core.settings import Settings
from core.yaml_files import read_yaml

Lost = Literal["infrastructure", "rejected"]
Meaning = Literal["context_overflow", "content_filter", "throttle", "quota", "passing"]
"""Of an error. The first two are an answer; the others are the server's or the account's trouble, and say nothing of the model:
asked too much, nothing left to pay with, an answer that went wrong once."""
FATAL = frozenset({401, 403, 404})  # no key, no right, no such model or address: the next call meets the same
LASTING = frozenset({401, 404})  # statuses that no waiting mends
CROWDED = frozenset({429, 503, 529})  # statuses that say that fewer calls would be better
FIRST_CALLS = 20  # a model that rejects so many calls and has answered none answers none
_READ = 4000  # characters of a message that are looked at


class Unanswered(Exception):
    """A call without an answer. `outcome` is what records say of it, `status` the server's HTTP status where it gave one, and
    `told` its own words."""

    outcome: ClassVar[Lost]

    def __init__(self, message: str, status: int | None = None, told: str = "") -> None:
        super().__init__(message)
        self.status, self.told = status, told


class ServerLost(Unanswered):
    """The endpoint kept failing until the retries were used up, or was not asked any more."""

    outcome = "infrastructure"


class NotAsked(ServerLost):
    """The call was not made at all: its model was given up before, or the run has ended early."""


class Rejected(Unanswered):
    """The server works but does not answer this call: asking again at once would change nothing."""

    outcome = "rejected"


class OutOfQuota(Rejected):
    """The account's quota or money is used up: no call is answered before somebody pays."""


class NotStored(Exception):
    """An offline client was asked something that the store does not hold."""


class NotUp(Exception):
    """A model was asked whose server is up in a later phase: what asks it is done then."""


class NotReached(NotUp):
    """The budget was used up before the call: what asks it is done when the run goes on."""


@dataclass(frozen=True, order=True)
class FailedCall:
    """An unanswered call as failures.json lists it: who was asked in which role, for which dialogue (or other item), and why
    there is no answer."""

    role: str
    model: str
    dialogue: str
    outcome: Lost
    status: int | None
    reason: str


class PassingError(Exception):
    """What another try may mend: the server's status, its own words (`told`), what they mean, and the seconds that it asks to
    `wait`."""

    def __init__(
        self, problem: str, status: int | None = None, told: str = "", meaning: Meaning | None = None, wait: float | None = None
    ) -> None:
        super().__init__(problem)
        self.status, self.told, self.meaning, self.wait = status, told, meaning, wait

    @property
    def crowded(self) -> bool:
        """Whether fewer calls at once would be better."""
        return self.meaning == "throttle" or self.status in CROWDED


class Unreadable(PassingError):
    """A 200 whose body is not a finished chat completion."""


@dataclass
class Threshold:
    """When a run ends early: from then on nothing more is asked, and `cause` says why."""

    fail_on_error: float | None = None
    """How many of a run's dialogues may fail before it ends, as Inspect AI has it: a share below 1, a number from 1 on. None:
    it ends at the first 401, 403 or 404, and when the first `FIRST_CALLS` calls to a model were all rejected."""
    cause: str | None = None
    of_budget: bool = False
    """Whether that is a budget which is used up."""
    _failed: int = 0
    _answered: set[tuple[str, str]] = field(default_factory=set)
    _rejected: Counter[tuple[str, str]] = field(default_factory=Counter)

    def end(self, cause: str, of_budget: bool = False) -> None:
        """End the run early, whatever `fail_on_error` allows; the first cause stands."""
        if self.cause is None:
            self.cause, self.of_budget = cause, of_budget

    def answered(self, place: tuple[str, str]) -> None:
        """A call was answered; `place` is the server's address and the model's name there."""
        self._answered.add(place)

    def rejected(self, place: tuple[str, str], error: Rejected) -> None:
        """A call was rejected."""
        if isinstance(error, OutOfQuota):
            self.end(f"{error} (quota or balance used up: top up, and the same command resumes)")
        self._rejected[place] += 1
        if self.fail_on_error is not None or self.cause:
            return
        if error.status in FATAL:
            self.cause = f"{error} (fail_on_error N continues in spite of it)"
        elif place not in self._answered and self._rejected[place] >= FIRST_CALLS:
            self.cause = f"the first {FIRST_CALLS} calls were all rejected: {error}"

    def dialogue_failed(self, total: int) -> None:
        """One of the run's `total` dialogues, or its judgement, is missing."""
        self._failed += 1
        if self.fail_on_error is not None and not self.cause:
            allowed = self.fail_on_error * total if self.fail_on_error < 1 else self.fail_on_error
            if self._failed >= allowed:
                self.cause = f"{self._failed} of {total} dialogues failed (fail_on_error {self.fail_on_error:g})"


# ---- what a server's error means


class _Signs(Settings):
    """What an error's code or message may say; see configs/serve/answers.yaml."""

    codes: frozenset[str]
    code_endings: tuple[str, ...] = ()
    wordings: tuple[str, ...] = ()

    def coded(self, codes: set[str]) -> bool:
        return bool(codes & self.codes) or any(code.endswith(self.code_endings) for code in codes)

    def worded(self, message: str) -> bool:
        return bool(self.wordings) and re.search("|".join(self.wordings), message, re.I) is not None


class ErrorVocabulary(Settings):
    """The words of servers, read from configs/serve/answers.yaml."""

    finish_reasons: dict[str, frozenset[str]]
    context_overflow: _Signs
    content_filter: _Signs
    throttle: _Signs
    quota: _Signs
    passing: _Signs


@cache
def vocabulary() -> ErrorVocabulary:
    """Read once a process."""
    return read_yaml(CONFIGS / "serve" / "answers.yaml", ErrorVocabulary, "the words of servers")


def meaning_of(status: int, raw: bytes, asked_to_wait: bool = False) -> Meaning | None:
    """What an error of this status with this body means; `asked_to_wait`: whether the server said for how long."""
    codes, message, words = _codes(raw), error_text(raw)[:_READ], vocabulary()
    if status == 402 or words.quota.coded(codes):
        return "quota"
    # Gemini's throttle speaks of a quota, too. Azure asks to wait a moment where there is no such deployment.
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
