"""Dialects: the fields that a server accepts besides the messages, which its first answers show, and their replacements.

If a refusal names one of our fields, that field is lowered or left out. Otherwise the cause is traced with a small question of
our own that leaves out more from call to call. A constraint is tried with a question of its own, since some servers ignore
unknown fields. The result is kept in the run's store, and is not part of a call's key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field

from core.endpoints import Constraint, Endpoint, MaxTokensField
from core.languages import name_of
from core.specs import ModelSpec
from serve.answers import Reply
from serve.reading import looks_like_reasoning

TRIED: tuple[Constraint, ...] = ("structured_outputs", "json_schema")
PROBE = "Reply with the word hello."
PROBED = ("amber 7301", "cobalt 5528")  # answers that only a constraint can cause
PROBES = 10  # most questions of our own to diagnose a model's refusal
LIMITS = get_args(MaxTokensField)
_FEW = 5  # alternatives per token, if more are refused and the server does not state its limit
_SHORT = 1024  # tokens of a reply, likewise
_LEAST = 128  # tokens: a smaller number in a refusal is not a limit on replies
_OVERHEAD = 64  # tokens that a chat template adds
_COUNTED = 64  # number of answers whose prompt tokens are compared with our sizes
_LONG = 256  # shortest prompt in tokens that may have been truncated
_BYTES = 10  # most bytes of conversation per token with any tokeniser
FORMS = "response_format|schema|structured_outputs"  # names of constraints in refusals


class Retreat(NamedTuple):
    """A reduction of a request: its description, the changed fields of the dialect, and whether the refusal names it."""

    words: str
    changes: Mapping[str, Any]
    named: bool


class Dialect(BaseModel):
    """The form of requests to a server for a model."""

    model_config = ConfigDict(frozen=True)
    constraint: Constraint | None = None
    """None: not known yet."""
    top_logprobs: int = 20
    max_tokens_field: MaxTokensField = "max_tokens"
    most_tokens: int | None = None
    """The server's limit on a reply; None: none is known."""
    least_temperature: float = 0.0
    """The lowest temperature: above 0 if the server refuses 0."""
    left_out: tuple[str, ...] = ()
    """Sampling fields that the server refuses, so that its defaults apply."""
    system_role: bool = True
    """Whether it accepts a system message, which otherwise is put before the first user message."""
    checkpoint_defaults: bool = False
    """Whether, as with vLLM, the checkpoint's generation_config applies to fields left out, so that `top_p: 1` must be sent."""

    @classmethod
    def of(cls, endpoint: Endpoint, base: Dialect | None = None) -> Dialect:
        """The spec's fields and, for those it leaves open, the base's."""
        fields = endpoint.model_dump(
            include={"constraint", "top_logprobs", "max_tokens_field", "system_role"}, exclude_none=True
        )
        return (base or cls()).model_copy(update=fields)

    def retreats(self, endpoint: Endpoint, body: Mapping[str, Any], refusal: str) -> Iterator[Retreat]:
        """Reductions of a refused request, beginning with those that affect figures least. Fields that the spec sets stay."""

        def names(pattern: str) -> bool:
            return re.search(pattern, refusal, re.I) is not None

        if endpoint.system_role is None and "system" in fields_of(body):
            yield Retreat("system message in the user's", {"system_role": False}, names(r"\bsystem\b|\bdeveloper\b"))
        if endpoint.top_logprobs is None and "logprobs" in body:
            most = body["top_logprobs"]
            if (fewer := _below(refusal, most)) or most > _FEW:
                few = fewer or _FEW
                yield Retreat(f"top_logprobs {few}", {"top_logprobs": few}, fewer is not None and names("logprobs"))
            yield Retreat("no logprobs", {"top_logprobs": 0}, names("logprobs"))
        for name in ("structured_outputs", "response_format"):
            if name in body and endpoint.constraint is None:
                yield Retreat(f"no {name}", {"constraint": "none"}, names(FORMS))
        for name in ("top_p", "seed", "temperature"):
            if name in body and body[name] == 0:  # temperature: the lowest in the refusal, else one that most servers accept
                least = min(map(float, re.findall(r"\b0\.\d*[1-9]", refusal)), default=0.01)
                yield Retreat(f"temperature {least:g}", {"least_temperature": least}, names(r"\btemperature\b"))
            if name in body:
                yield Retreat(f"no {name}", {"left_out": name}, names(rf"\b{name}\b"))
        limit, newer = self.max_tokens_field, "max_completion_tokens"
        if endpoint.max_tokens_field is None and limit == "max_tokens":
            yield Retreat(f"{newer} for max_tokens", {"max_tokens_field": newer}, names(newer))
        most = _below(refusal, body[limit], _LEAST)
        if size := most or (0 if self.most_tokens else min(_SHORT, body[limit] // 2)):
            yield Retreat(f"{limit} {size}", {"most_tokens": size}, most is not None and names(r"max_\w*tokens"))

    def after(self, *retreats: Retreat) -> Dialect:
        """The dialect with these reductions."""
        changes: dict[str, Any] = {}
        for retreat in retreats:
            changes |= retreat.changes
        left = [retreat.changes["left_out"] for retreat in retreats if "left_out" in retreat.changes]
        return self.model_copy(update=changes | {"left_out": (*self.left_out, *left)})

    def sentences(self) -> list[str]:
        """Facts about it for users."""
        constraints = {
            "structured_outputs": "answers are constrained by structured_outputs",
            "json_schema": "answers are constrained by response_format with a JSON schema",
            "none": "answers cannot be constrained: the prompt describes their form, and they are parsed",
        }
        facts = [constraints[self.constraint]] if self.constraint else []
        facts += ["no token probabilities"] if not self.top_logprobs else []
        facts += [] if self.system_role else ["no system role: a system message is put before the first user message"]
        facts += [f"replies have at most {self.most_tokens:,} tokens"] if self.most_tokens else []
        facts += [f"{name} is the server's default, since it refuses ours" for name in self.left_out]
        random = "temperature" in self.left_out
        if self.least_temperature and not random:
            facts, random = [*facts, f"temperature is {self.least_temperature:g}, as the server refuses 0"], True
        return facts + (["replies and verdicts may differ from run to run"] if random else [])


KEYED = Dialect(constraint="structured_outputs")  # the dialect of the requests in calls' keys


def fields_of(body: Mapping[str, Any]) -> set[str]:
    """The parts of a request that a server may refuse: its optional fields, and a system message."""
    system = {"system"} if body["messages"] and body["messages"][0]["role"] == "system" else set[str]()
    return (body.keys() - {"model", "messages"}) | system


def _below(refusal: str, value: int, least: int = 1) -> int | None:
    """The largest number in a refusal that is below the refused value."""
    numbers = map(int, re.findall(r"(?<![\d.])\d{1,9}(?!\.?\d)", refusal))
    return max((number for number in numbers if least <= number < value), default=None)


_HERE = Field(exclude=True)  # not stored: for this process only


class Voice(BaseModel):
    """The findings about a model at its server, which the store keeps from run to run."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    dialect: Dialect
    settled: set[str] = set()
    """Fields of requests that it has answered."""
    largest: int = 0
    """The largest limit on a reply in requests that it has answered."""
    reasons: bool = False
    """Whether it turned out to reason, so that it needs room for that."""
    answers: bool = False
    """Whether it has answered though its server does not list it."""
    tried: list[str] = []
    """Descriptions of our own questions to diagnose a refusal."""
    cut_at: int | None = None
    """Number of tokens at which the server seems to truncate prompts."""
    begins: str | None = None
    """The beginning of a reply that may contain reasoning in an unknown form."""

    context: Annotated[int | None, _HERE] = None
    """The context length reported by the server."""
    adapting: Annotated[asyncio.Lock, _HERE] = Field(default_factory=asyncio.Lock)
    """Locked while a refusal is diagnosed: other calls wait."""
    forming: Annotated[asyncio.Lock, _HERE] = Field(default_factory=asyncio.Lock)
    """Locked while a constraint is tried."""
    doubted: Annotated[bool, _HERE] = False
    """Whether a 500 was taken for a refusal once. The next one is the server's own problem."""
    shown: Annotated[bool, _HERE] = False
    """Whether this process has printed the findings."""
    fails: Annotated[set[Constraint], _HERE] = set()
    """Constraints that were refused."""
    counted: Annotated[list[tuple[int, int]], _HERE] = []
    """(Tokens, bytes) of the first prompts."""

    def takes(self, body: Mapping[str, Any]) -> bool:
        """Whether it has answered a request with these fields."""
        return fields_of(body) <= self.settled and size_of(body) <= self.largest

    def settle(self, body: Mapping[str, Any]) -> None:
        """Note that it has answered such a request."""
        self.settled |= fields_of(body)
        self.largest = max(self.largest, size_of(body))

    @property
    def measures(self) -> bool:
        """Whether the size of prompts is still needed."""
        return self.reasons or len(self.counted) < _COUNTED

    def notices(self, reply: Reply, size: int) -> Iterator[str]:
        """New warnings from a reply to a prompt of this size in bytes (0: not measured)."""
        if size and self._count(reply.prompt_tokens, size):
            yield self._cut()
        if not self.begins and (begun := looks_like_reasoning(reply.text)):
            self.begins = begun
            yield self._begun()

    def _count(self, tokens: int, size: int) -> bool:
        """Note a prompt's tokens; whether prompts now seem to be truncated: longer ones count the same, or one has too few."""
        if not tokens or len(self.counted) >= _COUNTED or self.cut_at:
            return False
        self.counted.append((tokens, size))
        longest = max(self.counted)[0]
        lengths = [size for count, size in self.counted if count == longest]
        same = len(lengths) > 2 and max(lengths) > 1.2 * min(lengths)
        if longest >= _LONG and (same or max(lengths) > _BYTES * longest):
            self.cut_at = longest
        return self.cut_at is not None

    def room(self, most: int, context: int | None, limit: int, size: int) -> int:
        """Tokens for reasoning in addition to a prompt of this size in bytes and a reply of at most `limit` tokens: `most`, or
        fewer if the context is known to be too short, estimated from the tokens counted so far."""
        tokens, counted = map(sum, zip(*self.counted, strict=True)) if self.counted else (1, 3)
        return most if context is None else max(min(most, context - limit - _OVERHEAD - size * tokens // counted), 0)

    def sentences(self) -> list[str]:
        """Facts about it for users."""
        cut = [self._cut()] if self.cut_at else []
        return [*self.dialect.sentences(), *cut, *([self._begun()] if self.begins else [])]

    def _begun(self) -> str:
        return f"replies begin with {self.begins!r}: if that is reasoning, set think_tags in its spec to the text around it"

    def _cut(self) -> str:
        return (
            f"prompts seem to be truncated silently at {self.cut_at:,} tokens: longer texts have no higher count; raise the "
            "server's context (Ollama: num_ctx)"
        )


def size_of(body: Mapping[str, Any]) -> int:
    """The limit on a reply; 0 if a request has none."""
    return next((int(body[limit]) for limit in LIMITS if limit in body), 0)


def report_of(records: Collection[Mapping[str, Any]]) -> list[str]:
    """The facts about a model's servers for the report, from the store's records."""
    return list(dict.fromkeys(sentence for record in records for sentence in Voice.model_validate(record).sentences()))


def assumed(spec: ModelSpec, context: int | None) -> str:
    """The assumptions about a model whose spec leaves roles or languages open; "" for any other spec."""
    if spec.checkpoint is not None or {"roles", "languages"} <= spec.model_fields_set:
        return ""
    reported = [f"reports a context of {context} tokens"] if context and spec.context_length is None else []
    degrees = spec.sampling.temperature
    temperature = "the server's own temperature" if degrees is None else f"temperature {degrees:g}"
    speaks = " and ".join(map(name_of, spec.languages)) if "languages" in spec.model_fields_set else "any language"
    sampling = f"{temperature} and at most {spec.sampling.max_tokens} tokens per reply"
    return "; ".join([*reported, f"assumed: it speaks {speaks}; sampling with {sampling}"])
