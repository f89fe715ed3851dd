"""Agents that are no chat model, behind HTTP: asked in the way that their spec says, with a session for each dialogue."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from core.endpoints import AgentCall
from core.errors import clean
from core.masking import mask_answer
from core.records import Message
from core.specs import ModelSpec
from serve import http
from serve.callables import CallableSpec
from serve.failures import Rejected, Unreadable, error_text

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
        for exchange, (line, answer) in enumerate(() if self._told_everything else before, start=1):
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

    @property
    def _told_everything(self) -> bool:
        turn = self._spec.endpoint.turn
        return turn is not None and b"{messages}" in orjson.dumps(turn.request)

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
        headers, data = http.key_header(spec), None
        if call.request is not None:
            headers, data = headers | {"Content-Type": "application/json"}, orjson.dumps(_filled(call.request, known))
        most = spec.endpoint.max_response_mb * http.MEGABYTE
        async with (
            aiohttp.ClientSession(trust_env=True, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(call.method, base + path, data=data, headers=headers, allow_redirects=False) as response,
        ):
            raw, whole = await http.read_body(response, most)
        where = f"{http.place(spec, base)}: {call.method} {call.path or '/'}"
        if response.status >= 300:
            wait = http.retry_after(response.headers.get("Retry-After"))
            meaning = http.meaning_of_error(spec, where, response.status, raw, wait)
            raise Rejected(f"{where}: {meaning}: {http.redact(spec, error_text(raw))}", response.status)
        if not whole:
            raise Rejected(f"{where}: more than {most >> 20} MB", response.status)
        if call is spec.endpoint.close:
            return None
        try:
            return _at(orjson.loads(raw), call.response)
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


def _at(value: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) points at."""
    for part in pointer.split("/")[1:]:
        value = value[int(part) if isinstance(value, list) else part.replace("~1", "/").replace("~0", "~")]
    return value
