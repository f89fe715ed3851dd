"""Files that are written record by record are whole or as they were, however the writing ends; locks are free again."""

import json
import signal
import subprocess
import sys
import textwrap
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import each_placed, locked, read_jsonl, read_object, write_json, write_json_of, write_jsonl
from core.records import HumanScore, Turn

TURNS = [
    Turn(role="seeker", text="one\n  line “and” another\u2028\t\\n"),
    Turn(role="supporter", text="", state={"a": [{}, []]}),
]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_records_are_written_as_the_same_object_in_one_piece(tmp_path: Path, count: int) -> None:
    value, records = {"name": "x", "figures": {"none": None, "list": [1, {"deep": []}]}}, TURNS[:count]
    write_json_of(tmp_path / "streamed.json", value, {"turns": iter(records), "others": iter(TURNS), "nothing": iter([])})
    dumped = [turn.model_dump(mode="json") for turn in TURNS]
    whole: dict[str, Any] = value | {"turns": dumped[:count], "others": dumped, "nothing": []}
    assert list(read_object(tmp_path / "streamed.json", "it").items()) == list(whole.items())
    lines = (tmp_path / "streamed.json").read_text().split("\n")
    assert [json.loads(line.rstrip(",")) for line in lines if line.startswith('    {"role"')] == dumped[:count] + dumped


def test_an_object_without_fields_of_its_own_is_one_too(tmp_path: Path) -> None:
    write_json_of(tmp_path / "a.json", {}, {"turns": iter(TURNS[:1]), "none": iter([])})
    assert read_object(tmp_path / "a.json", "it") == {"turns": [TURNS[0].model_dump(mode="json")], "none": []}
    write_json_of(tmp_path / "a.json", {}, {})
    assert read_object(tmp_path / "a.json", "it") == {}


def test_one_record_is_held_at_a_time(tmp_path: Path) -> None:
    known: list[weakref.ref[Turn]] = []

    def turns() -> Iterator[Turn]:
        for number in range(50):
            assert sum(each() is not None for each in known) <= 1
            turn = Turn(role="seeker", text=str(number))
            known.append(weakref.ref(turn))
            yield turn
            del turn

    write_json_of(tmp_path / "turns.json", {"a": 1}, {"turns": turns()})
    assert len(known) == 50


def failing() -> Iterator[Turn]:
    yield TURNS[0]
    raise RuntimeError("the source broke")


def unwritable() -> Iterator[Any]:
    yield TURNS[0]
    fields: dict[str, Any] = {"dialogue_id": "d", "value": object()}  # nothing that JSON has
    yield HumanScore.model_construct(**fields)


@pytest.mark.parametrize("records", [failing, unwritable])
def test_a_writing_that_breaks_off_leaves_what_was_there(tmp_path: Path, records: Any) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"old": True})
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        write_json_of(path, {"new": True}, {"turns": records()})
    assert read_object(path, "it") == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"old": True})
    program = f"""
        import os, signal
        from pathlib import Path
        from core.files import write_json_of
        from core.records import Turn
        def turns():
            for number in range(10_000):
                if number == 9_000:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield Turn(role="seeker", text="word " * 20)
        write_json_of(Path({str(path)!r}), {{"new": True}}, {{"turns": turns()}})
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert read_object(path, "it") == {"old": True}
    left = [file for file in tmp_path.iterdir() if file != path]
    assert [file.name.startswith(".report.json.") for file in left] == [True] and left[0].stat().st_size > 500_000


def test_records_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    write_jsonl(path, (Turn(role="seeker", text=str(number)) for number in range(50)))
    known: list[weakref.ref[Turn]] = []
    for where, turn in each_placed(path, Turn, "turns"):
        assert sum(each() is not None for each in known) <= 1 and where == f"{path}:{int(turn.text) + 1}"
        known.append(weakref.ref(turn))
    assert len(known) == 50 and [record.text for record in read_jsonl(path, Turn, "turns")] == [str(n) for n in range(50)]


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
