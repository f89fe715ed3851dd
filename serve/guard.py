"""A parent for one server, so that no server outlives whoever asked for it: `python -m serve.guard -- COMMAND …`.

The command runs in its own process group. The guard waits for the first of: end of file on its own stdin (a pipe whose
other end the launcher holds, so even a launcher that was killed with SIGKILL closes it), a new parent, SIGTERM, SIGINT or
SIGHUP, or the command's own end. Whichever it is, the whole group is terminated (SIGTERM, SIGKILL after `GRACE` seconds).

Exit code: the command's, when it ended by itself (128 + n after signal n); otherwise 0. Hardly any imports: a guard stays in
memory as long as its server does.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

GRACE = 3.0  # seconds between SIGTERM and SIGKILL: with the wait after it, Ctrl-C takes five at most
LOOK = 0.2  # seconds between two looks at what is no end of stdin


def main(arguments: list[str]) -> int:
    """Run the command after `--` and see it, and all it started, to the end."""
    if len(arguments) < 2 or arguments[0] != "--":
        print(
            "usage: python -m serve.guard -- COMMAND [ARGUMENT …]   (stdin: a pipe; its end ends the command)", file=sys.stderr
        )
        return 2
    parent, stopped = os.getppid(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    # Started with the signals already caught: none can slip in between and leave the command without a guard.
    command = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while command.poll() is None and os.getppid() == parent and not stopped.is_set():
            ready, _, _ = select.select([sys.stdin], [], [], LOOK)
            if ready and not os.read(sys.stdin.fileno(), 4096):
                break
        code = command.poll()
    finally:
        end_group(command)
    if code is None:
        return 0
    return code if code >= 0 else 128 - code


def end_group(command: subprocess.Popen[bytes]) -> None:
    """SIGTERM to everything in the command's group, SIGKILL to what is left after the grace period."""
    for number, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 2.0)):
        if not _members(command.pid):
            break
        with suppress(ProcessLookupError):
            os.killpg(command.pid, number)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            command.poll()  # takes the exit status, so that the leader does not stay as a zombie
            if not _members(command.pid):
                break
            time.sleep(0.05)
    command.poll()


def _members(group: int) -> bool:
    """Whether any process of a group still runs. Zombies do not count: in a container nobody may ever collect them."""
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it ended while we looked
            if os.getpgid(pid) == group and psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
