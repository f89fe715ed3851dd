"""Models that are no chat endpoint: callables of this process and agents behind HTTP, asked and stored as others are."""

from __future__ import annotations

import asyncio
import inspect
import re
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
import orjson
from pydantic import PrivateAttr, ValidationError

from core.endpoints import AgentCall, Endpoint
from core.errors import UserError, clean
from core.masking import mask_answer
from core.records import Message
from core.specs import ModelSpec
from serve import http
from serve.answers import Reply
from serve.failures import OutOfQuota, Rejected, Unanswered, Unreadable, error_text, meaning_of
from serve.questions import Question
from serve.reading import split_reasoning


class Agent(Protocol):
    """A model that keeps a session for each dialogue: `reply` answers, and `start` and `end`, where there are any, are called
    before a dialogue's first reply and after its end. Given as a class, every dialogue has an object of its own."""

    @property
    def reply(self) -> Callable[..., str | Reply | Awaitable[str | Reply]]: ...


Model = Callable[..., str | Reply | Awaitable[str | Reply]] | Agent | type[Agent]
"""Messages of a chat in, the reply out: its text, or a `Reply` for one with token probabilities or a finish reason. What it
names as a parameter (dialogue, card, exchange, role) is handed to it, too. An async callable is asked many times at once, any
other once at a time, in a thread."""
AnyModel = str | ModelSpec | Model
"""A name in configs/models, a spec file, NAME@URL; a spec; or a callable, which is known by its own or its class's name."""
OneModel = AnyModel | Mapping[str, AnyModel]
"""The same, or `{name: callable}`."""
Models = OneModel | Sequence[AnyModel]
"""One or several."""

CALLERS_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("CALLERS_LOOP", default=None)
"""The event loop that async callables belong to, where that is not the one that asks them (`evalsuite.api`)."""

PLACE: ContextVar[tuple[str | None, int | None]] = ContextVar("PLACE", default=(None, None))
"""The role card (or profile) of the dialogue that is under way, by id, and its exchange, from 1; None where there is none."""


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
        model, (card, exchange) = self._model, PLACE.get()
        dialogue = question.session or question.sample.get("dialogue")
        known = {"dialogue": dialogue, "card": card, "exchange": exchange, "role": question.purpose}
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

            async def asked() -> object:
                answering = call()
                assert inspect.isawaitable(answering)
                return await answering

            if loop := CALLERS_LOOP.get():
                return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked(), loop)), timeout_s)
            return await asyncio.wait_for(asked(), timeout_s)
        said = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        return await said if inspect.isawaitable(said) else said


# ---- agents behind HTTP: asked in the way that their spec says, with a session for each dialogue

_NAMES = re.compile(r"\{(messages|message|session|dialogue|card|exchange|role)\}")


def callable_of(spec: ModelSpec, base_url: str | None = None) -> ModelSpec:
    """A spec as it is asked: an agent's (at `base_url` where that is given) as a callable of this process."""
    if spec.endpoint.kind != "agent" or isinstance(spec, CallableSpec):
        return spec
    if base_url:
        spec = spec.model_copy(update={"endpoint": spec.endpoint.model_copy(update={"base_url": base_url})})
    return CallableSpec.behind(spec, HttpAgent(spec))


class HttpAgent:
    """An agent at an address, as `serve.callables.Agent` has it."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._sessions: dict[tuple[str, str], object] = {}  # (role, dialogue) → the session's id

    async def start(self, dialogue: str, card: str | None, role: str, messages: list[Message]) -> None:
        """Open the dialogue's session. One that was interrupted by the end of a process is told again what was said to it."""
        known = {"dialogue": dialogue, "card": card, "role": role}
        opened = self._spec.endpoint.open
        self._sessions[role, dialogue] = await self._request(opened, known) if opened else dialogue
        said = [(message["role"], message["content"]) for message in messages if message["role"] != "system"]
        before = [(line, answer) for (who, line), (_, answer) in pairwise(said) if who == "user"]
        turn = self._spec.endpoint.turn
        told_all = turn is not None and b"{messages}" in orjson.dumps(turn.request)  # each turn tells the whole dialogue
        for exchange, (line, answer) in enumerate(() if told_all else before, start=1):
            again = await self._turn(known | {"message": line, "exchange": exchange})
            if again.strip() != answer.strip():
                warnings.warn(
                    clean(
                        f"model {self._spec.name}: a session that was interrupted was told its lines again, and the agent "
                        f"answered one otherwise than before ({again[:60]!r}, not {answer[:60]!r})"
                    ),
                    stacklevel=1,
                )

    async def reply(self, messages: list[Message], dialogue: str, card: str | None, exchange: int | None, role: str) -> str:
        """The agent's next line."""
        known = {"dialogue": dialogue, "card": card, "role": role, "exchange": exchange}
        return await self._turn(known | {"message": messages[-1]["content"], "messages": messages})

    async def end(self, dialogue: str, role: str) -> None:
        """Close the dialogue's session."""
        if close := self._spec.endpoint.close:
            try:
                await self._request(close, {"dialogue": dialogue, "role": role})
            except (Rejected, *http.PASSING) as error:  # the dialogue is whole
                warnings.warn(clean(f"model {self._spec.name}: a session was not closed: {error}"), stacklevel=1)
        self._sessions.pop((role, dialogue), None)

    async def _turn(self, known: Mapping[str, Any]) -> str:
        turn = self._spec.endpoint.turn
        assert turn is not None
        said = await self._request(turn, known)
        if said is not None and not isinstance(said, str):
            raise Unreadable(f"{turn.response or 'the response'} is no text but {str(said)[:100]}")
        return mask_answer(said or "", self._spec.api_key())

    async def _request(self, call: AgentCall, known: Mapping[str, Any]) -> Any:
        """What is taken of the response. Raises `Rejected`, or one of `http.PASSING` where another try may mend it."""
        spec, base = self._spec, str(self._spec.endpoint.base_url).rstrip("/")
        known = {"session": self._sessions.get((known["role"], known["dialogue"])), **known}
        path = _NAMES.sub(lambda name: quote(str(known[name[1]]), safe=""), call.path)
        route, data = http.Route.to(spec, base), None
        headers = dict(route.headers)
        if call.request is not None:
            headers["Content-Type"], data = "application/json", orjson.dumps(_filled(call.request, known))
        most = spec.endpoint.max_response_mb * http.MEGABYTE
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(call.method, base + path, data=data, headers=headers, **route.settings) as response,
        ):
            raw, whole = await http.read_body(response, most)
        where = f"{route.where}: {call.method} {call.path or '/'}"
        if response.status >= 300:
            wait = http.retry_after(response.headers.get("Retry-After"))
            meaning = http.meaning_of_error(route, where, response.status, raw, wait)
            raise Rejected(f"{where}: {meaning}: {route.redact(error_text(raw))}", response.status)
        if not whole:
            raise Rejected(f"{where}: more than {most >> 20} MB", response.status)
        if call is spec.endpoint.close:
            return None
        try:
            value = orjson.loads(raw)
            for part in call.response.split("/")[1:]:  # a JSON pointer (RFC 6901)
                value = value[int(part) if isinstance(value, list) else part.replace("~1", "/").replace("~0", "~")]
            return value
        except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
            raise Unreadable(f"nothing at {call.response or 'the root'} of the response: {error_text(raw)}") from None


def _filled(template: Any, known: Mapping[str, Any]) -> Any:
    """A template with what its names stand for; what is put in is not looked through again."""
    if isinstance(template, Mapping):
        return {key: _filled(value, known) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, known) for value in template]
    if not isinstance(template, str):
        return template
    if alone := _NAMES.fullmatch(template):
        return known.get(alone[1])
    return _NAMES.sub(lambda name: str(known.get(name[1], "")), template)


def one_model(role: str, model: OneModel, given: dict[str, ModelSpec]) -> str:
    """How the config names the only model of a role."""
    names = named_models(model, given)
    if len(names) != 1:
        raise UserError(f"{role}: one model plays it, not {len(names)}")
    return names[0]


def named_models(models: Models, given: dict[str, ModelSpec]) -> list[str]:
    """How the config names models; specs and callables are put into `given`."""
    if isinstance(models, Mapping):
        return [_name(model, name, given) for name, model in models.items()]
    listed = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    return [_name(model, None, given) for model in listed]


def _name(model: AnyModel, name: str | None, given: dict[str, ModelSpec]) -> str:
    if isinstance(model, str):
        if name is not None:
            raise UserError(f"model {name}: {model!r} has a name already: only callables are given one")
        return model
    if isinstance(model, ModelSpec):
        spec = model
    elif callable(model) or hasattr(model, "reply"):
        spec = CallableSpec.of(name or str(getattr(model, "__name__", type(model).__name__)), model)
    else:
        raise UserError(f"a model is a name, a spec or a callable, not {type(model).__name__}")
    known = given.setdefault(spec.name, spec)
    if known is not spec and not (isinstance(known, CallableSpec) and known.is_of(model)):
        raise UserError(f"two models are named {spec.name}: give one another name: {{'NAME': model}}")
    return spec.name
