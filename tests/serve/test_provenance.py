"""Where a reply came from: the model that the server names, and what the store keeps beside the reply."""

import hashlib
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from serve.client import ChatClient
from serve.failures import NotAsked, Rejected
from serve.store import CallStore
from tests.endpoint import Answer, Endpoint
from tests.serve.test_client import ask, question, spec

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
