"""HTTP as a call needs it: bodies capped while they are decompressed, waits that servers ask for, redirects by name."""

from __future__ import annotations

import email.utils
import math
import time
import zlib
from urllib.parse import urljoin, urlsplit, urlunsplit

import aiohttp

ACCEPTED = "gzip, deflate"  # what `read_body` decompresses: never more than it may keep
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's `wbits`


class BadEncoding(Exception):
    """A body that cannot be decompressed."""


async def read_body(response: aiohttp.ClientResponse, most: int) -> tuple[bytes, bool]:
    """The body, decompressed, and whether that is all of it: reading stops at `most` bytes, and no more are ever held.

    The session must not decompress by itself (`auto_decompress=False`). Raises `BadEncoding`.
    """
    expand = _Expander(response.headers.get("Content-Encoding", ""), most)
    async for chunk in response.content.iter_any():
        if not expand.feed(chunk):
            return bytes(expand.body[:most]), False
    return bytes(expand.body), True


class _Expander:
    """Decompresses what it is fed into `body`, up to one byte more than `most`."""

    def __init__(self, encoding: str, most: int) -> None:
        self.body = bytearray()
        self._most = most
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise BadEncoding(f"Content-Encoding {encoding[:40]!r}, which was not asked for")
        self._stream: zlib._Decompress | None = None

    def feed(self, chunk: bytes) -> bool:
        """Take a chunk; False once there is more than allowed."""
        if self._encoding in ("", "identity"):
            self.body += chunk[: self._most + 1 - len(self.body)]
            return len(self.body) <= self._most
        while chunk and len(self.body) <= self._most:
            if self._stream is None or self._stream.eof:  # gzip bodies may have several members
                self._stream = zlib.decompressobj(self._wbits(chunk))
            try:
                self.body += self._stream.decompress(chunk, self._most + 1 - len(self.body))
            except zlib.error as error:
                raise BadEncoding(f"a {self._encoding} body that cannot be decompressed ({error})") from None
            chunk = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        return len(self.body) <= self._most

    def _wbits(self, chunk: bytes) -> int:
        if self._encoding != "deflate":
            return _GZIP
        return _ZLIB if chunk[0] & 0x0F == 8 else _RAW  # some servers send deflate without zlib's header


def redirect_target(response: aiohttp.ClientResponse) -> str | None:
    """Where a redirect points, without user, password and query; None where there is no such address."""
    location = response.headers.get("Location")
    if response.status // 100 != 3 or not location:
        return None
    try:
        target = urlsplit(urljoin(str(response.url), location))
        return urlunsplit((target.scheme, target.netloc.rpartition("@")[2], target.path, "", ""))
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
