"""HTTP requests to a server. Bodies are limited, redirects are not followed, and no key is ever repeated in a message."""

from __future__ import annotations

import email.utils
import errno
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson

from core.endpoints import is_loopback, secret_of
from core.errors import UserError, near, printable
from core.masking import mask_answer, mask_message, mask_paths
from core.specs import ModelSpec
from serve.answers import Reply, reply_of_error
from serve.failures import Meaning, OutOfQuota, PassingError, Rejected, Unreadable, error_text, meaning_of
from serve.reading import ErrorInAnswer, read_reply, read_stream, so_far

UNSUPPORTED = (400, 422)  # statuses by which servers refuse a field
RETRIED_STATUS = frozenset({408, 409, 424, 425, 429, 498, 500, 502, 503, 504, 520, 522, 524, 529})
ACCEPTED = "gzip, deflate"
MEGABYTE = 2**20
LISTING = 8 * MEGABYTE  # most bytes of a server's list of models or of its metrics
_LIST_S = 10  # most seconds for a list of models
PASSING = (PassingError, aiohttp.ClientError, TimeoutError, OSError)  # errors that may not recur


@dataclass(frozen=True)
class Route:
    """The constant part of a model's requests to a server."""

    spec: ModelSpec
    url: str
    """The base URL."""
    key: str | None
    headers: Mapping[str, str]
    """Headers with the key and the spec's other variables."""
    secrets: tuple[str | None, ...]
    """Values that no message may contain."""
    settings: Mapping[str, Any]
    """For aiohttp: no redirects, the spec's query, the environment's proxy, the trusted certificates."""
    where: str
    """Model and server, for messages."""

    @classmethod
    def to(cls, spec: ModelSpec, url: str) -> Route:
        """The route to a base URL. Raises `UserError` for an unset key's variable, and a `ca_bundle` without a certificate."""
        endpoint, key = spec.endpoint, spec.api_key()
        others = {name: secret_of(variable, f"model {spec.name}") for name, variable in endpoint.headers.items()}
        headers = ({"Authorization": f"Bearer {key}"} if key else {}) | others
        trusted: Any = True
        if url.lower().startswith("https"):
            trusted = tls(endpoint.ca_bundle, endpoint.verify, os.environ.get("SSL_CERT_FILE"))
        settings = {"allow_redirects": False, "params": endpoint.query or None, "proxy": _proxy(url), "ssl": trusted}
        where = mask_paths(f"model {spec.name} at {url}")
        return cls(spec, url, key, headers, (key, *others.values()), settings, where)

    def redact(self, problem: object) -> str:
        """A problem as one short line without keys, which are masked before the line is cut, lest half of one remain."""
        text = mask_paths(" ".join(str(problem).split()))
        for secret in self.secrets:
            text = mask_message(text, secret)
        return printable(text[:300])[:300] or type(problem).__name__


async def read_body(response: aiohttp.ClientResponse, most: int) -> tuple[bytes, bool]:
    """The body, and whether it is complete: reading stops at `most` bytes (aiohttp decompresses in limited pieces)."""
    if 0 < (response.content_length or 0) <= most and "Content-Encoding" not in response.headers:
        return await response.read(), True  # it cannot be longer than its header says
    body = bytearray()
    async for chunk in response.content.iter_any():
        room = most - len(body)
        body += chunk[:room]
        if len(chunk) > room:
            return bytes(body), False
    return bytes(body), True


async def post_chat(
    session: aiohttp.ClientSession,
    route: Route,
    payload: bytes,
    session_id: str | None,
    hears: Callable[[str], None] | None = None,
) -> Reply:
    """The reply to a chat request. `session_id` keeps the requests of a dialogue on the same server behind a router. `hears`
    gets the presentable part of the reply so far. Raises `Rejected`, or one of `PASSING` if another try may succeed."""
    spec, where, key = route.spec, route.where, route.key
    headers = {**route.headers, "Content-Type": "application/json"}
    megabytes, timeout, body = spec.endpoint.max_response_mb, session.timeout, payload
    if hears:
        body = orjson.dumps({**orjson.loads(payload), "stream": True, "stream_options": {"include_usage": True}})
        timeout = aiohttp.ClientTimeout(sock_read=timeout.total)  # a long reply is fine while it continues
    if session_id:  # an id may contain characters that headers forbid
        headers["X-Session-Id"] = quote(session_id, safe="")
    url = f"{route.url}/chat/completions"
    async with session.post(url, data=body, headers=headers, timeout=timeout, **route.settings) as response:
        status, html = response.status, response.content_type == "text/html"
        wait = retry_after(response.headers.get("Retry-After"))
        if hears and status == 200 and response.content_type == "text/event-stream":
            raw, whole = await read_stream(response, megabytes * MEGABYTE, lambda text: hears(so_far(spec, text, key)))
        else:  # the beginning of an error suffices
            raw, whole = await read_body(response, (megabytes if status == 200 else 1) * MEGABYTE)
    for secret in route.secrets[1:]:
        raw = mask_answer(raw.decode("utf-8", "surrogateescape"), secret).encode("utf-8", "surrogateescape")
    if status == 200 and not whole:
        raise Rejected(f"{where}: an answer of more than {megabytes} MB (endpoint.max_response_mb)", status)
    if status == 200:
        try:
            return read_reply(spec, raw, key)
        except ErrorInAnswer as error:
            status, raw = error.status or 500, error.body
        except Unreadable:
            if html:
                raise Unreadable("a web page instead of an API's answer", status) from None
            raise
    if target := redirect_target(response):
        problem = f"HTTP {status}: redirects to {target}, which is not followed: use that URL if it is the server's"
        raise Rejected(f"{where}: {route.redact(problem)}", status)
    try:
        return reply_of_error(meaning_of_error(route, where, status, raw, wait))
    except Rejected as error:
        if hears is None or status not in UNSUPPORTED or "stream" not in str(error):
            raise
    return await post_chat(session, route, payload, session_id)  # without streaming


def meaning_of_error(route: Route, where: str, status: int, raw: bytes, wait: float | None) -> Meaning:
    """The meaning of an error that counts as an answer: content filter or full context. Raises `OutOfQuota` for an exhausted
    quota, `PassingError` if another try may succeed, `Rejected` for any other error."""
    told, meaning = error_text(raw), meaning_of(status, raw, wait is not None and status >= 400)
    problem = f"HTTP {status}: {told or 'an empty body'}"
    if meaning == "quota":
        raise OutOfQuota(f"{where}: {route.redact(problem)}", status, told)
    if meaning in ("throttle", "passing") or status in RETRIED_STATUS or status >= 500:
        raise PassingError(problem, status, told, meaning, wait)
    if meaning is None or status < 400:
        raise Rejected(f"{where}: {route.redact(problem)}", status, told)
    return meaning


@dataclass(frozen=True)
class Listing:
    """A server's list of models at `url`."""

    url: str
    contexts: Mapping[str, int | None] | None = None
    """Names and, if reported (vLLM), context lengths of its models; None for a server without a list."""
    of_vllm: bool = False
    """Whether it identifies as vLLM."""
    problem: str | None = None
    """Why the list is missing or lacks a model, which may be served nevertheless."""


async def served_models(session: aiohttp.ClientSession, route: Route, names: Sequence[str], longest: int) -> Listing:
    """A server's list of models, at its URL or at `/v1` below, in which these names should be. `longest` is the limit on a
    reply's tokens. Raises `UserError` if the server cannot be reached, or its context is shorter than that."""
    spec = route.spec
    if not spec.endpoint.lists_models:
        return Listing(route.url)
    listing = await _list_models(session, route)
    if listing.contexts is None and not route.url.endswith("/v1"):
        route = Route.to(spec, f"{route.url}/v1")
        below = await _list_models(session, route)
        listing = listing if below.contexts is None else below
    if listing.contexts is None:
        return listing
    where = Route.to(spec, listing.url).where
    for name in names:
        context = listing.contexts.get(name)
        if name not in listing.contexts:
            others = near(name, listing.contexts) if listing.contexts else "it lists no model"
            return replace(listing, problem=f"{where}: does not list {name!r}: {route.redact(others)}")
        if context is not None and longest >= context:
            remedy = "lower max_tokens (supporters), or sampling.max_tokens in its spec"
            raise UserError(f"{where}: replies of {longest} tokens leave no room in its context of {context}: {remedy}")
    return listing


async def _list_models(session: aiohttp.ClientSession, route: Route) -> Listing:
    """A server's list of models, or why there is none, if it matters. Raises `UserError` if the server cannot be reached."""
    base_url, url, timeout = route.url, f"{route.url}/models", aiohttp.ClientTimeout(total=_LIST_S)

    def without_list(reason: str) -> Listing:
        return Listing(base_url, problem=f"{route.where}: {reason}")

    try:
        async with session.get(url, headers=route.headers, timeout=timeout, **route.settings) as response:
            if response.status in (401, 403):
                refusal = error_text((await read_body(response, LISTING))[0])
                key = route.spec.endpoint.api_key_env
                hint = f"the key in {key}" if key else f"none was sent: NAME@{base_url}#VARIABLE names its variable"
                return without_list(f"the server refused the key (HTTP {response.status}: {route.redact(refusal)}): {hint}")
            if target := redirect_target(response):
                return without_list(f"redirects to {route.redact(target)}; if that is the server, use that URL")
            raw, _ = await read_body(response, LISTING)
            if response.status == 200 and response.content_type == "text/html":
                return without_list("answers with a web page, unlike an API: use the API's URL (…/v1)")
            entries = orjson.loads(raw)["data"]
            # Google lists models by path (models/gemini-…), while requests may use both forms.
            names = {name: entry for entry in entries for name in (str(entry["id"]), str(entry["id"]).removeprefix("models/"))}
            lengths = {name: entry.get("max_model_len") for name, entry in names.items()}
            contexts = {name: length if isinstance(length, int) else None for name, length in lengths.items()}
            return Listing(base_url, contexts, bool(entries) and all(entry.get("owned_by") == "vllm" for entry in entries))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, aiohttp.ClientPayloadError):
        return Listing(base_url)  # not every server has a list
    except TimeoutError:
        return without_list(f"no list of models within {_LIST_S} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a URL with a key in it
        raise UserError(f"{route.where}: cannot be reached: {route.redact(_cause(error, url))}") from None


def _cause(error: Exception, url: str) -> object:
    """Why a server cannot be reached, with advice unless the network is to blame. aiohttp's own text has its settings too."""
    system: object = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(system, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({system.verify_message}): name the authority's certificate in "
            "endpoint.ca_bundle, or in the variable SSL_CERT_FILE"
        )
    if isinstance(system, ssl.SSLError):  # with OpenSSL's error numbers, not the system's
        if system.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"):
            return "it does not speak HTTPS: write http://"
        return f"TLS failed: {(system.reason or str(system)).lower().replace('_', ' ')}"
    closed = isinstance(system, aiohttp.ServerDisconnectedError | aiohttp.ClientResponseError)
    if closed or (isinstance(system, OSError) and system.errno == errno.ECONNRESET):
        https = "; if it speaks HTTPS, write https://" if url.lower().startswith("http://") else ""
        return f"it closes the connection without an answer{https}"
    if not isinstance(system, OSError):
        return system
    # only the system's own errors have its numbers
    own = system.errno and system.errno > 0 and not isinstance(system, socket.gaierror)
    return os.strerror(system.errno or 0) if own else system.strerror or error


async def probe(session: aiohttp.ClientSession, url: str) -> bytes | None:
    """The response to a GET without a key within five seconds: the body of a 200, b"" for another status, None for an error."""
    try:
        timeout = aiohttp.ClientTimeout(total=5)
        async with session.get(url, timeout=timeout, allow_redirects=False, proxy=_proxy(url)) as response:
            return (await read_body(response, LISTING))[0] if response.status == 200 else b""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


async def server_version(session: aiohttp.ClientSession, base_url: str) -> str | None:
    """The version of a vLLM server from its `/version`, or None."""
    try:
        version = orjson.loads(await probe(session, f"{base_url.removesuffix('/v1')}/version") or b"")["version"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return version[:100] if isinstance(version, str) else None


def redirect_target(response: aiohttp.ClientResponse) -> str | None:
    """The target of a redirect, without user, password, query and token, or None."""
    location = response.headers.get("Location")
    if response.status // 100 != 3 or not location:
        return None
    try:
        target = urlsplit(urljoin(str(response.url), location))
        return mask_paths(urlunsplit((target.scheme, target.netloc.rpartition("@")[2], target.path, "", "")))
    except ValueError:
        return None


def retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header (seconds or an HTTP date), at most ten minutes."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), 600.0)


@lru_cache
def tls(ca_bundle: str | None, verify: bool, system: str | None) -> ssl.SSLContext:
    """The trusted certificates: the system's (from the file `system`, which OpenSSL takes from SSL_CERT_FILE) and those of a
    PEM file; or any, without `verify`. Raises `UserError` for a file without certificates."""
    context = ssl.create_default_context()
    if ca_bundle:
        try:
            context.load_verify_locations(ca_bundle)
        except (OSError, ssl.SSLError) as error:
            reason = "no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            raise UserError(f"endpoint.ca_bundle: {ca_bundle}: {reason}") from None
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _proxy(url: str) -> str | None:
    """The proxy for a URL by HTTP_PROXY, HTTPS_PROXY and NO_PROXY; never one for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxy = getproxies().get(parts.scheme)
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def away_and_crowded(error: Exception) -> tuple[bool, bool]:
    """Whether an error means that the server is away, and whether fewer calls should be in flight (also for our open files)."""
    if isinstance(error, PassingError):
        return error.crowded, error.crowded
    ours = getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)
    refused = isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError)
    return refused and not ours, ours or isinstance(error, TimeoutError)
