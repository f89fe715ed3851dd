"""Models that are callables of this process: asked, stored and resumed as those behind a server are."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import orjson
from pydantic import PrivateAttr, ValidationError

from core.endpoints import Endpoint
from core.errors import UserError
from core.records import Message
from core.specs import ModelSpec
from serve.answers import Reply
from serve.failures import OutOfQuota, Unanswered, meaning_of
from serve.questions import Question
from serve.reasoning import split_reasoning


class Agent(Protocol):
    """A model that keeps a session for each dialogue: `reply` answers, and `start` and `end`, where there are any, are called
    before a dialogue's first reply and after its end. Given as a class, every dialogue has an object of its own."""

    @property
    def reply(self) -> Callable[..., str | Reply | Awaitable[str | Reply]]: ...


Model = Callable[..., str | Reply | Awaitable[str | Reply]] | Agent | type[Agent]
"""Messages of a chat in, the reply out: its text, or a `Reply` for one with token probabilities or a finish reason. What it
names as a parameter is handed to it, too (`told`). An async callable is asked many times at once, any other once at a time, in
a thread."""

CALLERS_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("CALLERS_LOOP", default=None)
"""The event loop that async callables belong to, where that is not the one that asks them (`evalsuite.api`)."""

PLACE: ContextVar[tuple[str | None, int | None]] = ContextVar("PLACE", default=(None, None))
"""The role card (or profile) of the dialogue that is under way, by id, and its exchange, from 1; None where there is none."""


def told(question: Question) -> dict[str, Any]:
    """What a question is about, for models that ask for it by name."""
    card, exchange = PLACE.get()
    dialogue = question.session or question.sample.get("dialogue")
    return {"dialogue": dialogue, "card": card, "exchange": exchange, "role": question.purpose}


def _of_quota(error: Exception) -> bool:
    """Whether an exception of a vendor's library says what its server said: that nothing is left to pay with."""
    named = {name: getattr(error, name, None) for name in ("code", "type")}
    said = orjson.dumps({"error": {**named, "message": str(error)}}, default=str)
    return meaning_of(getattr(error, "status_code", None) or 0, said) == "quota"


class CallableSpec(ModelSpec):
    """A model that a program hands over. It is known by its name, as one behind an endpoint is: stored answers are those of
    the name, whatever the callable does today."""

    _model: Any = PrivateAttr()
    _thread: ThreadPoolExecutor = PrivateAttr(
        default_factory=lambda: ThreadPoolExecutor(1)
    )  # models are rarely made for several
    # (role, dialogue) → the agent of a session that has begun
    _sessions: dict[tuple[str, object], asyncio.Future[Any]] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, name: str, model: Model) -> CallableSpec:
        """The spec of a callable. It holds no answer to a form and gives no token probabilities of its own accord."""
        # The address is none: what is kept by address (calls in flight, models given up) is kept for each callable.
        endpoint = Endpoint(base_url=f"http://{name}.invalid/v1", constraint="none", top_logprobs=0)
        try:
            spec = cls(name=name, endpoint=endpoint)
        except ValidationError:
            raise UserError(f"a model cannot be named {name!r}: give it another name: {{'NAME': model}}") from None
        spec._model = model
        return spec

    @classmethod
    def behind(cls, spec: ModelSpec, model: Agent) -> CallableSpec:
        """A spec whose model is asked through an object of this process."""
        asked = cls.model_validate(spec.model_dump(exclude_unset=True))
        asked._model = model
        return asked

    def is_of(self, model: object) -> bool:
        """Whether it is the spec of this callable."""
        return self._model is model

    async def reply(self, messages: list[Message], question: Question, timeout_s: float) -> Reply:
        """What the callable says. Its own exceptions pass, but a `TimeoutError` or `OSError` is a call to be made again.

        Raises `UserError` for what is no text, `OutOfQuota` where an exception says that nothing is left to pay with.
        """
        model, known = self._model, told(question)
        if hasattr(model, "reply"):
            model = (await self._session(known, messages, timeout_s)).reply
        try:
            said = await self._called(model, {"messages": messages, **known}, timeout_s)
        except Exception as error:
            if isinstance(error, Unanswered) or not _of_quota(error):
                raise
            raise OutOfQuota(f"model {self.name}: {type(error).__name__}: {error}") from error
        if isinstance(said, Reply):
            return said
        if not isinstance(said, str):
            raise UserError(f"model {self.name} returned {type(said).__name__}: a model returns the text of its reply")
        text, reasoning = split_reasoning(self, said)
        verbatim = said if said != text == said.strip() else None
        alone = reasoning if reasoning and not text else None
        return Reply(text=text, finish_reason="stop", reasoning_characters=len(reasoning), reasoning=alone, verbatim=verbatim)

    async def _session(self, known: Mapping[str, Any], messages: list[Message], timeout_s: float) -> Any:
        """The agent of a dialogue, whose session is begun once."""

        async def begun() -> Any:
            agent = self._model
            if isinstance(agent, type):
                agent = await asyncio.get_running_loop().run_in_executor(self._thread, agent)
            if start := getattr(agent, "start", None):
                await self._called(start, {**known, "messages": messages}, timeout_s)
            return agent

        place = known["role"], known["dialogue"]
        if place not in self._sessions:
            self._sessions[place] = asyncio.ensure_future(begun())
        try:
            return await asyncio.shield(self._sessions[place])
        except BaseException:
            self._sessions.pop(place, None)
            raise

    async def end(self, timeout_s: float, dialogue: str | None = None) -> None:
        """End the sessions of a dialogue, or all."""
        for role, about in [place for place in self._sessions if dialogue in (None, place[1])]:
            agent = await self._sessions.pop((role, about))
            if end := getattr(agent, "end", None):
                await self._called(end, {"dialogue": about, "role": role}, timeout_s)

    async def _called(self, function: Callable[..., object], known: Mapping[str, Any], timeout_s: float) -> object:
        """What a function returns that is handed what it names; the first of what is known, whatever it calls that."""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # of builtins nothing is known
            parameters = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        chosen = {p.name: known[p.name] for p in parameters if p.name in known and p.kind in by_name}
        first = next(iter(known))
        others = [p for p in parameters if p.name not in chosen and p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
        call = partial(function, *([known[first]] if others and first not in chosen else []), **chosen)
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            return await asyncio.wait_for(self._awaited(call), timeout_s)
        said = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        return await said if inspect.isawaitable(said) else said

    async def _awaited(self, call: Callable[[], object]) -> object:
        loop = CALLERS_LOOP.get()

        async def ask() -> object:
            said = call()
            assert inspect.isawaitable(said)
            return await said

        if loop is None:
            return await ask()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), loop))
