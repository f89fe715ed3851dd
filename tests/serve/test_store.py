"""The call store: what is on disk after a commit, a checkpoint and a kill, and where each reply came from."""

import asyncio
import hashlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from serve import store as module
from serve.answers import Reply
from serve.client import ChatClient
from serve.failures import NotAsked, Rejected
from serve.store import CallStore
from tests.endpoint import Answer, Endpoint
from tests.serve.test_client import ask, question, spec


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


OLD = "CREATE TABLE calls (key TEXT PRIMARY KEY, reply BLOB NOT NULL, seconds REAL NOT NULL) WITHOUT ROWID"


def named(*names: str | None) -> Endpoint:
    """An endpoint that names these models, one after the other."""
    return Endpoint(lambda body, count: Answer("fine", model=names[min(count, len(names)) - 1]))


async def test_the_store_keeps_beside_a_reply_where_it_came_from(tmp_path: Path) -> None:
    before = time.time()
    answers = [Answer(status=500), Answer("all I", finish_reason="length", model="m-2024-07-18")]
    with Endpoint(lambda body, count: answers[count - 1]) as endpoint:
        await ask(tmp_path, endpoint, question("so <|im_end|>"))
    sent = json.loads(json.dumps(endpoint.requests[-1]["messages"]))
    with sqlite3.connect(tmp_path / "calls.sqlite") as db:
        (row,) = db.execute("SELECT role, spec, model, finish_reason, attempt, time, prompt FROM calls")
        ((hashed, messages),) = db.execute("SELECT * FROM prompts")
    assert row[:5] == ("supporter", "my-model", "m-2024-07-18", "length", 2) and before <= row[5] <= time.time()
    assert json.loads(messages) == sent and row[6] == hashed == hashlib.sha256(messages).hexdigest()


async def test_messages_above_the_size_are_kept_as_a_hash_only(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        await ask(tmp_path, endpoint, question("x" * 100), question("x"), keep_messages=99)
    with sqlite3.connect(tmp_path / "calls.sqlite") as db:
        assert db.execute("SELECT count(*) FROM calls WHERE length(prompt) = 64").fetchall() == [(2,)]
        assert [len(json.loads(m)[0]["content"]) for (m,) in db.execute("SELECT messages FROM prompts")] == [1]


async def test_another_model_than_at_the_start_is_no_answer_and_ends_the_run(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    with named("gpt-4o-mini-2024-07-18", "gpt-4o-mini-2024-07-18", "llama-8b") as endpoint:
        async with ChatClient(store) as client:
            for text in "ab":
                await client.ask(spec(endpoint.url), question(text))
            with pytest.raises(Rejected, match="'llama-8b' answered; at the start of this run it was 'gpt-4o-mini-2024-07-18'"):
                await client.ask(spec(endpoint.url), question("c"))
            assert client.threshold.cause and "llama-8b" in client.threshold.cause
            with pytest.raises(NotAsked):
                await client.ask(spec(endpoint.url), question("d"))
    assert len(store) == 2
    store.close()


async def test_the_name_first_stored_holds_when_a_run_goes_on(tmp_path: Path) -> None:
    with named("a") as first:
        await ask(tmp_path, first, question("1"))
    with named("b") as second, pytest.raises(Rejected, match="'b' answered.*'a'"):
        await ask(tmp_path, second, question("2"))
    with named("b", "c", None) as router:  # by the spec's word these are all the same
        model = spec(router.url, endpoint={"any_model": True})
        await ask(tmp_path, router, question("2"), question("3"), question("4"), model=model)
    with named("a", None) as first:
        await ask(tmp_path, first, question("5"), question("6"))


@pytest.mark.parametrize("answer", ["7", '["a"]', "null", '" "', "{}"])
async def test_what_is_no_name_is_none(tmp_path: Path, answer: str) -> None:
    body = b'{"choices": [{"message": {"content": "hm"}, "finish_reason": "stop"}], "model": %s}' % answer.encode()
    with Endpoint(lambda request, count: Answer(body=body)) as endpoint:
        assert [reply.model for reply in await ask(tmp_path, endpoint, question())] == [None]


async def test_a_store_of_an_older_version_is_opened_and_added_to(tmp_path: Path) -> None:
    async def key(client: ChatClient) -> str:
        return client.key(spec(), question("old"))

    scratch = CallStore(tmp_path / "scratch.sqlite")
    async with ChatClient(scratch) as client:
        known = await key(client)
    scratch.close()
    with sqlite3.connect(tmp_path / "calls.sqlite") as db:
        db.execute(OLD)
        db.execute("INSERT INTO calls VALUES (?, ?, 0.5)", (known, b'{"text": "of before"}'))
    with named("m") as endpoint:
        replies = await ask(tmp_path, endpoint, question("old"), question("new"))
    assert [reply.text for reply in replies] == ["of before", "fine"]
    with sqlite3.connect(tmp_path / "calls.sqlite") as db:
        assert sorted(db.execute("SELECT model, attempt, seconds = 0.5 FROM calls"), key=str) == [("m", 1, 0), (None, None, 1)]


async def test_stores_in_which_other_models_answered_are_not_put_together(tmp_path: Path) -> None:
    async def made(name: str, model: str) -> CallStore:
        folder = tmp_path / name
        with named(model) as endpoint:
            await ask(folder, endpoint, question(name))
        return CallStore(folder / "calls.sqlite")

    one, same, other = await made("one", "a"), await made("same", "a"), await made("other", "b")
    one.add_from(same.path)
    assert len(one) == 2
    with pytest.raises(UserError, match="my-model answered as 'b' there, as 'a' in"):
        one.add_from(other.path)
    assert len(one) == 2
    for store in (one, same, other):
        store.close()


async def test_the_version_of_a_vllm_server_is_known(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint() as endpoint:
        async with ChatClient(store) as client:
            told: list[Any] = []
            for version in (None, "0.11.2"):
                endpoint.version = version
                told.append(await client.server_version(spec(endpoint.url), "my-model"))
            told.append(await client.server_version(spec("http://127.0.0.1:1/v1"), "my-model"))
    assert told == [None, "0.11.2", None]
    store.close()
