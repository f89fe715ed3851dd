"""What a server takes beside the messages, found out with its first answers, and what is asked instead.

A refusal that names one of our fields has that field lowered or left out. Any other one is traced with a small question of our
own that asks for less from call to call (`Dialect.retreats`, `serve.client`). A constraint is tried on a question of its own,
since some servers ignore fields that they do not know. The result is kept in the run's store, and is no part of a call's key:
a run that goes on asks as it did before, and nothing twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from core.endpoints import Constraint, Endpoint, MaxTokensField
from core.specs import ModelSpec
from serve.answers import Reply
from serve.reasoning import looks_like_reasoning

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
_LANGUAGES = {"en": "English", "zh": "Chinese"}
_CONSTRAINTS = ("structured_outputs", "response_format")


@dataclass(frozen=True)
class Retreat:
    """A way to ask for less: in words, the fields of a dialect that change, and the words (a pattern) by which a refusal would
    name it; None: no words do."""

    words: str
    changes: Mapping[str, Any]
    names: str | None

    def names_itself(self, told: str) -> bool:
        """Whether a refusal in these words is about it."""
        return self.names is not None and bool(re.search(self.names, told, re.I))


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
        if endpoint.system_role is None and "system" in fields_of(body):
            yield Retreat("system message in the user's", {"system_role": False}, r"\bsystem\b|\bdeveloper\b")
        if endpoint.top_logprobs is None and "logprobs" in body:
            most = body["top_logprobs"]
            if (fewer := _below(told, most)) or most > _FEW:
                yield Retreat(f"top_logprobs {fewer or _FEW}", {"top_logprobs": fewer or _FEW}, "logprobs" if fewer else None)
            yield Retreat("no logprobs", {"top_logprobs": 0}, "logprobs")
        for name in _CONSTRAINTS:
            if name in body and endpoint.constraint is None:
                yield Retreat(f"no {name}", {"constraint": "none"}, FORMS)
        for name in ("top_p", "seed", "temperature"):
            if name in body and body[name] == 0:  # a temperature; the least that the refusal names, or that most servers take
                least = min(map(float, re.findall(r"\b0\.\d*[1-9]", told)), default=0.01)
                yield Retreat(f"temperature {least:g}", {"least_temperature": least}, r"\btemperature\b")
            if name in body:
                yield Retreat(f"no {name}", {"left_out": name}, rf"\b{name}\b")
        limit = self.max_tokens_field
        if endpoint.max_tokens_field is None and limit == "max_tokens":
            yield Retreat(
                "max_completion_tokens for max_tokens", {"max_tokens_field": "max_completion_tokens"}, "max_completion_tokens"
            )
        said = _below(told, body[limit], _LEAST)
        if size := said or (0 if self.most_tokens else min(_SHORT, body[limit] // 2)):
            yield Retreat(f"{limit} {size}", {"most_tokens": size}, r"max_\w*tokens" if said else None)

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


async def diagnosed(
    first: Dialect, retreats: Callable[[Dialect], Iterator[Retreat]], answers: Callable[[Dialect, str], Awaitable[bool]]
) -> Dialect | None:
    """The dialect in which a server answers that has refused a request and named nothing of it: from `first` on it is asked
    for less from try to try, and when it `answers`, for whatever was not the cause. None where it answers in none."""
    if await answers(first, "as it was"):
        return first
    left = list[Retreat]()
    while retreat := next(retreats(first.after(*left)), None):
        left.append(retreat)
        if await answers(first.after(*left), retreat.words):
            break
    else:
        return None
    if len(left) > 1 and await answers(first.after(left[-1]), f"{left[-1].words} alone"):
        return first.after(left[-1])
    for retreat in left[-2::-1] if len(left) > 2 else ():
        others = [one for one in left if one is not retreat]
        if await answers(first.after(*others), f"all but {retreat.words}"):
            left = others
    return first.after(*left)


KEYED = Dialect(constraint="structured_outputs")  # what a call's key is made of, however it is asked


def fields_of(body: Mapping[str, Any]) -> set[str]:
    """What a server may refuse in a request: its optional fields, and a system message."""
    system = {"system"} if body["messages"] and body["messages"][0]["role"] == "system" else set[str]()
    return (body.keys() - {"model", "messages"}) | system


def _below(told: str, value: int, least: int = 1) -> int | None:
    """The largest number in a refusal that is less than what was asked for."""
    numbers = map(int, re.findall(r"(?<![\d.])\d{1,9}(?!\.?\d)", told))
    return max((number for number in numbers if least <= number < value), default=None)


_KEPT = {"largest", "reasons", "answers", "tried", "cut_at", "begins"}


@dataclass
class Voice:
    """What is known of one model at its server."""

    dialect: Dialect
    keyed: Dialect
    """What calls' keys are made of."""
    fresh: bool = True
    """Whether nothing is known of it yet."""
    settled: set[str] = field(default_factory=set)
    """Fields with which it has answered."""
    largest: int = 0
    """The largest limit on a reply with which it has answered."""
    reasons: bool = False
    """Whether it was seen to reason: from then on it has room for that."""
    answers: bool = False
    """Whether it has answered though its server does not list it."""
    tried: list[str] = field(default_factory=list)
    """Questions of our own that a refusal has cost, in words."""
    cut_at: int | None = None
    """Tokens at which the server seems to cut prompts."""
    begins: str | None = None
    """How a reply began that may hold reasoning in a shape that is not known."""
    context: int | None = None
    """Tokens that the server says it reads."""
    adapting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the cause of a refusal is found: the other calls wait."""
    forming: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a constraint is tried."""
    doubted: bool = False
    """Whether a 500 was taken for a refusal once: the next is the server's own trouble."""
    shown: bool = False
    """Whether what is known was said in this process."""
    fails: set[Constraint] = field(default_factory=set)
    """Constraints that were refused."""
    counted: list[tuple[int, int]] = field(default_factory=list)
    """(Tokens, bytes) of the first prompts."""

    def record(self) -> dict[str, Any]:
        """As the store keeps it."""
        kept = {name: getattr(self, name) for name in sorted(_KEPT)}
        return {"dialect": self.dialect.model_dump(), "settled": sorted(self.settled), **kept}

    @classmethod
    def of(cls, endpoint: Endpoint, record: Mapping[str, Any] | None) -> Voice:
        """From the store's record, and what the spec says now."""
        voice = cls(Dialect.of(endpoint), Dialect.of(endpoint, KEYED))
        if record is not None:
            voice.fresh = False
            voice.dialect = Dialect.of(endpoint, Dialect.model_validate(record["dialect"]))
            voice.settled = set(record["settled"])
            for name in _KEPT & record.keys():
                setattr(voice, name, record[name])
        return voice

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
    return list(dict.fromkeys(sentence for record in records for sentence in Voice.of(Endpoint(), record).sentences()))


def assumed(spec: ModelSpec, context: int | None) -> str:
    """What is taken for granted of a model that its spec says little of; empty for a spec that says it."""
    if spec.checkpoint is not None or {"roles", "languages"} <= spec.model_fields_set:
        return ""
    known = [f"reads {context} tokens by its own word"] if context and spec.context_length is None else []
    degrees = spec.sampling.temperature
    temperature = "the server's own temperature" if degrees is None else f"temperature {degrees:g}"
    drawn = f"{temperature}, at most {spec.sampling.max_tokens} tokens a reply"
    speaks = " and ".join(_LANGUAGES[language] for language in spec.languages)
    return "; ".join([*known, f"assumed: it speaks {speaks}; replies are drawn at {drawn}"])


def schema_of(choices: tuple[str, ...]) -> dict[str, Any]:
    """The JSON schema of a closed list of answers."""
    return closed_object({"answer": {"type": "string", "enum": list(choices)}})


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties, as OpenAI's strict mode wants it."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
