"""The chat client: asks OpenAI-compatible servers, with many concurrent calls, and never repeats a finished one: it is in the
run's store under a key made from the request, the model's fingerprint (not its port) and the sample. `serve.asking` finds out
which fields a server accepts; `serve.transport` sends requests and retries."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Self

from core.files import digest
from core.markers import Markers, markers_in
from core.records import Message
from core.specs import ModelSpec
from serve.answers import Reply, Retry
from serve.asking import DialectClient
from serve.checkpoints.places import tokenizer_folder
from serve.dialect import KEYED, Dialect
from serve.failures import FailedCall, NotAsked, NotReached, NotStored, NotUp, Rejected, Unanswered
from serve.questions import Question
from serve.store import KEPT, CallOrigin


@dataclass
class ChatClient(DialectClient):
    """Calls to any number of models, except those answered in the store. Use as an async context manager.

    An answer that names another model than the first one did is refused, and ends the run (`serve.store.model_problem`).
    """

    keep_messages: int = KEPT
    """Largest size in bytes of a call's messages that are stored with the reply."""
    retry: Retry = field(default_factory=Retry)
    """Kinds of stored answers to replace, once; the old ones stay in the store."""
    down: Mapping[str, str | None] = field(default_factory=dict)
    """Models without a server now, by name: why their calls are lost; None: they are up in a later phase (`NotUp`)."""
    failures: list[FailedCall] = field(default_factory=list)
    """All calls without an answer."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._markers: dict[str | None, Markers] = {}  # by checkpoint
        self._keyed: dict[str, tuple[str, Dialect]] = {}  # spec name → fingerprint and dialect for keys
        return self

    def from_store(self) -> ChatClient:
        """The same client without requests: it returns stored answers unchanged, and raises `NotStored` for others."""
        other = copy(self)
        other.offline, other.retry = True, Retry()
        return other

    def key(self, spec: ModelSpec, question: Question) -> str:
        """The call's key (64 hex digits), which depends neither on the server's dialect nor on the room for reasoning."""
        return self._key(spec, question, self._sent(spec, question))

    def _key(self, spec: ModelSpec, question: Question, messages: list[Message]) -> str:
        if spec.name not in self._keyed:
            self._keyed[spec.name] = spec.fingerprint(), Dialect.of(spec.endpoint, KEYED)
        fingerprint, dialect = self._keyed[spec.name]
        body = question.body(dialect, messages)
        if question.sampling.top_p is not None:  # even if the request omits it
            body["top_p"] = question.sampling.top_p
        return digest([fingerprint, body, dict(question.sample)])

    def _sent(self, spec: ModelSpec, question: Question) -> list[Message]:
        """The messages for a model, with control tokens broken up: its tokenizer's own, if that is on this machine."""
        if spec.checkpoint not in self._markers:
            self._markers[spec.checkpoint] = markers_in(tokenizer_folder(spec.checkpoint))
        return question.sent(self._markers[spec.checkpoint])

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        """The model's reply: from the store if this call was finished before, else from the server. Raises `Unanswered` if
        there is no answer, `NotStored` if it is missing and `offline`, `NotUp` for a later phase."""
        messages = self._sent(spec, question)
        key, tally = self._key(spec, question, messages), self.tallies[spec.name, question.purpose]
        reply, again = self.store.get(key), None
        if reply is not None:
            again = self.retry.reason(key, reply, question.readable)
        if reply is None or again:
            if self.offline:
                raise NotStored(key)
            # The seed depends on this number: the same seed would draw the same answer.
            replaced = self.store.times_replaced(key) if again else None
            try:
                if spec.name in self.down:
                    if self.threshold.of_budget:
                        raise NotReached(spec.name)
                    raise NotUp(spec.name) if (reason := self.down[spec.name]) is None else NotAsked(reason)
                voice = self._voice(spec, question.served_name)
                completion, body = await self._answered(spec, question, voice, messages, replaced)
            except Unanswered as error:
                if isinstance(error, Rejected):
                    self.threshold.rejected((self.base_url(spec, question.served_name), question.served_name), error)
                item = str(question.sample.get("dialogue") or " ".join(map(str, question.sample.values())))
                self.failures.append(FailedCall(question.purpose, spec.name, item, error.outcome, error.status, str(error)))
                if not isinstance(error, NotAsked):
                    await self.store.fail(key, item, question.purpose, spec.name, error.outcome, str(error))
                raise
            reply = completion.reply
            origin = CallOrigin.of(spec, question.purpose, body, reply.model, completion.attempts, self.keep_messages)
            await self.store.put(key, reply.model_dump(), completion.seconds, origin, again)
            self.retry.done.add(key)
            tally.asked += 1
            tally.generated += reply.completion_tokens
            tally.seconds += completion.seconds
        tally.add(reply)
        return reply
