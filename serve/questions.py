"""One question to a model, and the request that it becomes at a server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    """One call to make. `session`, `purpose`, `readable` and `hears` are no part of its key."""

    messages: Sequence[Message]
    sample: Mapping[str, str | int]
    """Which sample it is (dialogue, turn, dimension, repeat)."""
    sampling: Sampling
    served_name: str
    purpose: Literal["seeker", "supporter", "judge", "extraction"]
    """What its tokens are booked under."""
    choices: tuple[str, ...] | None = None
    """A closed list of answers, held to where the server can."""
    regex: str | None = None
    """A pattern of the answer, held to where the server takes patterns."""
    schema: Mapping[str, Any] | None = None
    """A JSON schema of the answer, held to where the server takes those and no patterns."""
    held_tokens: int | None = None
    """Tokens that an answer held to `choices` or `regex` has at most: nothing else can follow."""
    logprobs: bool = False
    """Ask for token probabilities."""
    session: str | None = None
    """Keeps calls of one dialogue on one server behind a router."""
    readable: Callable[[str], bool] | None = None
    """Whether a verdict can be read in an answer (None: none is asked for)."""

    hears: Callable[[str], None] | None = None
    """Is told the reply's text so far while it is written; after a try that failed, from its beginning again. A stored reply is
    not told. (Not with `logprobs`: events have none that are read.)"""

    @property
    def formed(self) -> bool:
        """Whether the answer has a form to be held to."""
        return bool(self.choices or self.regex or self.schema)

    def body(self, dialect: Dialect, messages: list[Message] | None = None) -> dict[str, Any]:
        """The request's JSON. `messages`: what `sent` gives for the model's markers."""
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
        # Nothing is said of top_p where it changes nothing: a greedy reply, or all tokens where that is the default.
        top_p = self.sampling.top_p
        if self.sampling.temperature != 0 and top_p is not None and (top_p != 1 or dialect.checkpoint_defaults):
            body["top_p"] = top_p
        if self.sampling.seed is not None:  # one seed a run, another stream a sample
            body["seed"] = int(digest([self.sampling.seed, dict(self.sample)], 7), 16)
        for name in dialect.left_out:
            body.pop(name, None)
        if self.logprobs and dialect.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": dialect.top_logprobs}
        if patterned:
            body["structured_outputs"] = {"choice": list(self.choices)} if self.choices else {"regex": self.regex}
        elif dialect.constraint == "json_schema" and (self.choices or self.schema):
            listed = {"answer": {"type": "string", "enum": list(self.choices or ())}}
            schema = closed_object(listed) if self.choices else self.schema
            answer = {"name": "answer", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": answer}
        return body

    def could_say(self, reply: Reply, body: Mapping[str, Any]) -> bool:
        """Whether a reply can come of a request that holds it to `choices` or `regex`, where it does."""
        if "structured_outputs" not in body or not reply.text or reply.finish_reason == "context_overflow":
            return True
        if self.choices:
            return reply.text in self.choices
        return any(re.fullmatch(self.regex or "", text or "") for text in (reply.text, reply.verbatim))

    def unwrapped(self, reply: Reply, body: Mapping[str, Any]) -> Reply:
        """An answer with a form without what stands around it: the reasoning, for which servers take it that look for no tag,
        and the object that our schema of a closed list put around it."""
        if self.formed and reply.reasoning and reply.finish_reason != "length":
            reply = reply.model_copy(update={"text": reply.reasoning, "reasoning": None, "reasoning_characters": 0})
        if self.choices and "response_format" in body:
            with suppress(orjson.JSONDecodeError, TypeError, KeyError):
                if isinstance(answer := orjson.loads(reply.text)["answer"], str):
                    return reply.model_copy(update={"text": answer})
        return reply

    def sent(self, markers: Markers = GENERAL) -> list[Message]:
        """The messages as they are sent: no text opens a turn of its own."""
        return [{"role": m["role"], "content": markers.neutral(m["content"], m["role"])[0]} for m in self.messages]


def _without_system(messages: list[Message]) -> list[Message]:
    """Messages whose first, a system message, opens the user's."""
    if not messages or messages[0]["role"] != "system":
        return messages
    first, *others = messages
    if others and others[0]["role"] == "user":
        return [{"role": "user", "content": f"{first['content']}\n\n{others[0]['content']}"}, *others[1:]]
    return [first | {"role": "user"}, *others]


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with exactly these properties, as OpenAI's strict mode wants it."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class Models(Protocol):
    """Whoever answers questions: the chat client, or the models of another tool."""

    async def ask(self, spec: ModelSpec, question: Question) -> Reply: ...
