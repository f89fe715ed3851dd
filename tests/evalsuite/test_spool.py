"""Finished dialogues wait on disk, in a file without a name, until their run ends."""

import signal
import subprocess
import sys
import textwrap
from itertools import chain
from pathlib import Path

import pytest

from core.errors import UserError
from core.records import Dialogue, Judgement
from evalsuite.runs.contents import Records, Spool
from tests.evalsuite.records import make_dialogue, make_judgement

MAKE = """
    import os, resource, signal
    from pathlib import Path
    from core.errors import UserError
    from evalsuite.runs.contents import Spool
    from tests.evalsuite.records import make_dialogue
"""


def in_a_process(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that has `MAKE`'s names and `folder`, as a process of its own."""
    text = textwrap.dedent(MAKE) + f"folder = Path({str(folder)!r})\n" + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)


def test_records_come_back_as_they_were_kept_each_time_that_they_are_read(tmp_path: Path) -> None:
    spool, made = Spool(tmp_path), [make_dialogue(f"d{number}") for number in range(3)]
    verdicts = [[make_judgement(each.id, "empathy", 3), make_judgement(each.id, "fluency", None)] for each in made]
    later = [make_judgement(each.id, "empathy", 1).model_copy(update={"turn": 1}) for each in made]
    pieces = []
    for each, whole, part in zip(made, verdicts, later, strict=True):
        pieces.append(spool.keep(each, [whole[0], part, whole[1]]))
        assert list(Records(Dialogue, spool, [piece.dialogue for piece in pieces])) == made[: len(pieces)]  # between two writes
    dialogues = Records(Dialogue, spool, [piece.dialogue for piece in reversed(pieces)])
    assert len(dialogues) == 3 and list(dialogues) == list(dialogues) == made[::-1]
    assert list(Records(Judgement, spool, [place for piece in pieces for place in piece.whole])) == [*chain(*verdicts)]
    assert list(Records(Judgement, spool, [place for piece in pieces for place in piece.parts])) == later


def test_the_file_has_no_name(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.keep(make_dialogue("d"), [])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    program = """
        spool = Spool(folder)
        for number in range(2_000):
            spool.read(spool.keep(make_dialogue(f"d{number}"), []).dialogue)
        print(os.fstat(spool._file.fileno()).st_size, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = in_a_process(program, tmp_path)
    assert killed.returncode == -signal.SIGKILL and int(killed.stdout) > 100_000
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_disk_without_room_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    program = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # as a full disk: what goes beyond is not written
        spool = Spool(folder)
        try:
            for number in range(2_000):
                spool.keep(make_dialogue(f"d{number}"), [])
        except UserError as error:
            print(error)
    """
    done = in_a_process(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"cannot write into {tmp_path}: File too large\n"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_into_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot write into {tmp_path}/missing"):
        Spool(tmp_path / "missing")
