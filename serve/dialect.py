"""What a server takes beside the messages, found out with its first answers: how an answer is held to its form, token
probabilities, and which fields of sampling.

A server that is known to be vLLM takes everything. What another one refuses by name before it has answered once is left out,
and the call is made again. A constraint is tried on a question of its own, since some servers ignore fields that they do not
know. The result is kept in the run's store: a run that goes on asks as it did before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from core.specs import Constraint, Endpoint, MaxTokensField

Aspect = Literal["sampling", "constraint", "logprobs"]
TRIED: tuple[Constraint, ...] = ("structured_outputs", "json_schema")
PROBE = "Reply with the word hello."
PROBED = ("amber 7301", "cobalt 5528")  # nobody answers this who is not held to it
LIMITS = get_args(MaxTokensField)
SAMPLING = ("temperature", "top_p", "seed")
_REFUSED = re.compile(
    r"support|unrecogni[sz]ed|unknown|unexpected|extra (?:fields|inputs)|not permitted|not allowed|deprecated|only the default"
    r"|invalid (?:parameter|argument)",
    re.I,
)


_MOST = re.compile(r"(?:at most|<=|less than or equal to|max(?:imum)?(?: allowed)?(?: is| of|:)?|\[0, ?)\s*(\d+)", re.I)
_SCHEMA = re.compile(r"response_format|schema", re.I)


class Dialect(BaseModel):
    """How one server is asked for one model."""

    model_config = ConfigDict(frozen=True)
    constraint: Constraint | None = None
    """None: not known yet."""
    top_logprobs: int = 20
    max_tokens_field: MaxTokensField = "max_tokens"
    left_out: tuple[str, ...] = ()
    """Fields of sampling that the server refuses: its own defaults hold."""

    @classmethod
    def of(cls, endpoint: Endpoint, known: Dialect | None = None) -> Dialect:
        """What a spec says, and where it says nothing, what is known."""
        said = endpoint.model_dump(include={"constraint", "top_logprobs", "max_tokens_field"}, exclude_none=True)
        return (known or cls()).model_copy(update=said)

    def adapted(self, endpoint: Endpoint, body: Mapping[str, Any], told: str) -> Dialect | None:
        """The dialect after a server refused a request in these words; None where they name no field that can be left out, or
        one that the spec insists on."""
        if "response_format" in body and endpoint.constraint is None and _SCHEMA.search(told):  # it took the trial's alone
            return self.model_copy(update={"constraint": "none"})
        fewer = _MOST.search(told) if "logprobs" in body and "logprobs" in told and endpoint.top_logprobs is None else None
        if fewer and 0 < int(fewer[1]) < self.top_logprobs:
            return self.model_copy(update={"top_logprobs": int(fewer[1])})
        if not _REFUSED.search(told):
            return None
        if "max_tokens" in body and "max_completion_tokens" in told and endpoint.max_tokens_field is None:
            return self.model_copy(update={"max_tokens_field": "max_completion_tokens"})
        if "logprobs" in body and "logprobs" in told and endpoint.top_logprobs is None:
            return self.model_copy(update={"top_logprobs": 0})
        for name in SAMPLING:
            if name in body and re.search(rf"\b{name}\b", told):
                return self.model_copy(update={"left_out": (*self.left_out, name)})
        return None

    def joined(self, other: Dialect) -> Dialect:
        """What two calls have found out together."""
        fields = (self.max_tokens_field, other.max_tokens_field)
        return Dialect(
            constraint="none" if "none" in (self.constraint, other.constraint) else other.constraint or self.constraint,
            top_logprobs=min(self.top_logprobs, other.top_logprobs),
            max_tokens_field="max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens",
            left_out=tuple(dict.fromkeys((*self.left_out, *other.left_out))),
        )

    def sentences(self) -> list[str]:
        """What a user should know of it."""
        held = {
            "structured_outputs": "answers are held to their form by structured_outputs",
            "json_schema": "answers are held to their form by response_format with a JSON schema",
            "none": "answers cannot be held to their form: they are asked for in words, and read",
        }
        said = [held[self.constraint]] if self.constraint else []
        said += ["no token probabilities"] if not self.top_logprobs else []
        return said + [f"{name} is the server's own" for name in self.left_out]


@dataclass
class Voice:
    """What is known of one model at its server."""

    dialect: Dialect
    settled: set[Aspect] = field(default_factory=set)
    reasons: bool = False
    """Whether it was seen to reason: from then on it has room for that."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a constraint is tried: the other calls wait."""

    def record(self) -> dict[str, Any]:
        """As the store keeps it."""
        return {"dialect": self.dialect.model_dump(), "settled": sorted(self.settled), "reasons": self.reasons}

    @classmethod
    def of(cls, endpoint: Endpoint, record: Mapping[str, Any] | None) -> Voice:
        """From the store's record, and what the spec says now."""
        if record is None:
            return cls(Dialect.of(endpoint))
        dialect = Dialect.of(endpoint, Dialect.model_validate(record["dialect"]))
        return cls(dialect, set(record["settled"]), bool(record["reasons"]))


def schema_of(choices: tuple[str, ...]) -> dict[str, Any]:
    """The JSON schema of a closed list of answers."""
    return closed_object({"answer": {"type": "string", "enum": list(choices)}})


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties, as OpenAI's strict mode wants it."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
