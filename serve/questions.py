"""A question to a model, and its request to a server."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import orjson

from core.files import digest
from core.markers import GENERAL, Markers
from core.records import Message
from core.specs import ModelSpec, Sampling
from serve.answers import Reply
from serve.dialect import Dialect


@dataclass(frozen=True)
class Question:
    """A call to make. Its key does not depend on `session`, `purpose`, `readable` and `hears`."""

    messages: Sequence[Message]
    sample: Mapping[str, str | int]
    """The sample's identity (dialogue, turn, dimension, repeat)."""
    sampling: Sampling
    served_name: str
    purpose: Literal["seeker", "supporter", "judge", "extraction"]
    """The role under which its tokens are counted."""
    choices: tuple[str, ...] | None = None
    """A closed list of answers, enforced if the server can."""
    regex: str | None = None
    """A pattern of the answer, enforced if the server accepts patterns."""
    schema: Mapping[str, Any] | None = None
    """A JSON schema of the answer, enforced if the server accepts schemas but not patterns."""
    held_tokens: int | None = None
    """The most tokens that an answer constrained by `choices` or `regex` can have."""
    logprobs: bool = False
    """Request token probabilities."""
    session: str | None = None
    """Keeps the calls of a dialogue on the same server behind a router."""
    readable: Callable[[str], bool] | None = None
    """Whether a verdict can be read in an answer (None: no verdict is needed)."""

    hears: Callable[[str], None] | None = None
    """Called with the reply's text so far while it is written (after a failed try, from the beginning again), but not with a
    stored reply. Not possible with `logprobs`, which are not read from events."""

    @property
    def formed(self) -> bool:
        """Whether the answer has a required form."""
        return bool(self.choices or self.regex or self.schema)

    def body(self, dialect: Dialect, messages: list[Message] | None = None) -> dict[str, Any]:
        """The request's JSON. `messages` are the result of `sent` for the model's markers."""
        patterned = dialect.constraint == "structured_outputs" and (self.choices or self.regex)
        most = self.held_tokens if patterned and self.held_tokens else self.sampling.max_tokens
        messages = messages or self.sent()
        body: dict[str, Any] = {
            "model": self.served_name,
            "messages": messages if dialect.system_role else _without_system(messages),
            dialect.max_tokens_field: min(most, dialect.most_tokens or most),
        }
        if self.sampling.temperature is not None:
            body["temperature"] = max(self.sampling.temperature, dialect.least_temperature)
        # top_p is left out if it has no effect: in greedy replies, or at 1 if that is the default.
        top_p = self.sampling.top_p
        if self.sampling.temperature != 0 and top_p is not None and (top_p != 1 or dialect.checkpoint_defaults):
            body["top_p"] = top_p
        if self.sampling.seed is not None:
            body["seed"] = self._seed
        for name in dialect.left_out:
            body.pop(name, None)
        if self.logprobs and dialect.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": dialect.top_logprobs}
        if patterned:
            body["structured_outputs"] = {"choice": list(self.choices)} if self.choices else {"regex": self.regex}
        elif dialect.constraint == "json_schema" and (self.choices or self.schema):
            properties = {"answer": {"type": "string", "enum": list(self.choices or ())}}
            schema = closed_object(properties) if self.choices else self.schema
            answer = {"name": "answer", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": answer}
        return body

    @cached_property
    def _seed(self) -> int:
        """The sample's own seed, derived from the run's."""
        return int(digest([self.sampling.seed, dict(self.sample)], 7), 16)

    def could_say(self, reply: Reply, body: Mapping[str, Any]) -> bool:
        """Whether a reply obeys the request's `choices` or `regex`, if it has them."""
        if "structured_outputs" not in body or not reply.text or reply.finish_reason == "context_overflow":
            return True
        if self.choices:
            return reply.text in self.choices
        return any(re.fullmatch(self.regex or "", text or "") for text in (reply.text, reply.verbatim))

    def unwrapped(self, reply: Reply, body: Mapping[str, Any]) -> Reply:
        """A constrained answer, also if a server took it for reasoning, or if it is in the object of our schema."""
        if self.formed and reply.reasoning and reply.finish_reason != "length":
            reply = reply.model_copy(update={"text": reply.reasoning, "reasoning": None, "reasoning_characters": 0})
        if self.choices and "response_format" in body:
            with suppress(orjson.JSONDecodeError, TypeError, KeyError):
                if isinstance(answer := orjson.loads(reply.text)["answer"], str):
                    return reply.model_copy(update={"text": answer})
        return reply

    def sent(self, markers: Markers = GENERAL) -> list[Message]:
        """The messages with their markers broken up, so that no text can open a turn."""
        return [{"role": m["role"], "content": markers.neutral(m["content"], m["role"])[0]} for m in self.messages]


def _without_system(messages: list[Message]) -> list[Message]:
    """The messages with the system message put before the first user message."""
    if not messages or messages[0]["role"] != "system":
        return messages
    first, *others = messages
    if others and others[0]["role"] == "user":
        return [{"role": "user", "content": f"{first['content']}\n\n{others[0]['content']}"}, *others[1:]]
    return [first | {"role": "user"}, *others]


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with exactly these properties, as OpenAI's strict mode requires."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class Models(Protocol):
    """A source of answers: the chat client, or the models of another tool."""

    async def ask(self, spec: ModelSpec, question: Question) -> Reply: ...
