"""What a reply is, and what is made of it: sums over many, probabilities of choices, whether it is asked for again."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from core.errors import UserError, near
from serve.failures import Meaning

MOST = 2**53  # tokens that a count may claim
ROUNDING = 0.02  # by how much rounded probabilities may sum to more than 1
Count = Annotated[int, Field(ge=0, le=MOST)]
Tokens = list[tuple[str, dict[str, float]]]


class Reply(BaseModel):
    """One answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    text: str
    """The answer without reasoning."""
    finish_reason: str | None = None
    """`stop`, `length` (cut off at the token limit), `content_filter`, `context_overflow` (prompt and reply do not fit the
    model), or null where the server gives none."""
    refused: bool = False
    """Set by the server's own signal only (a `refusal` field, a finish reason or error of its content filter): nothing is
    guessed from the wording."""
    prompt_tokens: Count = 0
    """Tokens of the prompt as the server counts them (0: not reported)."""
    completion_tokens: Count = 0
    """Tokens of the answer, reasoning included (0: not reported)."""
    reasoning_tokens: Count = 0
    """Tokens of the reasoning (0: not reported)."""
    reasoning_characters: Count = 0
    """Characters of the reasoning, counted here."""
    reasoning: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The reasoning where it is all that came; null where there is an answer, and where there is neither."""
    tokens: Tokens | None = None
    """Per token of the answer its alternatives' log-probabilities (null: not reported; empty: what was reported is no list of
    the answer's tokens)."""
    model: str | None = None
    """The model that the server says answered (null: it names none)."""
    verbatim: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The answer with the white space that it came with; null where that is `text`, and where reasoning was taken out."""

    @property
    def empty(self) -> bool:
        """Whether it holds nothing at all, not even reasoning, a refusal or a reason for stopping early."""
        return not (self.text.strip() or self.reasoning_characters or self.refused) and self.finish_reason in (None, "stop")

    @property
    def needs_room(self) -> bool:
        """Whether its reasoning may have cost the answer: nothing else came, or it was cut off after it had reasoned."""
        reasoned, said = bool(self.reasoning_tokens or self.reasoning_characters), bool(self.text.strip())
        return (reasoned or not said) if self.finish_reason == "length" else (reasoned and not said and not self.refused)


@dataclass
class UsageTally:
    """One model in one role. The first five are the same however often a run was interrupted; the others are this process's."""

    calls: int = 0
    cut_off: int = 0
    """Answers that ended at the token limit."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    asked: int = 0
    """Calls that were not answered from the store."""
    retries: int = 0
    generated: int = 0
    """Completion tokens of the calls asked."""
    seconds: float = 0.0
    """Time that the calls asked took."""

    def add(self, reply: Reply) -> None:
        """Book an answer, stored or new."""
        self.calls += 1
        self.cut_off += reply.finish_reason == "length"
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.reasoning_tokens += reply.reasoning_tokens

    def took(self, other: UsageTally) -> None:
        """Add what another client of this process asked for the same answers."""
        self.asked += other.asked
        self.retries += other.retries
        self.generated += other.generated
        self.seconds += other.seconds


def reply_of_error(meaning: Meaning) -> Reply:
    """The reply that an error stands for: a policy, or a full context."""
    return Reply(text="", finish_reason=meaning, refused=meaning == "content_filter")


def sound(token: str, alternatives: Mapping[str, float]) -> bool:
    """Whether these can be log-probabilities of what could have stood where `token` stands: finite, together no more than a
    probability of 1, and the token itself possible."""
    if token not in alternatives or not all(math.isfinite(value) and value <= ROUNDING for value in alternatives.values()):
        return False
    return math.exp(alternatives[token]) > 0 and sum(map(math.exp, alternatives.values())) <= 1 + ROUNDING


def choice_probabilities(token: str, alternatives: Mapping[str, float], choices: Iterable[str]) -> dict[str, float] | None:
    """The probabilities of choices that are one token each, where a reply's `token` is one of them; they sum to 1.

    Servers report log-probabilities before the constraint's mask, so they are renormalised over the choices. A choice that is
    not among the reported alternatives counts 0. None where no alternative is reported, and where the figures cannot be
    log-probabilities of that token (`sound`).
    """
    if len(alternatives) < 2 or not sound(token, alternatives):
        return None
    mass = dict.fromkeys(choices, 0.0)
    reported = [(other.strip(), logprob) for other, logprob in alternatives.items() if other.strip() in mass]
    top = max(logprob for _, logprob in reported)
    for choice, logprob in reported:
        mass[choice] += math.exp(logprob - top)
    total = sum(mass.values())
    return {choice: value / total for choice, value in mass.items()}


# ---- stored answers that are asked again, because the user named their kind

Kind = Literal["empty", "refusal", "length", "context_overflow", "unreadable"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def kinds_of(reply: Reply) -> Iterator[Kind]:
    """What a reply shows without a verdict being read in it: no word, refused, no room for the prompt, cut off at the limit."""
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
    """The kinds of stored answers that are asked again, each answer once a command. Nothing is ever drawn again in silence."""

    kinds: Collection[Kind] = ()
    done: set[str] = field(default_factory=set)
    """Keys of the calls that were asked again: their new answers stand."""

    @classmethod
    def parse(cls, text: str | None) -> Retry:
        """From `empty,refusal`; `UserError` for an unknown kind."""
        names = [name.strip() for name in (text or "").split(",") if name.strip()]
        for name in names:
            if name not in KINDS:
                raise UserError(f"--retry {name}: no such kind of answer: {near(name, KINDS)}")
        return cls([kind for kind in KINDS if kind in names])

    def reason(self, key: str, reply: Reply, readable: Callable[[str], bool] | None) -> Kind | None:
        """Why the stored answer of a call is asked again; None where it stands. `readable` tells whether a verdict can be read
        in it (None: none is asked for)."""
        if not self.kinds or key in self.done:
            return None
        kinds = set(kinds_of(reply))
        if "unreadable" in self.kinds and readable and not readable(reply.text):
            kinds.add("unreadable")
        return next((kind for kind in self.kinds if kind in kinds), None)
