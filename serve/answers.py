"""Replies: their usage, the probabilities of choices, and which stored ones to replace (`--retry`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from core.errors import UserError, near
from serve.failures import Meaning

MOST = 2**53  # largest token count that is believed
ROUNDING = 0.02  # excess over 1 that is allowed in a sum of rounded probabilities
Count = Annotated[int, Field(ge=0, le=MOST)]
Tokens = list[tuple[str, dict[str, float]]]


class Reply(BaseModel):
    """One answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    text: str
    """The answer without reasoning."""
    finish_reason: str | None = None
    """`stop`, `length` (cut off at the limit), `content_filter`, `context_overflow` (prompt and reply do not fit), or null."""
    refused: bool = False
    """Set only by the server's signal (`refusal`, a finish reason or error of a content filter), not from the wording."""
    prompt_tokens: Count = 0
    """Tokens of the prompt, counted by the server (0: not reported)."""
    completion_tokens: Count = 0
    """Tokens of the answer, reasoning included (0: not reported)."""
    reasoning_tokens: Count = 0
    """Tokens of the reasoning (0: not reported)."""
    reasoning_characters: Count = 0
    """Characters of the reasoning, counted here."""
    reasoning: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The reasoning, if there is no answer; otherwise null."""
    tokens: Tokens | None = None
    """Log-probabilities of each answer token's alternatives (null: not reported; empty: not for the answer's tokens)."""
    model: str | None = None
    """The model that the server says answered (null: not reported)."""
    verbatim: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The answer with its surrounding white space; null if that equals `text`, or if reasoning was removed."""

    @property
    def empty(self) -> bool:
        """Whether it contains nothing at all, not even reasoning, a refusal or a reason for stopping early."""
        return not (self.text.strip() or self.reasoning_characters or self.refused) and self.finish_reason in (None, "stop")

    @property
    def needs_room(self) -> bool:
        """Whether reasoning may have left no room for the answer: there is no answer, or it was cut off after reasoning."""
        reasoned, answered = bool(self.reasoning_tokens or self.reasoning_characters), bool(self.text.strip())
        if self.finish_reason == "length":
            return reasoned or not answered
        return reasoned and not answered and not self.refused


@dataclass
class UsageTally:
    """Usage of a model in a role. The first five fields do not depend on interruptions; the others are about this process."""

    calls: int = 0
    cut_off: int = 0
    """Answers that ended at the token limit."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    asked: int = 0
    """Calls not answered from the store."""
    retries: int = 0
    generated: int = 0
    """Completion tokens of those calls."""
    seconds: float = 0.0
    """Duration of those calls."""

    def add(self, reply: Reply) -> None:
        """Count an answer, stored or new."""
        self.calls += 1
        self.cut_off += reply.finish_reason == "length"
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.reasoning_tokens += reply.reasoning_tokens

    def took(self, other: UsageTally) -> None:
        """Add the requests of another client of this process for the same answers."""
        self.asked += other.asked
        self.retries += other.retries
        self.generated += other.generated
        self.seconds += other.seconds


def reply_of_error(meaning: Meaning) -> Reply:
    """The reply for an error of the content filter or a full context."""
    return Reply(text="", finish_reason=meaning, refused=meaning == "content_filter")


def sound(token: str, alternatives: Mapping[str, float]) -> bool:
    """Whether these can be log-probabilities of `token` and alternatives: finite, summing to at most 1, and with the token."""
    if token not in alternatives or not all(math.isfinite(value) and value <= ROUNDING for value in alternatives.values()):
        return False
    return math.exp(alternatives[token]) > 0 and sum(map(math.exp, alternatives.values())) <= 1 + ROUNDING


def choice_probabilities(token: str, alternatives: Mapping[str, float], choices: Iterable[str]) -> dict[str, float] | None:
    """The probabilities of choices of one token each, one of which is the reply's `token`; they sum to 1, since servers report
    log-probabilities before the constraint's mask. Choices that are not reported have probability 0. None if no alternative is
    reported, or if the figures cannot be log-probabilities of that token (`sound`)."""
    if len(alternatives) < 2 or not sound(token, alternatives):
        return None
    mass = dict.fromkeys(choices, 0.0)
    reported = [(other.strip(), logprob) for other, logprob in alternatives.items() if other.strip() in mass]
    top = max(logprob for _, logprob in reported)
    for choice, logprob in reported:
        mass[choice] += math.exp(logprob - top)
    total = sum(mass.values())
    return {choice: value / total for choice, value in mass.items()}


# ---- stored answers of kinds that the user wants replaced

Kind = Literal["empty", "refusal", "length", "context_overflow", "unreadable"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def kinds_of(reply: Reply) -> Iterator[Kind]:
    """The kinds that a reply is of, as far as they do not depend on reading a verdict."""
    if reply.refused:
        yield "refusal"
    elif reply.finish_reason == "context_overflow":
        yield "context_overflow"
    elif not reply.text.strip():
        yield "empty"
    if reply.finish_reason == "length":
        yield "length"


@dataclass
class Retry:
    """The kinds of stored answers to replace, each answer once per command. No answer is ever replaced otherwise."""

    kinds: Collection[Kind] = ()
    done: set[str] = field(default_factory=set)
    """Keys of the calls that were repeated, whose new answers count."""

    @classmethod
    def parse(cls, text: str | None) -> Retry:
        """From `empty,refusal`. Raises `UserError` for an unknown kind."""
        names = [name.strip() for name in (text or "").split(",") if name.strip()]
        for name in names:
            if name not in KINDS:
                raise UserError(f"--retry {name}: no such kind of answer: {near(name, KINDS)}")
        return cls([kind for kind in KINDS if kind in names])

    def reason(self, key: str, reply: Reply, readable: Callable[[str], bool] | None) -> Kind | None:
        """Why a call's stored answer is replaced, or None. `readable`: whether a text has a verdict (None: needs none)."""
        if not self.kinds or key in self.done:
            return None
        kinds = set(kinds_of(reply))
        if "unreadable" in self.kinds and readable and not readable(reply.text):
            kinds.add("unreadable")
        return next((kind for kind in self.kinds if kind in kinds), None)
