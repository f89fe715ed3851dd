"""The checks on every request of the study's server (size, rate, origin, who asks), and the headers of every answer."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

import h11
from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from evalsuite.people.pages import refusal
from evalsuite.people.store import RaterRow, RefusedAnswer, SessionRow, StudyStore

WAIT_S = 5  # until a page requested too often reloads itself
WHOLE_WITHIN_S = 30.0
LONGEST = 64 * 1024  # bytes of a request; a comment of 4,000 Chinese characters has 12,000
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OF_ADDRESSES = (4000, 400)  # requests per address, at once and per second, whatever their cookies, which can be made up
_MANY = 10_000  # clients remembered
_READ_AWAY = 8 * 1024 * 1024  # bytes of a refused request that are still read


@dataclass
class RequestRate:
    """A token bucket per client: `burst` requests at once, and `per_s` per second after that."""

    burst: float
    per_s: float
    clock: Callable[[], float] = time.monotonic
    left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def allows(self, client: str) -> bool:
        """Whether one more request is within the rate; it counts if so."""
        now = self.clock()
        tokens, then = self.left.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - then) * self.per_s)
        allowed = tokens >= 1
        self.left[client] = (tokens - 1 if allowed else tokens, now)
        while len(self.left) > _MANY:
            self.left.popitem(last=False)
        return allowed


class WholeRequests(H11Protocol):
    """Closes a connection whose request is not complete within `WHOLE_WITHIN_S`, since it would hold its socket forever."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        if data:
            super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            if self.deadline is not None:
                self.deadline.cancel()
            self.deadline = None
        elif self.deadline is None:
            self.deadline = self.loop.call_later(WHOLE_WITHIN_S, self.transport.close)


class Guard:
    """Refuses requests that are too large, too frequent or from another site, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], cookie: str) -> None:
        self.app, self.hosts, self.cookie = app, hosts, cookie
        self.of_session = RequestRate(60, 20)
        self.of_links = RequestRate(10, 0.5)  # per link, not address: a class behind one address opens its links at once
        self.of_strangers = RequestRate(60, 10)  # other requests without a cookie, per address
        self.of_addresses = RequestRate(*OF_ADDRESSES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        if refused := self._refused(scope, headers):
            language = "zh" if headers.get("accept-language", "").startswith("zh") else "en"
            answer = refusal(scope["path"], language, *refused, wait=WAIT_S if refused[0] == 429 else None)
            answer.headers["connection"] = "close"
            await _read_away(receive, headers.get("content-length", ""))
            await answer(scope, receive, with_headers)
        else:
            await self.app(scope, receive, with_headers)

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Status and word of a refused request; None for an accepted one."""
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if self.hosts and host not in self.hosts:
            return 421, "no_session"
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc != headers.get("host"):
                return 403, "bad_form"
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return 403, "bad_form"
        # A body in chunks has no length to check, and no page sends one.
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdigit() or int(length) > LONGEST:
            return 413, "too_large"
        client = (scope.get("client") or ("?", 0))[0]
        cookie = next((part for part in headers.get("cookie", "").split("; ") if part.startswith(f"{self.cookie}=")), None)
        if scope["path"].startswith(("/r/", "/o/")):
            within = self.of_links.allows(scope["path"])
        else:
            within = self.of_session.allows(cookie) if cookie else self.of_strangers.allows(client)
        return None if within and self.of_addresses.allows(client) else (429, "too_often")


async def _read_away(receive: Receive, length: str) -> None:
    """Read a refused request, up to a limit: a browser sees no answer while it is sending."""
    remaining = _READ_AWAY if length.isdigit() and int(length) <= _READ_AWAY else 0
    while remaining > 0:
        message = await receive()
        remaining -= len(message.get("body", b""))
        if not message.get("more_body"):
            return


class Input(BaseModel):
    """The body of a page's request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Nothing(Input):
    """An empty body."""


def signed_in(request: Request) -> tuple[SessionRow, RaterRow | None]:
    """The request's session, and its rater (None: the organiser). Raises `RefusedAnswer` without one."""
    current = request.app.state.store.session(request.cookies.get(request.app.state.cookie, ""))
    if current is None:
        raise RefusedAnswer("no_session", 401)
    session, rater = request.state.session, request.state.rater = current
    # Another site's page can send the cookie, but does not know the form's token.
    if request.method != "GET" and not secrets.compare_digest(
        request.headers.get("x-csrf", "").encode(), session.csrf.encode()
    ):
        raise RefusedAnswer("bad_form", 403)
    return session, rater


def _rater(request: Request) -> RaterRow:
    _, rater = signed_in(request)
    if rater is None:
        raise RefusedAnswer("no_session", 403)
    return rater


def _agreed(request: Request) -> RaterRow:
    rater = _rater(request)
    if request.app.state.study.consent and not rater.consented:
        raise RefusedAnswer("no_consent", 403)
    return rater


def _organiser(request: Request) -> SessionRow:
    session, rater = signed_in(request)
    if rater is not None:
        raise RefusedAnswer("no_session", 403)
    return session


def _store(request: Request) -> StudyStore:
    store: StudyStore = request.app.state.store
    return store


Rater = Annotated[RaterRow, Depends(_rater)]
Agreed = Annotated[RaterRow, Depends(_agreed)]
"""A rater who has agreed to the study's consent text, if there is one; answers of others are refused."""
Organiser = Annotated[SessionRow, Depends(_organiser)]
Database = Annotated[StudyStore, Depends(_store)]
