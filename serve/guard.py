"""The parent process of a server, which ensures that no server outlives its launcher: `python -m serve.guard -- COMMAND …`.

The command runs in its own process group. The guard waits until its stdin ends (a pipe from the launcher, which even a SIGKILL
of the launcher closes), its parent changes, it gets SIGTERM, SIGINT or SIGHUP, or the command ends. Then it terminates the
whole group (SIGTERM, SIGKILL after `GRACE` seconds). Exit code: the command's if it ended by itself (128 + n after signal n),
otherwise 0. It imports little, since it stays in memory as long as its server.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

GRACE = 3.0  # seconds between SIGTERM and SIGKILL, so that with the wait afterwards Ctrl-C takes five at most
LOOK = 0.2  # seconds between checks of events other than the end of stdin


def main(arguments: list[str]) -> int:
    """Run the command after `--`; end it and all its processes as described above."""
    parent, stopped = os.getppid(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    # Started after the handlers are set, so that no signal can leave the command without a guard.
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
    """Send SIGTERM to the command's process group, and SIGKILL after the grace period."""
    for number, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 2.0)):
        if not _members(command.pid):
            break
        with suppress(ProcessLookupError):
            os.killpg(command.pid, number)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            command.poll()  # collects the exit status, so that the leader does not become a zombie
            if not _members(command.pid):
                break
            time.sleep(0.05)
    command.poll()


def _members(group: int) -> bool:
    """Whether any process of a group is still running. Zombies do not count: in a container they may never be collected."""
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it ended meanwhile
            if os.getpgid(pid) == group and psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
