"""Models that are callables of this process: asked, stored and resumed as those behind a server are."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

from pydantic import PrivateAttr, ValidationError

from core.errors import UserError
from core.records import Message
from core.specs import Endpoint, ModelSpec
from serve.answers import Reply, split_reasoning

Model = Callable[[list[Message]], str | Reply | Awaitable[str | Reply]]
"""Messages of a chat in, the reply out: its text, or a `Reply` for one with token probabilities or a finish reason. An async
callable is asked many times at once, any other once at a time, in a thread."""

CALLERS_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("CALLERS_LOOP", default=None)
"""The event loop that async callables belong to, where that is not the one that asks them (`evalsuite.api`)."""


class CallableSpec(ModelSpec):
    """A model that a program hands over. It is known by its name, as one behind an endpoint is: stored answers are those of
    the name, whatever the callable does today."""

    _model: Model = PrivateAttr()
    _thread: ThreadPoolExecutor = PrivateAttr(
        default_factory=lambda: ThreadPoolExecutor(1)
    )  # models are rarely made for several

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

    def is_of(self, model: object) -> bool:
        """Whether it is the spec of this callable."""
        return self._model is model

    async def reply(self, messages: list[Message], timeout_s: float) -> Reply:
        """What the callable says. Its own exceptions pass, but a `TimeoutError` or `OSError` is a call to be made again.

        Raises `UserError` for what is no text.
        """
        said = await self._said(messages, timeout_s)
        if isinstance(said, Reply):
            return said
        if not isinstance(said, str):
            raise UserError(f"model {self.name} returned {type(said).__name__}: a model returns the text of its reply")
        text, reasoning = split_reasoning(self, said)
        verbatim = said if said != text == said.strip() else None
        return Reply(text=text, finish_reason="stop", reasoning_characters=len(reasoning), verbatim=verbatim)

    async def _said(self, messages: list[Message], timeout_s: float) -> object:
        if inspect.iscoroutinefunction(self._model) or inspect.iscoroutinefunction(type(self._model).__call__):
            return await asyncio.wait_for(self._awaited(messages), timeout_s)
        said = await asyncio.get_running_loop().run_in_executor(self._thread, self._model, messages)
        return await said if inspect.isawaitable(said) else said

    async def _awaited(self, messages: list[Message]) -> object:
        loop = CALLERS_LOOP.get()

        async def ask() -> object:
            said = self._model(messages)
            assert inspect.isawaitable(said)
            return await said

        if loop is None:
            return await ask()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), loop))
