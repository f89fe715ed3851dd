"""Lock files: one process at a time, and free again however the holder ended."""

import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from core.errors import UserError
from core.files import locked

HOLD = """
import sys, time
from pathlib import Path
from core.files import locked
with locked(Path(sys.argv[1]), "x"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lock_is_free_again_when_its_holder_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    lock = tmp_path / "run" / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="run folder x is in use by another process"), locked(lock, "run folder x"):
        pass
    holder.send_signal(number)
    holder.wait(30)
    for _ in range(2):
        with locked(lock, "x"), pytest.raises(UserError, match="in use"), locked(lock, "x"):
            pass


@pytest.mark.parametrize("place", ["file/.lock", "folder", "a\0b"])
def test_a_lock_that_cannot_be_made_is_a_clear_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="run folder x cannot be used: "), locked(tmp_path / place, "run folder x"):
        pass


def test_a_file_system_without_locks_is_refused_and_not_locked_by_a_file_that_outlives_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(handle: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("filelock._unix.fcntl.flock", missing)
    with warnings.catch_warnings(), pytest.raises(UserError, match="cannot be used: Function not implemented"):
        warnings.simplefilter("error")
        with locked(tmp_path / ".lock", "x"):
            pass
