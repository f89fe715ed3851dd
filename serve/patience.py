"""Waiting for a server that is not there for the moment: it refuses connections, or answers only 429, 503 or 529.

Such a try is no try: it does not count among a call's attempts, for as long as the server answers nobody. One that answers
other calls meanwhile is there, only busy; there the attempts count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HOUR = 3600.0
_SAY_EVERY_S = 60.0


class Patience:
    """How long one server has been away, and whether that is still borne. `say` is told about it once a minute."""

    def __init__(self, most_s: float, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._say, self._clock = most_s, say, clock
        self._since: float | None = None
        self._said = 0.0
        self.answers = 0

    def answered(self) -> None:
        """The server answered, whatever it said."""
        self._since = None
        self.answers += 1

    def lasts(self, where: str, problem: str) -> bool:
        """Whether to go on waiting, after another try that found the server away."""
        now = self._clock()
        if self._since is None:
            self._since = self._said = now
        waited = now - self._since
        if waited >= self._most:
            return False
        if now - self._said >= _SAY_EVERY_S:
            self._said = now
            self._say(
                f"{where} has not been available for {waited / 60:.0f} min ({problem}); waiting up to "
                f"{self._most / 60:.0f} min (--patience)"
            )
        return True
