"""The store of a run's finished calls, in an SQLite file, so that none is ever repeated or paid for twice."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from core.errors import UserError
from core.specs import ModelSpec
from serve.answers import Reply

_COLUMNS = "role TEXT, spec TEXT, model TEXT, finish_reason TEXT, time REAL, attempt INTEGER, prompt TEXT, checksum TEXT"
_ADDED = [column.split()[0] for column in _COLUMNS.split(", ")]  # null in older stores
_ALL = ", ".join(["key", "reply", "seconds", *_ADDED])
_TABLES = (
    "CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, reply BLOB NOT NULL, seconds REAL NOT NULL, "
    f"{_COLUMNS}) WITHOUT ROWID",
    # Replaced answers (--retry), oldest first; `calls` has the newest.
    "CREATE TABLE IF NOT EXISTS replaced (key TEXT NOT NULL, number INTEGER NOT NULL, reason TEXT NOT NULL, "
    f"reply BLOB NOT NULL, seconds REAL NOT NULL, {_COLUMNS}, PRIMARY KEY (key, number)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS prompts (hash TEXT PRIMARY KEY, messages BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS failures (key TEXT PRIMARY KEY, item TEXT NOT NULL, role TEXT NOT NULL, spec TEXT NOT NULL, "
    "outcome TEXT NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL) WITHOUT ROWID",
    # The model's name in the first answer, by spec and requested name.
    "CREATE TABLE IF NOT EXISTS models (spec TEXT, served TEXT, model TEXT NOT NULL, PRIMARY KEY (spec, served)) WITHOUT ROWID",
    # The findings about a model's server (serve.dialect), by spec and requested name.
    "CREATE TABLE IF NOT EXISTS dialects (spec TEXT, served TEXT, dialect BLOB NOT NULL, PRIMARY KEY (spec, served)) "
    "WITHOUT ROWID",
    # Finished stages: the time, and a hash of everything that their records depend on.
    "CREATE TABLE IF NOT EXISTS ends (stage TEXT PRIMARY KEY, time REAL NOT NULL, state TEXT NOT NULL) WITHOUT ROWID",
)
_PUT = f"INSERT OR REPLACE INTO calls ({_ALL}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SET_ASIDE = (
    f"INSERT INTO replaced ({_ALL}, number, reason) "
    f"SELECT {_ALL}, (SELECT count(*) FROM replaced WHERE replaced.key = calls.key), ? FROM calls WHERE key = ?"
)
_PROMPT = "INSERT OR IGNORE INTO prompts VALUES (?, ?)"
_NAME = "INSERT OR IGNORE INTO models VALUES (?, ?, ?)"
_LEARN = "INSERT OR REPLACE INTO dialects VALUES (?, ?, ?)"
_ANSWERED = "DELETE FROM failures WHERE key = ?"
_FAIL = (
    "INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, 1) ON CONFLICT (key) DO UPDATE "
    "SET outcome = excluded.outcome, reason = excluded.reason, times = times + 1"
)
_ORDER = (_SET_ASIDE, _PROMPT, _NAME, _LEARN, _PUT, _FAIL, _ANSWERED)  # an answer is set aside before it is replaced
_GATHER_S = 0.002  # committing one answer takes about six times its share in a commit of many
_CHECKPOINT_AFTER = 1000  # rows
KEPT = 32 * 1024  # largest size in bytes of a call's messages that the store keeps by default


@dataclass(frozen=True)
class CallOrigin:
    """The origin of a reply: role, spec and requested name, the model that the server names (`reference`: the same, if later
    answers must have it), the number of the try, and the hash of the messages as sent (`messages`: None if not kept)."""

    role: str | None = None
    spec: str | None = None
    served: str | None = None
    model: str | None = None
    reference: str | None = None
    attempt: int | None = None
    prompt: str | None = None
    messages: bytes | None = None

    @classmethod
    def of(cls, spec: ModelSpec, role: str, body: dict[str, Any], model: str | None, attempt: int, most: int) -> CallOrigin:
        """The origin of a reply to `body`, with the messages if they have at most `most` bytes."""
        sent = orjson.dumps(body["messages"])
        prompt, messages = hashlib.sha256(sent).hexdigest(), sent if len(sent) <= most else None
        reference = None if spec.endpoint.any_model else model
        return cls(role, spec.name, body["model"], model, reference, attempt, prompt, messages)


def model_problem(models: dict[tuple[str, str], str], spec: ModelSpec, served: str, named: str | None) -> str | None:
    """What is wrong with an answer that names this model; None if it is right or the server names none. A run must have the
    same model from start to end: `models` has the names in the first answers, by spec and requested name."""
    if named is None or spec.endpoint.any_model or named == (first := models.setdefault((spec.name, served), named)):
        return None
    remedy = "restore the old model, use another --out, or set endpoint.any_model: true in the spec if they are the same"
    return f"asked for {served!r}, the model {named!r} answered; at the start of this run it was {first!r}: {remedy}"


def system_messages(path: Path) -> dict[str, set[str]]:
    """Role → the system messages in a store, which is only read; {} if it cannot be."""
    query = (
        "SELECT DISTINCT role, json_extract(CAST(messages AS TEXT), '$[0].content') FROM calls JOIN prompts ON prompt = hash "
        "WHERE json_extract(CAST(messages AS TEXT), '$[0].role') = 'system'"
    )
    messages: dict[str, set[str]] = {}
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        for role, text in db.execute(query):
            messages.setdefault(role, set()).add(str(text))
    return messages


class CallStore:
    """Key → reply. `put` returns when the reply is committed, so a kill loses at most the calls in flight.

    Replies that arrive within `_GATHER_S` are committed together (group commit). A commit only appends to the WAL, which the
    system writes to disk later; the checkpoint, which waits for the disk, runs in a thread. WAL with synchronous=NORMAL
    survives the death of this process; only a power failure can lose the last commits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA wal_autocheckpoint=0")
            for table in _TABLES:
                self._db.execute(table)
            for table in ("calls", "replaced"):
                columns = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
                for column in _COLUMNS.split(", "):
                    if column.split()[0] not in columns:
                        self._db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"call store cannot be used: {path}: {_problem(error)}") from None
        self.before_next: Callable[[], None] | None = None  # called before the next answer is stored
        self._waiting: list[tuple[str, tuple[Any, ...]]] = []
        self._commit: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._uncopied = 0  # answers since the last checkpoint
        self.grown = False  # whether a new question was answered since it was opened
        self._failing = set(self.failed_keys())
        self._named = set(self.models())
        self._hashes = self._key_hashes()

    def _key_hashes(self) -> set[int]:
        """Hashes of all keys, which save most lookups."""
        return {hash(key) for (key,) in self._each("SELECT key FROM calls")}

    def get(self, key: str) -> Reply | None:
        """The reply of a finished call, or None."""
        if hash(key) not in self._hashes:
            return None
        try:
            row = self._db.execute("SELECT key, reply, checksum FROM calls WHERE key = ?", (key,)).fetchone()
            return Reply.model_validate_json(self._as_kept(*row)) if row else None
        except ValidationError:
            raise UserError(f"{self.path}: a stored answer is damaged; move the file aside to start afresh") from None
        except sqlite3.Error as error:
            raise UserError(f"call store cannot be read: {self.path}: {_problem(error)}") from None

    def _as_kept(self, key: str, reply: bytes | str, checksum: str | None) -> bytes:
        """A stored reply. Raises `UserError` if it differs from its checksum, which older stores lack."""
        reply = reply.encode() if isinstance(reply, str) else reply  # a string if somebody edited it by hand
        if checksum not in (None, _checksum(key, reply)):
            remedy = f"restore a copy of the file, or DELETE FROM calls WHERE key = '{key}' and run the same command again"
            raise UserError(f"{self.path}: a stored answer was changed later: {remedy}")
        return reply

    def __len__(self) -> int:
        return int(self._rows("SELECT count(*) FROM calls")[0][0])

    @property
    def empty(self) -> bool:
        """Whether there is no finished call; faster than counting them."""
        return not self._rows("SELECT 1 FROM calls LIMIT 1")

    def state(self, time: float) -> str:
        """A hash of all calls that were finished by then. It changes if one is changed, removed or replaced later."""
        state = hashlib.sha256()
        for key, reply, checksum in self._each(
            "SELECT key, reply, checksum FROM calls WHERE ifnull(time, 0) <= ? ORDER BY key", (time,)
        ):
            state.update(f"{_checksum(key, reply.encode() if isinstance(reply, str) else reply)} {checksum} ".encode())
        return state.hexdigest()

    def end_of(self, stage: str) -> tuple[float, str] | None:
        """The last `keep_end` of a stage, or None."""
        rows = self._rows("SELECT time, state FROM ends WHERE stage = ?", (stage,))
        return rows[0] if rows else None

    def keep_end(self, stage: str, time: float, state: str) -> None:
        """Store the time at which a stage ended, and a hash of everything that its records depend on."""
        self._rows("INSERT OR REPLACE INTO ends VALUES (?, ?, ?)", (stage, time, state))

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return list(self._each(query, values))

    def _each(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        try:
            yield from self._db.execute(query, values)
        except sqlite3.Error as error:
            raise UserError(f"call store cannot be read: {self.path}: {_problem(error)}") from None

    def latency(self) -> dict[str, float]:
        """Duration of finished calls in seconds: median, 95th percentile and longest (empty if there are none)."""
        seconds = [row[0] for row in self._db.execute("SELECT seconds FROM calls ORDER BY seconds")]
        places = {"p50": 0.5, "p95": 0.95, "max": 1.0}
        return {name: round(seconds[int(share * (len(seconds) - 1))], 4) for name, share in places.items()} if seconds else {}

    def replies(self) -> Iterator[tuple[str | None, str | None, dict[str, Any]]]:
        """(Role, spec, reply) of every finished call."""
        for role, spec, *stored in self._rows("SELECT role, spec, key, reply, checksum FROM calls"):
            yield role, spec, orjson.loads(self._as_kept(*stored))

    def tokens(self) -> dict[str | None, tuple[int, int, int]]:
        """Spec → (answers, prompt tokens, completion tokens), including replaced answers; None: answers in older stores."""
        sums = (f"ifnull(sum(json_extract(CAST(reply AS TEXT), '$.{name}_tokens')), 0)" for name in ("prompt", "completion"))
        both = "(SELECT spec, reply FROM calls UNION ALL SELECT spec, reply FROM replaced)"
        rows = self._rows(f"SELECT spec, count(*), {', '.join(sums)} FROM {both} GROUP BY spec")
        return {spec: tuple(counts) for spec, *counts in rows}

    def has_answer(self, spec: str, role: str | None = None) -> bool:
        """Whether a model has answered (in a role), or may have: older stores lack the model."""
        query = "SELECT 1 FROM {} WHERE (spec = ? AND role = ifnull(?, role)) OR role IS NULL"
        both = " UNION ALL ".join(map(query.format, ("calls", "replaced")))
        return bool(self._rows(f"{both} LIMIT 1", (spec, role) * 2))

    def models(self) -> dict[tuple[str, str], str]:
        """(Spec, served name) → the model's name in the first answer."""
        return {(spec, served): model for spec, served, model in self._rows("SELECT spec, served, model FROM models")}

    def dialects(self) -> dict[tuple[str, str], dict[str, Any]]:
        """(Spec, served name) → the findings about its server."""
        rows = self._rows("SELECT spec, served, dialect FROM dialects")
        return {(spec, served): orjson.loads(dialect) for spec, served, dialect in rows}

    async def learn(self, spec: str, served: str, dialect: Mapping[str, Any]) -> None:
        """Store the findings about a model's server; returns once they are committed."""
        await self._written(_LEARN, (spec, served, orjson.dumps(dialect)))

    def failed_items(self) -> dict[str, int]:
        """Dialogue (or other item) → number of failures of its calls that are still unanswered."""
        return dict(self._rows("SELECT item, sum(times) FROM failures GROUP BY item"))

    def failed_keys(self) -> dict[str, int]:
        """Key → number of failures of a call that is still unanswered."""
        return dict(self._rows("SELECT key, times FROM failures"))

    def failed(self) -> list[tuple[str, str, str, int]]:
        """Failed calls that are still unanswered: (role, spec, outcome, number)."""
        return self._rows("SELECT role, spec, outcome, count(*) FROM failures GROUP BY 1, 2, 3 ORDER BY 1, 2, 3")

    def asked_again(self) -> list[tuple[str, str, str, int]]:
        """Answers that --retry has replaced: (role, spec, reason, number)."""
        return self._rows("SELECT role, spec, reason, count(*) FROM replaced GROUP BY 1, 2, 3 ORDER BY 1, 2, 3")

    def times_replaced(self, key: str) -> int:
        """How often a call's answer was replaced."""
        return int(self._rows("SELECT count(*) FROM replaced WHERE key = ?", (key,))[0][0])

    async def put(
        self, key: str, reply: Mapping[str, Any], seconds: float, origin: CallOrigin | None = None, instead: str | None = None
    ) -> None:
        """Store a finished call; returns once it is committed. `instead`: why an earlier answer is replaced, and set aside."""
        origin, self.grown = origin or CallOrigin(), self.grown or not instead
        if self.before_next is not None:
            self.before_next()
        if instead:
            self._waiting.append((_SET_ASIDE, (instead, key)))
        if origin.messages is not None:
            self._waiting.append((_PROMPT, (origin.prompt, origin.messages)))
        if origin.reference is not None and (origin.spec, origin.served) not in self._named:
            self._named.add((str(origin.spec), str(origin.served)))
            self._waiting.append((_NAME, (origin.spec, origin.served, origin.reference)))
        if key in self._failing:
            self._failing.remove(key)
            self._waiting.append((_ANSWERED, (key,)))
        self._hashes.add(hash(key))
        stored = orjson.dumps(reply)
        answered = origin.role, origin.spec, origin.model, reply.get("finish_reason"), time.time()
        sent = origin.attempt, origin.prompt
        await self._written(_PUT, (key, stored, seconds, *answered, *sent, _checksum(key, stored)))

    async def fail(self, key: str, item: str, role: str, spec: str, outcome: str, reason: str) -> None:
        """Note a failed call, until it is answered; returns once it is committed."""
        self._failing.add(key)
        await self._written(_FAIL, (key, item, role, spec, outcome, reason))

    async def _written(self, statement: str, values: tuple[Any, ...]) -> None:
        """Commit a statement together with others that are waiting."""
        loop = asyncio.get_running_loop()
        self._waiting.append((statement, values))
        if self._next is None or self._next.get_loop() is not loop:
            self._next = loop.create_future()
        committed = self._next
        if self._commit is None or self._commit.done():
            self._commit = loop.create_task(self._drain())
        await asyncio.shield(committed)

    async def _drain(self) -> None:
        while self._waiting:
            await asyncio.sleep(_GATHER_S)
            batch, self._waiting = self._waiting, []
            done, self._next = self._next, None
            assert done is not None
            try:
                self._write(batch)
                done.set_result(None)
            except (OSError, sqlite3.Error) as error:
                problem = f"call store cannot be written: {self.path}: {_problem(error)}"
                done.set_exception(UserError(f"{problem}; earlier answers are safe: fix this, then run the same command again"))
            self._uncopied += len(batch)
            if self._uncopied >= _CHECKPOINT_AFTER:
                self._uncopied = 0
                await asyncio.to_thread(self._checkpoint)

    def _checkpoint(self) -> None:
        """Copy the WAL into the file, over a separate connection, so that the store can be read meanwhile."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(self.path)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _write(self, batch: list[tuple[str, tuple[Any, ...]]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for statement in _ORDER:
                if rows := [values for queued, values in batch if queued is statement]:
                    self._db.executemany(statement, rows)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite rolls back by itself if the disk is full
                self._db.execute("ROLLBACK")
            raise

    def add_from(self, other: Path) -> None:
        """Add another store's rows; existing ones stay. Raises `UserError` if two models answered to the same name."""
        try:
            self._db.execute("ATTACH ? AS other", (str(other),))
            try:
                foreign = self._db.execute(
                    "SELECT spec, mine.model, theirs.model FROM models mine JOIN other.models theirs USING (spec, served) "
                    "WHERE mine.model <> theirs.model"
                ).fetchone()
                if foreign:
                    spec, mine, theirs = foreign
                    raise UserError(f"{other}: model {spec} answered as {theirs!r} there, as {mine!r} in the other stores")
                for table, more in (("calls", ""), ("replaced", "number, reason, ")):
                    theirs = {row[1] for row in self._db.execute(f"PRAGMA other.table_info({table})")}
                    every = more + ", ".join(name for name in _ALL.split(", ") if name in theirs)
                    self._db.execute(f"INSERT OR IGNORE INTO {table} ({every}) SELECT {every} FROM other.{table}")
                for table in ("prompts", "failures", "models", "dialects"):
                    self._db.execute(f"INSERT OR IGNORE INTO {table} SELECT * FROM other.{table}")
                self._db.execute("DELETE FROM failures WHERE key IN (SELECT key FROM calls)")
                self._failing, self._named, self._hashes = set(self.failed_keys()), set(self.models()), self._key_hashes()
            finally:
                self._db.execute("DETACH other")
        except sqlite3.Error as error:
            raise UserError(f"call store {other} cannot be added to {self.path}: {_problem(error)}") from None

    def close(self) -> None:
        """Close the file; replies whose `put` has not returned may be lost."""
        self._db.close()


def _checksum(key: str, reply: bytes) -> str:
    return hashlib.sha256(key.encode() + reply).hexdigest()[:16]


def _problem(error: Exception) -> str:
    """SQLite's message, with advice if the file itself is damaged (a lock or a full disk is temporary)."""
    damaged = not isinstance(error, OSError | sqlite3.OperationalError)
    return f"{error}{'; move it aside to start afresh' if damaged else ''}"
