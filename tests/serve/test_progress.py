"""What long work says of itself where there is no terminal."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from serve import batch
from serve.answers import UsageTally


def test_the_first_that_is_finished_is_said_at_once_and_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = [5.0], io.StringIO()
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    client: Any = SimpleNamespace(tallies={"m": UsageTally()})
    with batch.CallProgress(10, client, Console(file=said, width=200), "simulate", "dialogues") as progress:
        for after in (6, 1, 28, *[0.5] * 7):
            clock[0] += after
            progress.step()
    lines = said.getvalue().splitlines()
    assert lines[0] == "simulate: 1/10, 10.0 dialogues/min, 0 tokens/s, about 0:00:54 left"
    assert lines[1] == "simulate: 6/10, 9.9 dialogues/min, 0 tokens/s, about 0:00:24 left"
    assert lines[2].startswith("simulate: 10/10, ") and "left" not in lines[2] and len(lines) == 3
