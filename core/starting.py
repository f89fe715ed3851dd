"""Imported by a program before anything else, for what may end it while it is loading.

Ctrl-C ends it with one line; `run_cli` takes over later. Where it may use too little memory it says so at once: imports
would hang, or fail with whatever error a library makes of it.
"""

from __future__ import annotations

import resource
import signal
import sys
from types import FrameType

ADDRESS_SPACE = 1 << 30  # bytes that the harness needs; 0.8 GB were enough on two cores, and each core adds its threads'


def interrupted(number: int, frame: FrameType | None) -> None:
    """End the program."""
    print("interrupted before anything was begun", file=sys.stderr)
    raise SystemExit(128 + number)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or somebody's own
    signal.signal(signal.SIGINT, interrupted)
allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
if allowed != resource.RLIM_INFINITY and allowed < ADDRESS_SPACE:
    print(
        f"error: this process may use {allowed >> 20} MiB of address space, and needs {ADDRESS_SPACE >> 20} or more: raise the "
        "limit (`ulimit -v`, or the scheduler's)",
        file=sys.stderr,
    )
    raise SystemExit(2)
