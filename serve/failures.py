"""Calls that were not answered, and when there are so many that a run ends early.

A call without an answer is never stored: the same command asks it again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Lost = Literal["infrastructure", "rejected"]
FATAL = frozenset({401, 403, 404})  # no key, no right, no such model or address: the next call meets the same
FIRST_CALLS = 20  # a model that rejects so many calls and has answered none answers none


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
            self.end(f"{error} (quota or balance used up: the same command goes on when there is some again)")
        self._rejected[place] += 1
        if self.fail_on_error is not None or self.cause:
            return
        if error.status in FATAL:
            self.cause = f"{error} (--fail-on-error N goes on in spite of it)"
        elif place not in self._answered and self._rejected[place] >= FIRST_CALLS:
            self.cause = f"the first {FIRST_CALLS} calls were all rejected: {error}"

    def dialogue_failed(self, total: int) -> None:
        """One of the run's `total` dialogues, or its judgement, is missing."""
        self._failed += 1
        if self.fail_on_error is not None and not self.cause:
            allowed = self.fail_on_error * total if self.fail_on_error < 1 else self.fail_on_error
            if self._failed >= allowed:
                self.cause = f"{self._failed} of {total} dialogues failed (--fail-on-error {self.fail_on_error:g})"
