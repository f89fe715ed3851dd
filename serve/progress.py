"""Progress of long work that asks models: a bar with rate and time left; a line now and then where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from serve.client import ChatClient

_LINE_EVERY_S = 30.0


class CallProgress:
    """Counts finished things (`unit`: dialogues, cards …); `client` is read for the tokens that its servers generated."""

    def __init__(self, total: int, client: ChatClient, console: Console, what: str, unit: str) -> None:
        self._client, self._console, self._total, self._what, self._unit = client, console, total, what, unit
        self._done = 0
        self._started = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total, rate="")

    def __enter__(self) -> CallProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def rate(self) -> str:
        """`12.3 UNIT/min, 456 tokens/s` since the start."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        generated = sum(tally.generated for tally in self._client.tallies.values())
        return f"{self._done / seconds * 60:.1f} {self._unit}/min, {generated / seconds:.0f} tokens/s"

    def step(self) -> None:
        """One more is finished."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, rate=self.rate())
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._last_line > _LINE_EVERY_S or self._done == self._total):
            self._last_line = now
            self._console.print(f"{self._what}: {self._done}/{self._total}, {self.rate()}")
