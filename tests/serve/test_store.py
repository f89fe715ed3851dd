"""The call store under way: what is on disk after a commit, after a checkpoint, and after a kill."""

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from core.errors import UserError
from serve import store as module
from serve.answers import Reply
from serve.store import CallStore


async def put(store: CallStore, *numbers: int) -> None:
    await asyncio.gather(*(store.put(str(n), {"text": f"answer {n}"}, 0.1) for n in numbers))


def in_the_file(path: Path, copy: Path) -> int:
    """Answers in the database file alone, without its WAL."""
    shutil.copy(path, copy)
    with closing(sqlite3.connect(copy)) as db:
        try:
            return int(db.execute("SELECT count(*) FROM calls").fetchone()[0])
        except sqlite3.OperationalError:  # not even the tables are there yet
            return 0


async def drained(store: CallStore) -> None:
    """Wait for the checkpoint that follows a commit."""
    assert store._commit is not None
    await store._commit


async def test_a_checkpoint_copies_the_wal_into_the_file_after_so_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECKPOINT_AFTER", 50)
    store = CallStore(tmp_path / "calls.sqlite")
    await put(store, *range(49))
    await drained(store)
    assert in_the_file(store.path, tmp_path / "copy") == 0 and len(store) == 49
    await put(store, 49)
    await drained(store)
    assert in_the_file(store.path, tmp_path / "copy") == 50
    await put(store, *range(50, 80))
    await drained(store)
    assert in_the_file(store.path, tmp_path / "copy") == 50 and len(store) == 80
    store.close()


async def test_answers_are_read_and_kept_while_a_checkpoint_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECKPOINT_AFTER", 20)
    store = CallStore(tmp_path / "calls.sqlite")

    async def one(number: int) -> None:
        await store.put(str(number), {"text": f"answer {number}"}, 0.1)
        assert store.get(str(number)) == Reply(text=f"answer {number}")

    for begin in range(0, 400, 40):
        await asyncio.gather(*(one(number) for number in range(begin, begin + 40)))
    await drained(store)
    assert in_the_file(store.path, tmp_path / "copy") == len(store) == 400
    store.close()


async def test_a_reader_that_holds_a_checkpoint_up_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECKPOINT_AFTER", 20)
    store = CallStore(tmp_path / "calls.sqlite")
    await put(store, 0)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM calls").fetchone() == (1,)
        await put(store, *range(1, 60))
        await drained(store)
        assert len(store) == 60  # the file alone is no whole database now
    await put(store, *range(60, 80))
    await drained(store)
    assert in_the_file(store.path, tmp_path / "copy") == 80
    store.close()


async def test_a_commit_that_fails_is_said_to_everybody_who_waits_and_the_next_one_is_made(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        store._db.execute("PRAGMA busy_timeout=0")
        other.execute("BEGIN IMMEDIATE")
        said = await asyncio.gather(put(store, 1), put(store, 2), return_exceptions=True)
        assert [type(error) for error in said] == [UserError, UserError]
        assert "cannot be written" in str(said[0]) and "database is locked" in str(said[0])
        other.execute("ROLLBACK")
    await put(store, 3)
    assert [store.get(str(number)) for number in (1, 2, 3)] == [None, None, Reply(text="answer 3")]
    store.close()


@pytest.mark.slow
def test_a_kill_loses_no_answer_whose_put_returned(tmp_path: Path) -> None:
    """Killed in the midst of commits and checkpoints: what the process has printed is there."""
    program = f"""
        import asyncio
        from pathlib import Path
        from serve import store as module
        module._CHECKPOINT_AFTER = 30
        store = module.CallStore(Path({str(tmp_path / "calls.sqlite")!r}))
        async def one(number):
            await store.put(str(number), {{"text": "word " * 400}}, 0.1)
            print(number, flush=True)
        async def main():
            for begin in range(0, 1_000_000, 25):
                await asyncio.gather(*(one(number) for number in range(begin, begin + 25)))
        asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = [next(process.stdout) for _ in range(1_000)]
        process.kill()
        printed += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    store = CallStore(tmp_path / "calls.sqlite")
    kept = [line.strip() for line in printed if line.endswith("\n")]
    assert len(kept) >= 1_000 and all(store.get(number) for number in kept)
    assert store._rows("PRAGMA integrity_check") == [("ok",)]
    store.close()


CHANGED = ["UPDATE {} SET reply = replace(reply, 'answer', 'verdict')", "UPDATE {} SET reply = CAST('{{}}' AS BLOB)"]


@pytest.mark.parametrize("change", CHANGED)
async def test_an_answer_that_somebody_edited_is_not_used(change: str, tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    await put(store, 1, 2)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute(f"{change.format('calls')} WHERE key = '1'")
    assert store.get("2") == Reply(text="answer 2")
    with pytest.raises(UserError, match="changed later.*DELETE FROM calls WHERE key = '1'.*run the same command"):
        store.get("1")
    with pytest.raises(UserError, match="changed later"):
        list(store.replies())
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute("DELETE FROM calls WHERE key = '1'")
    assert store.get("1") is None and len(list(store.replies())) == 1
    store.close()


async def test_a_store_of_before_there_were_checksums_is_used_and_added(tmp_path: Path) -> None:
    for name in ("old", "new"):
        store = CallStore(tmp_path / name)
        await put(store, 1, 2)
        await store.put("1", {"text": "again"}, 0.1, instead="--retry")
        store.close()
    with closing(sqlite3.connect(tmp_path / "old", isolation_level=None)) as db:
        for table in ("calls", "replaced"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
    third = CallStore(tmp_path / "third")
    for name in ("old", "new"):
        third.add_from(tmp_path / name)
    old = CallStore(tmp_path / "old")
    await put(old, 3)
    await old.put("2", {"text": "once more"}, 0.1, instead="--retry")
    assert [old.get(key) and old.get(key).text for key in "123"] == ["again", "once more", "answer 3"]  # type: ignore[union-attr]
    assert len(third) == 2 and third.get("1") == Reply(text="again") and third.times_replaced("1") == 1
    third.close()
    old.close()


async def test_a_checkpoint_that_fails_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECKPOINT_AFTER", 20)
    store = CallStore(tmp_path / "calls.sqlite")
    path, store.path = store.path, tmp_path / "gone" / "calls.sqlite"  # cannot be opened a second time
    await put(store, *range(30))
    await put(store, *range(30, 60))
    await drained(store)
    assert len(store) == 60 and in_the_file(path, tmp_path / "copy") == 0
    store.close()
