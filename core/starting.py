"""Imported by a program before anything else: Ctrl-C while it is loading ends it with one line. `run_cli` takes over later."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def interrupted(number: int, frame: FrameType | None) -> None:
    """End the program."""
    print("interrupted before anything was begun", file=sys.stderr)
    raise SystemExit(128 + number)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or somebody's own
    signal.signal(signal.SIGINT, interrupted)
