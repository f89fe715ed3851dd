"""Finished model calls of a run, in one SQLite file. What is in it is never asked, or paid for, again."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import orjson

from serve.errors import UserError

_SCHEMA = "CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, reply BLOB NOT NULL, seconds REAL NOT NULL) WITHOUT ROWID"


class Store:
    """Key → reply. `put` returns when the reply is on disk, so a kill loses at most the calls in flight.

    Replies that arrive while a commit is under way are committed together (group commit), in a thread of their own.
    WAL with synchronous=NORMAL survives the death of this process; only a power cut can lose the last commits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"call store cannot be used: {path}: {_problem(error)}") from None
        self._waiting: list[tuple[str, bytes, float]] = []
        self._commit: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None

    def get(self, key: str) -> dict[str, Any] | None:
        """The reply of a finished call, or None."""
        try:
            row = self._db.execute("SELECT reply FROM calls WHERE key = ?", (key,)).fetchone()
            return orjson.loads(row[0]) if row else None
        except (sqlite3.Error, orjson.JSONDecodeError) as error:
            raise UserError(f"call store cannot be read: {self.path}: {_problem(error)}") from None

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM calls").fetchone()[0])

    def latency(self) -> dict[str, float]:
        """Seconds a finished call took: median, 95th percentile and longest (empty when there is none)."""
        seconds = [row[0] for row in self._db.execute("SELECT seconds FROM calls ORDER BY seconds")]
        places = {"p50": 0.5, "p95": 0.95, "max": 1.0}
        return {name: round(seconds[int(share * (len(seconds) - 1))], 4) for name, share in places.items()} if seconds else {}

    async def put(self, key: str, reply: dict[str, Any], seconds: float) -> None:
        """Keep a finished call; returns once it is committed."""
        loop = asyncio.get_running_loop()
        self._waiting.append((key, orjson.dumps(reply), seconds))
        if self._next is None:
            self._next = loop.create_future()
        committed = self._next
        if self._commit is None or self._commit.done():
            self._commit = loop.create_task(self._drain())
        await asyncio.shield(committed)

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            done, self._next = self._next, None
            assert done is not None
            try:
                await asyncio.to_thread(self._write, batch)
                done.set_result(None)
            except (OSError, sqlite3.Error) as error:
                done.set_exception(
                    UserError(
                        f"call store cannot be written: {self.path}: {_problem(error)}; what was answered before is safe: "
                        "run the same command again when this is mended"
                    )
                )

    def _write(self, batch: list[tuple[str, bytes, float]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)", batch)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite has rolled back by itself where the disk was full
                self._db.execute("ROLLBACK")
            raise

    def add_from(self, other: Path) -> None:
        """Take over the finished calls of another store; what is here already stays as it is."""
        try:
            self._db.execute("ATTACH ? AS other", (str(other),))
            try:
                self._db.execute("INSERT OR IGNORE INTO calls SELECT key, reply, seconds FROM other.calls")
            finally:
                self._db.execute("DETACH other")
        except sqlite3.Error as error:
            raise UserError(f"call store {other} cannot be added to {self.path}: {_problem(error)}") from None

    def close(self) -> None:
        """Close the file; replies whose `put` has not returned may be lost."""
        self._db.close()


def _problem(error: Exception) -> str:
    """What SQLite says, and what to do where the file itself is damaged (a lock or a full disk passes)."""
    damaged = not isinstance(error, OSError | sqlite3.OperationalError)
    return f"{error}{'; move it aside to start afresh' if damaged else ''}"
