"""Models other than chat endpoints: callables in this process and agents behind HTTP, with the same store as others."""

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
    """A model with a session per dialogue: `reply` answers; `start` and `end`, if defined, are called before a dialogue's first
    reply and after its end. If a class is given, every dialogue gets its own object."""

    @property
    def reply(self) -> Callable[..., str | Reply | Awaitable[str | Reply]]: ...


Model = Callable[..., str | Reply | Awaitable[str | Reply]] | Agent | type[Agent]
"""Takes the messages of a chat and returns the reply's text, or a `Reply` with token probabilities or a finish reason. It also
gets the parameters dialogue, card, exchange and role if its signature names them. An async callable is called many times
concurrently, any other in a thread, one call at a time."""
AnyModel = str | ModelSpec | Model
"""A name in configs/models, a spec file, NAME@URL; a spec; or a callable, whose name is its own or its class's."""
OneModel = AnyModel | Mapping[str, AnyModel]
"""The same, or `{name: callable}`."""
Models = OneModel | Sequence[AnyModel]
"""One or several."""

CALLERS_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("CALLERS_LOOP", default=None)
"""The event loop of async callables, if it is not the one that calls them (`evalsuite.api`)."""

PLACE: ContextVar[tuple[str | None, int | None]] = ContextVar("PLACE", default=(None, None))
"""The id of the running dialogue's role card or profile and its exchange, from 1; None if there is none."""


ARGUMENTS = ("messages", "dialogue", "card", "exchange", "role")


class CallableSpec(ModelSpec):
    """A model that a program passes, identified by its name: stored answers count even if the callable has changed."""

    _model: Any = PrivateAttr()
    _thread: ThreadPoolExecutor = PrivateAttr(default_factory=lambda: ThreadPoolExecutor(1))  # few models are thread-safe
    # (role, dialogue) → the agent of a session that has begun
    _sessions: dict[tuple[str, object], asyncio.Future[Any]] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, name: str, model: Model) -> CallableSpec:
        """The spec of a callable, without constraints and token probabilities."""
        # A URL of its own, since limits and failures are counted per URL.
        endpoint = Endpoint(base_url=f"http://{name}.invalid/v1", constraint="none", top_logprobs=0)
        try:
            spec = cls(name=name, endpoint=endpoint)
        except ValidationError:
            raise UserError(f"a model cannot be named {name!r}: give it another name: {{'NAME': model}}") from None
        spec._model = model
        return spec

    @classmethod
    def behind(cls, spec: ModelSpec, model: Agent) -> CallableSpec:
        """A spec whose model is asked through an object in this process."""
        behind = cls.model_validate(spec.model_dump(exclude_unset=True))
        behind._model = model
        return behind

    async def reply(self, messages: list[Message], question: Question, timeout_s: float) -> Reply:
        """The callable's reply. Its own exceptions pass; after a `TimeoutError` or `OSError` the call is repeated. Raises
        `UserError` for a reply other than text, and `OutOfQuota` for an exception that means an exhausted quota."""
        model, (card, exchange) = self._model, PLACE.get()
        dialogue = question.session or question.sample.get("dialogue")
        arguments = {"dialogue": dialogue, "card": card, "exchange": exchange, "role": question.purpose}
        if hasattr(model, "reply") or isinstance(model, type):
            agent = await self._session(arguments, messages, timeout_s)
            model = getattr(agent, "reply", agent)
        try:
            reply = await self._called(model, {"messages": messages, **arguments}, timeout_s)
        except Exception as error:
            fields = {name: getattr(error, name, None) for name in ("code", "type")}  # of vendors' libraries
            body = orjson.dumps({"error": {**fields, "message": str(error)}}, default=str)
            if isinstance(error, Unanswered) or meaning_of(getattr(error, "status_code", None) or 0, body) != "quota":
                raise
            raise OutOfQuota(f"model {self.name}: {type(error).__name__}: {error}") from error
        if isinstance(reply, Reply):
            return reply
        if not isinstance(reply, str):
            raise UserError(f"model {self.name} returned {type(reply).__name__}: a model returns the text of its reply")
        reply = reply.encode(errors="replace").decode()  # half of a character would be written to no file
        text, reasoning = split_reasoning(self, reply)
        verbatim = reply if reply != text == reply.strip() else None
        alone = reasoning if reasoning and not text else None
        return Reply(text=text, finish_reason="stop", reasoning_characters=len(reasoning), reasoning=alone, verbatim=verbatim)

    async def _session(self, arguments: Mapping[str, Any], messages: list[Message], timeout_s: float) -> Any:
        """The agent of a dialogue, whose session is begun once."""

        async def begun() -> Any:
            agent = self._model
            if isinstance(agent, type):
                self._check(agent)
                agent = await self._in_thread(agent)
            if start := getattr(agent, "start", None):
                await self._called(start, {**arguments, "messages": messages}, timeout_s)
            return agent

        place = arguments["role"], arguments["dialogue"]
        if place not in self._sessions:
            self._sessions[place] = asyncio.ensure_future(begun())
        try:
            return await asyncio.shield(self._sessions[place])
        except BaseException:
            self._sessions.pop(place, None)
            raise

    async def end(self, timeout_s: float, dialogue: str | None = None) -> None:
        """End the sessions of a dialogue, or all."""
        for role, id_ in [place for place in self._sessions if dialogue in (None, place[1])]:
            agent = await self._sessions.pop((role, id_))
            if end := getattr(agent, "end", None):
                await self._called(end, {"dialogue": id_, "role": role}, timeout_s)

    async def _called(self, function: Callable[..., object], arguments: Mapping[str, Any], timeout_s: float) -> object:
        """The result of a function that gets the arguments it names, and the first one whatever it calls that."""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # builtins may have no signature
            parameters = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        chosen = {p.name: arguments[p.name] for p in parameters if p.name in arguments and p.kind in by_name}
        first = next(iter(arguments))
        others = [p for p in parameters if p.name not in chosen and p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
        given = [arguments[first]] if others and first not in chosen else []
        self._check(function, *given, **chosen)
        call = partial(function, *given, **chosen)
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

            async def result_of_call() -> object:
                awaitable = call()
                assert inspect.isawaitable(awaitable)
                return await awaitable

            if loop := CALLERS_LOOP.get():
                future = asyncio.run_coroutine_threadsafe(result_of_call(), loop)
                return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
            return await asyncio.wait_for(result_of_call(), timeout_s)
        result = await self._in_thread(call)
        return await result if inspect.isawaitable(result) else result

    def _check(self, function: Callable[..., object], *given: Any, **named: Any) -> None:
        """Raise `UserError` if a function needs other arguments."""
        try:
            inspect.signature(function).bind(*given, **named)
        except TypeError as error:
            may = "a class gets none: pass an object" if isinstance(function, type) else "there are " + ", ".join(ARGUMENTS)
            raise UserError(f"model {self.name}: {error} ({may})") from None
        except ValueError:  # builtins may have no signature
            pass

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """The result of a call in the model's thread."""

        def called() -> object:
            try:
                return call()
            except StopIteration as error:  # no future can hold it, and whoever waits would wait for ever
                raise RuntimeError(f"model {self.name} raised StopIteration: it has no more replies") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, called)


# ---- agents behind HTTP: asked as their spec says, with a session per dialogue

_NAMES = re.compile(r"\{(messages|message|session|dialogue|card|exchange|role)\}")


def callable_of(spec: ModelSpec, base_url: str | None = None) -> ModelSpec:
    """An agent's spec as a callable of this process (at `base_url` if given); any other spec unchanged."""
    if spec.endpoint.kind != "agent" or isinstance(spec, CallableSpec):
        return spec
    if base_url:
        spec = spec.model_copy(update={"endpoint": spec.endpoint.model_copy(update={"base_url": base_url})})
    return CallableSpec.behind(spec, HttpAgent(spec))


class HttpAgent:
    """An agent behind a URL, as an `Agent`."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._sessions: dict[tuple[str, str], object] = {}  # (role, dialogue) → the session's id

    async def start(self, dialogue: str, card: str | None, role: str, messages: list[Message]) -> None:
        """Open the dialogue's session. If an earlier process was interrupted, the lines so far are sent again."""
        names = {"dialogue": dialogue, "card": card, "role": role}
        opened = self._spec.endpoint.open
        self._sessions[role, dialogue] = await self._request(opened, names) if opened else dialogue
        lines = [(message["role"], message["content"]) for message in messages if message["role"] != "system"]
        earlier = [(line, answer) for (speaker, line), (_, answer) in pairwise(lines) if speaker == "user"]
        turn = self._spec.endpoint.turn
        sends_all = turn is not None and b"{messages}" in orjson.dumps(turn.request)  # each turn has the whole dialogue
        for exchange, (line, answer) in enumerate(() if sends_all else earlier, start=1):
            repeated = await self._turn(names | {"message": line, "exchange": exchange})
            if repeated.strip() != answer.strip():
                warnings.warn(
                    clean(
                        f"model {self._spec.name}: after an interruption, a session's lines were sent again, and the agent "
                        f"answered one differently ({repeated[:60]!r}, not {answer[:60]!r})"
                    ),
                    stacklevel=1,
                )

    async def reply(self, messages: list[Message], dialogue: str, card: str | None, exchange: int | None, role: str) -> str:
        """The agent's next line."""
        names = {"dialogue": dialogue, "card": card, "role": role, "exchange": exchange}
        return await self._turn(names | {"message": messages[-1]["content"], "messages": messages})

    async def end(self, dialogue: str, role: str) -> None:
        """Close the dialogue's session."""
        if close := self._spec.endpoint.close:
            try:
                await self._request(close, {"dialogue": dialogue, "role": role})
            except (Rejected, *http.PASSING) as error:  # the dialogue is complete anyway
                warnings.warn(clean(f"model {self._spec.name}: a session was not closed: {error}"), stacklevel=1)
        self._sessions.pop((role, dialogue), None)

    async def _turn(self, names: Mapping[str, Any]) -> str:
        turn = self._spec.endpoint.turn
        assert turn is not None
        line = await self._request(turn, names)
        if line is not None and not isinstance(line, str):
            raise Unreadable(f"{turn.response or 'the response'} is not a text: {str(line)[:100]}")
        return mask_answer(line or "", self._spec.api_key())

    async def _request(self, call: AgentCall, names: Mapping[str, Any]) -> Any:
        """The part of the response that the call uses. Raises `Rejected`, or one of `http.PASSING` for a passing error."""
        spec, base = self._spec, str(self._spec.endpoint.base_url).rstrip("/")
        names = {"session": self._sessions.get((names["role"], names["dialogue"])), **names}
        path = _NAMES.sub(lambda name: quote(str(names[name[1]]), safe=""), call.path)
        route, data = http.Route.to(spec, base), None
        headers = dict(route.headers)
        if call.request is not None:
            headers["Content-Type"], data = "application/json", orjson.dumps(_filled(call.request, names))
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


def _filled(template: Any, names: Mapping[str, Any]) -> Any:
    """A template with the values of its names, which are not searched for names again."""
    if isinstance(template, Mapping):
        return {key: _filled(value, names) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, names) for value in template]
    if not isinstance(template, str):
        return template
    if alone := _NAMES.fullmatch(template):
        return names.get(alone[1])
    return _NAMES.sub(lambda name: str(names.get(name[1], "")), template)


def one_model(role: str, model: OneModel, specs: dict[str, ModelSpec]) -> str:
    """The name in the config of a role's only model; its spec is added to `specs`."""
    names = named_models(model, specs)
    if len(names) != 1:
        raise UserError(f"{role}: expected one model, not {len(names)}")
    return names[0]


def named_models(models: Models, specs: dict[str, ModelSpec]) -> list[str]:
    """The names of models in the config; specs and callables are added to `specs`."""
    if isinstance(models, Mapping):
        return [_name(model, name, specs) for name, model in models.items()]
    listed = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    return [_name(model, None, specs) for model in listed]


def _name(model: AnyModel, name: str | None, specs: dict[str, ModelSpec]) -> str:
    if isinstance(model, str):
        if name is not None:
            raise UserError(f"model {name}: {model!r} has a name already: only callables can be given one")
        return model
    if isinstance(model, ModelSpec):
        spec = model
    elif isinstance(model, type) and not any({"reply", "__call__"} & {*vars(kind)} for kind in model.__mro__):
        raise UserError(f"a class that is a model has a method reply (or __call__), and {model.__name__} has neither")
    elif callable(model) or hasattr(model, "reply"):
        spec = CallableSpec.of(name or str(getattr(model, "__name__", type(model).__name__)), model)
    else:
        raise UserError(f"a model is a name, a spec or a callable, not {type(model).__name__}")
    earlier = specs.setdefault(spec.name, spec)
    if earlier is not spec and not (isinstance(earlier, CallableSpec) and earlier._model is model):
        raise UserError(f"two models are named {spec.name}: give one another name: {{'NAME': model}}")
    return spec.name
