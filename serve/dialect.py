"""What a server takes beside the messages, found out with its first answers, and what is asked instead.

A refusal that names one of our fields has that field lowered or left out. Any other one is traced with a small question of our
own that asks for less from call to call (`Dialect.retreats`, `serve.client`). A constraint is tried on a question of its own,
since some servers ignore fields that they do not know. The result is kept in the run's store, and is no part of a call's key:
a run that goes on asks as it did before, and nothing twice.
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
PROBED = ("amber 7301", "cobalt 5528")  # nobody answers this who is not held to it
PROBES = 10  # questions of our own that a refusal may cost, for a model
LIMITS = get_args(MaxTokensField)
_FEW = 5  # alternatives a token, where more are refused and the server does not say how many it gives
_SHORT = 1024  # tokens of a reply, likewise
_LEAST = 128  # tokens: a smaller number in a refusal is no limit on replies
_OVERHEAD = 64  # tokens that a chat template adds
_COUNTED = 64  # answers over which prompts are compared with what the server counted
_LONG = 256  # tokens from which a prompt may have been cut
_BYTES = 10  # of text a token: no tokeniser makes longer ones of conversation
FORMS = "response_format|schema|structured_outputs"  # how a refusal names a constraint


class Retreat(NamedTuple):
    """A way to ask for less: in words, the fields of a dialect that change, and whether the refusal names it."""

    words: str
    changes: Mapping[str, Any]
    named: bool


class Dialect(BaseModel):
    """How one server is asked for one model."""

    model_config = ConfigDict(frozen=True)
    constraint: Constraint | None = None
    """None: not known yet."""
    top_logprobs: int = 20
    max_tokens_field: MaxTokensField = "max_tokens"
    most_tokens: int | None = None
    """The most that a reply may be given; None: no such limit is known."""
    least_temperature: float = 0.0
    """The lowest that is asked for: more than 0 where the server refuses that."""
    left_out: tuple[str, ...] = ()
    """Fields of sampling that the server refuses: its own defaults hold."""
    system_role: bool = True
    """Whether it takes a system message; otherwise that opens the first message of the user."""
    checkpoint_defaults: bool = False
    """What is left out is as the checkpoint's generation_config has it, as vLLM does: `top_p: 1` is said."""

    @classmethod
    def of(cls, endpoint: Endpoint, known: Dialect | None = None) -> Dialect:
        """What a spec says, and where it says nothing, what is known."""
        stated = endpoint.model_dump(
            include={"constraint", "top_logprobs", "max_tokens_field", "system_role"}, exclude_none=True
        )
        return (known or cls()).model_copy(update=stated)

    def retreats(self, endpoint: Endpoint, body: Mapping[str, Any], told: str) -> Iterator[Retreat]:
        """Ways to ask for less than a refused request did, those that cost a figure least first. What the spec insists on
        stays."""

        def names(pattern: str) -> bool:
            return re.search(pattern, told, re.I) is not None

        if endpoint.system_role is None and "system" in fields_of(body):
            yield Retreat("system message in the user's", {"system_role": False}, names(r"\bsystem\b|\bdeveloper\b"))
        if endpoint.top_logprobs is None and "logprobs" in body:
            most = body["top_logprobs"]
            if (fewer := _below(told, most)) or most > _FEW:
                few = fewer or _FEW
                yield Retreat(f"top_logprobs {few}", {"top_logprobs": few}, fewer is not None and names("logprobs"))
            yield Retreat("no logprobs", {"top_logprobs": 0}, names("logprobs"))
        for name in ("structured_outputs", "response_format"):
            if name in body and endpoint.constraint is None:
                yield Retreat(f"no {name}", {"constraint": "none"}, names(FORMS))
        for name in ("top_p", "seed", "temperature"):
            if name in body and body[name] == 0:  # a temperature; the least that the refusal names, or that most servers take
                least = min(map(float, re.findall(r"\b0\.\d*[1-9]", told)), default=0.01)
                yield Retreat(f"temperature {least:g}", {"least_temperature": least}, names(r"\btemperature\b"))
            if name in body:
                yield Retreat(f"no {name}", {"left_out": name}, names(rf"\b{name}\b"))
        limit, newer = self.max_tokens_field, "max_completion_tokens"
        if endpoint.max_tokens_field is None and limit == "max_tokens":
            yield Retreat(f"{newer} for max_tokens", {"max_tokens_field": newer}, names(newer))
        most = _below(told, body[limit], _LEAST)
        if size := most or (0 if self.most_tokens else min(_SHORT, body[limit] // 2)):
            yield Retreat(f"{limit} {size}", {"most_tokens": size}, most is not None and names(r"max_\w*tokens"))

    def after(self, *retreats: Retreat) -> Dialect:
        """The dialect that asks for less in these ways."""
        changes: dict[str, Any] = {}
        for retreat in retreats:
            changes |= retreat.changes
        left = [retreat.changes["left_out"] for retreat in retreats if "left_out" in retreat.changes]
        return self.model_copy(update=changes | {"left_out": (*self.left_out, *left)})

    def sentences(self) -> list[str]:
        """What a user should know of it."""
        held = {
            "structured_outputs": "answers are held to their form by structured_outputs",
            "json_schema": "answers are held to their form by response_format with a JSON schema",
            "none": "answers cannot be held to their form: they are asked for in words, and read",
        }
        said = [held[self.constraint]] if self.constraint else []
        said += ["no token probabilities"] if not self.top_logprobs else []
        said += [] if self.system_role else ["no system role: what a system message says opens the user's first"]
        said += [f"replies have at most {self.most_tokens:,} tokens"] if self.most_tokens else []
        said += [f"{name} is the server's own, which refuses ours" for name in self.left_out]
        drawn = "temperature" in self.left_out
        if self.least_temperature and not drawn:
            said, drawn = [*said, f"temperature is {self.least_temperature:g}, as the server refuses 0"], True
        return said + (["replies and verdicts may differ from run to run"] if drawn else [])


KEYED = Dialect(constraint="structured_outputs")  # what a call's key is made of, however it is asked


def fields_of(body: Mapping[str, Any]) -> set[str]:
    """What a server may refuse in a request: its optional fields, and a system message."""
    system = {"system"} if body["messages"] and body["messages"][0]["role"] == "system" else set[str]()
    return (body.keys() - {"model", "messages"}) | system


def _below(told: str, value: int, least: int = 1) -> int | None:
    """The largest number in a refusal that is less than what was asked for."""
    numbers = map(int, re.findall(r"(?<![\d.])\d{1,9}(?!\.?\d)", told))
    return max((number for number in numbers if least <= number < value), default=None)


_HERE = Field(exclude=True)  # of this process alone


class Voice(BaseModel):
    """What is known of one model at its server: the store keeps it from run to run, but for what is of this process alone."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    dialect: Dialect
    settled: set[str] = set()
    """Fields with which it has answered."""
    largest: int = 0
    """The largest limit on a reply with which it has answered."""
    reasons: bool = False
    """Whether it was seen to reason: from then on it has room for that."""
    answers: bool = False
    """Whether it has answered though its server does not list it."""
    tried: list[str] = []
    """Questions of our own that a refusal has cost, in words."""
    cut_at: int | None = None
    """Tokens at which the server seems to cut prompts."""
    begins: str | None = None
    """How a reply began that may hold reasoning in a shape that is not known."""

    context: Annotated[int | None, _HERE] = None
    """Tokens that the server says it reads."""
    adapting: Annotated[asyncio.Lock, _HERE] = Field(default_factory=asyncio.Lock)
    """Held while the cause of a refusal is found: the other calls wait."""
    forming: Annotated[asyncio.Lock, _HERE] = Field(default_factory=asyncio.Lock)
    """Held while a constraint is tried."""
    doubted: Annotated[bool, _HERE] = False
    """Whether a 500 was taken for a refusal once: the next is the server's own trouble."""
    shown: Annotated[bool, _HERE] = False
    """Whether what is known was said in this process."""
    fails: Annotated[set[Constraint], _HERE] = set()
    """Constraints that were refused."""
    counted: Annotated[list[tuple[int, int]], _HERE] = []
    """(Tokens, bytes) of the first prompts."""

    def takes(self, body: Mapping[str, Any]) -> bool:
        """Whether it has answered a request of such fields."""
        return fields_of(body) <= self.settled and size_of(body) <= self.largest

    def settle(self, body: Mapping[str, Any]) -> None:
        """It has answered such a request."""
        self.settled |= fields_of(body)
        self.largest = max(self.largest, size_of(body))

    @property
    def measures(self) -> bool:
        """Whether the size of prompts is of use."""
        return self.reasons or len(self.counted) < _COUNTED

    def notices(self, reply: Reply, size: int) -> Iterator[str]:
        """What is seen now, for the first time, by a reply to a prompt of so many bytes (0: not measured)."""
        if size and self._count(reply.prompt_tokens, size):
            yield self._cut()
        if not self.begins and (begun := looks_like_reasoning(reply.text)):
            self.begins = begun
            yield self._begun()

    def _count(self, tokens: int, size: int) -> bool:
        """Book what a prompt was counted as; returns whether prompts are now seen to be cut in silence: several of different
        length have the same count, or one has fewer tokens than its text can be."""
        if not tokens or len(self.counted) >= _COUNTED or self.cut_at:
            return False
        self.counted.append((tokens, size))
        longest = max(self.counted)[0]
        lengths = [size for count, size in self.counted if count == longest]
        same = len(lengths) > 2 and max(lengths) > 1.2 * min(lengths)
        if longest >= _LONG and (same or max(lengths) > _BYTES * longest):
            self.cut_at = longest
        return self.cut_at is not None

    def room(self, wanted: int, context: int | None, limit: int, size: int) -> int:
        """Tokens for reasoning beside a prompt of so many bytes and a reply of at most `limit` tokens: as many as are wanted
        and fit the context, where that is known, by the tokens counted so far."""
        tokens, counted = map(sum, zip(*self.counted, strict=True)) if self.counted else (1, 3)
        return wanted if context is None else max(min(wanted, context - limit - _OVERHEAD - size * tokens // counted), 0)

    def sentences(self) -> list[str]:
        """What a user should know of it."""
        seen = [self._cut()] if self.cut_at else []
        return [*self.dialect.sentences(), *seen, *([self._begun()] if self.begins else [])]

    def _begun(self) -> str:
        return f"replies begin with {self.begins!r}: if that is reasoning, think_tags of its spec name what stands around it"

    def _cut(self) -> str:
        return (
            f"prompts seem to be cut at {self.cut_at:,} tokens without a word: longer texts are counted as no more; raise the "
            "server's context (Ollama: num_ctx)"
        )


def size_of(body: Mapping[str, Any]) -> int:
    """The limit on a reply, 0 where a request has none."""
    return next((int(body[limit]) for limit in LIMITS if limit in body), 0)


def report_of(records: Collection[Mapping[str, Any]]) -> list[str]:
    """What a report says of a model's servers, from the store's records."""
    return list(dict.fromkeys(sentence for record in records for sentence in Voice.model_validate(record).sentences()))


def assumed(spec: ModelSpec, context: int | None) -> str:
    """What is taken for granted of a model that its spec says little of; empty for a spec that says it."""
    if spec.checkpoint is not None or {"roles", "languages"} <= spec.model_fields_set:
        return ""
    known = [f"reads {context} tokens by its own word"] if context and spec.context_length is None else []
    degrees = spec.sampling.temperature
    temperature = "the server's own temperature" if degrees is None else f"temperature {degrees:g}"
    drawn = f"{temperature}, at most {spec.sampling.max_tokens} tokens a reply"
    speaks = " and ".join(map(name_of, spec.languages)) if "languages" in spec.model_fields_set else "any language"
    return "; ".join([*known, f"assumed: it speaks {speaks}; replies are drawn at {drawn}"])
