"""Requests and tokens a minute that a provider allows: calls are evenly spaced, so that no minute holds more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from core.specs import Endpoint

_LOOK_S = 1.0  # how often a waiting call looks whether answers took fewer tokens than was thought
_BYTES_A_TOKEN = 3  # a guess, until the server has counted: Chinese has about three, English four


class Rate:
    """The rate of one base URL, for all specs that ask there: the lowest that any of them states."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._request_s = self._token_s = 0.0  # seconds that a request, and a token, take up
        self._requests = self._tokens = float("-inf")  # until when what was begun takes up its share
        self._turn = asyncio.Lock()

    def tighten(self, endpoint: Endpoint) -> None:
        """Heed what a spec states."""
        self._request_s = max(self._request_s, 60 / (endpoint.requests_per_minute or float("inf")))
        self._token_s = max(self._token_s, 60 / (endpoint.tokens_per_minute or float("inf")))

    async def wait(self, payload: int, max_tokens: int) -> int:
        """Wait until a request of so many bytes may be sent; returns the tokens that were set aside for it: those of its answer
        are the most it may have, until `settle`."""
        if not self._request_s and not self._token_s:
            return 0
        tokens = payload // _BYTES_A_TOKEN + max_tokens
        async with self._turn:  # first come, first served
            while (left := max(self._requests, self._tokens) - self._clock()) > 0:
                await self._sleep(min(left, _LOOK_S))
            now = self._clock()
            self._requests, self._tokens = now + self._request_s, now + tokens * self._token_s
        return tokens

    def settle(self, aside: int, used: int) -> None:
        """A request that had so many tokens set aside has ended and used so many."""
        self._tokens += (used - aside) * self._token_s
