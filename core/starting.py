"""Imported by a program before anything else, for what may end it while it loads.

Ctrl-C ends it with one line, until `run_cli` takes over. A limit on memory that is too low is reported at once: with it,
imports would hang or fail with a library's obscure error.
"""

import resource
import signal
import sys
from types import FrameType

ADDRESS_SPACE = 1 << 30  # bytes that the harness needs: 0.8 GB sufficed on two cores, and every core adds its threads'


def interrupted(number: int, frame: FrameType | None) -> None:
    """End the program."""
    print("interrupted before anything was begun", file=sys.stderr)
    raise SystemExit(128 + number)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else ignored, or handled by another program
    signal.signal(signal.SIGINT, interrupted)
allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
if allowed != resource.RLIM_INFINITY and allowed < ADDRESS_SPACE:
    print(
        f"error: this process may use {allowed >> 20} MiB of address space, and needs {ADDRESS_SPACE >> 20} or more: raise the "
        "limit (`ulimit -v`, or the scheduler's)",
        file=sys.stderr,
    )
    raise SystemExit(2)
