"""What a study's database holds, and how answers get in: saved once, never overwritten unseen, never half-written.

SQLite (WAL, every commit on the disk before it is acknowledged) or PostgreSQL, by URL.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

from sqlalchemy import create_engine, delete, event, func, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from core.errors import UserError, near
from core.files import digest
from core.records import Dialogue
from evalsuite.people.assignment import Person, RaterTask
from evalsuite.people.study import Content, Items, Study
from evalsuite.people.tables import AnswerRow, ItemRow, RaterRow, SessionRow, StudyRow, TableBase, TaskRow, WithdrawalRow

DAY_S = 86_400
LASTS_S = {"rater": 30 * DAY_S, "organiser": DAY_S}  # of a session; the link opens another
WHOLE = -1  # the turn of an answer about a whole dialogue: NULLs are not unique
BUSY_S = 5  # how long a writer waits for another one


@dataclass(frozen=True)
class RaterAnswer:
    """What a rater says to one question; `text` is the comment."""

    value: float | None = None
    choice: str | None = None
    cannot: bool = False
    text: str | None = None

    @property
    def empty(self) -> bool:
        return self.value is None and self.choice is None and not self.cannot and not self.text


class Conflict(Exception):
    """The answer was changed in another tab: what it says now, and its version."""

    def __init__(self, answer: RaterAnswer, version: int) -> None:
        super().__init__("changed elsewhere")
        self.answer, self.version = answer, version


class RefusedAnswer(Exception):
    """What cannot be done: a word for the page's texts, and a status."""

    def __init__(self, word: str, status: int = 409) -> None:
        super().__init__(word)
        self.word, self.status = word, status


def trouble(error: SQLAlchemyError) -> RefusedAnswer:
    """What a rater is told when the database fails; nothing of the answer was written."""
    said = str(getattr(error, "orig", error)).lower()
    if "locked" in said or "busy" in said or "deadlock" in said:
        return RefusedAnswer("database_busy", 503)
    if "full" in said or "no space" in said or "i/o error" in said or "readonly" in said or "read-only" in said:
        return RefusedAnswer("disk_full", 507)
    return RefusedAnswer("database_down", 503)


def hashed(token: str) -> str:
    """How a secret stands in the database. Tokens have 192 bits: a plain hash cannot be searched."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    """A secret for a link, a cookie or a form."""
    return secrets.token_urlsafe(24)


class StudyStore:
    """One study's rows in a database."""

    def __init__(self, url: str, study: str) -> None:
        self.url, self.name = url, study
        self.engine = _engine(url)
        self._writer = self.engine.execution_options(begin="IMMEDIATE")
        # SQLite's writers are one at a time. Those of this process wait here, where the next one wakes at once: SQLite's own
        # waiting sleeps for up to a tenth of a second.
        self._turn: AbstractContextManager[Any] = Lock() if self.engine.dialect.name == "sqlite" else nullcontext()
        TableBase.metadata.create_all(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction: all of it is on the disk when the block ends, or nothing."""
        with self._turn, Session(self._writer) as session, session.begin():
            yield session

    # --- the study ----------------------------------------------------------------------------------------------------------

    def create(
        self, study: Study, items: Items, people: Sequence[Person], tasks: Sequence[RaterTask], reviewers: Sequence[Person] = ()
    ) -> tuple[str, dict[str, str]]:
        """Write the study; returns the organiser's key and each rater's and reviewer's token, which stand nowhere else."""
        key, tokens = new_token(), {person.code: new_token() for person in (*people, *reviewers)}
        with self.writing() as session:
            if session.get(StudyRow, self.name) is not None:
                raise UserError(f"study {self.name} exists already: choose another name, or delete it with `people delete`")
            session.add(StudyRow(name=self.name, definition=study.model_dump(mode="json"), organiser=hashed(key)))
            session.flush()
            for item, content in items:
                session.add(
                    ItemRow(study=self.name, id=item.id, language=item.language, content=content.model_dump(mode="json"))
                )
            for person in (*people, *reviewers):
                fields = {"code": person.code, "link": hashed(tokens[person.code]), "reviewer": person in reviewers}
                reads = {"languages": list(person.languages), "interface": person.languages[0]}
                session.add(RaterRow(study=self.name, revoked=False, consented=False, **fields, **reads))
            session.flush()
            for task in tasks:
                of_task = {"rater": task.rater, "item": task.item, "place": task.place, "order": task.order}
                details = dict(task.details)
                session.add(TaskRow(study=self.name, purpose=task.purpose, details=details, submitted=False, **of_task))
        return key, tokens

    def study(self) -> Study:
        with self.reading() as session:
            row = session.get(StudyRow, self.name)
            if row is None:
                raise UserError(f"no study {self.name} in {redacted(self.url)}: {near(self.name, self.names())}")
            return Study.model_validate(row.definition)

    def names(self) -> list[str]:
        """Of every study in the database."""
        with self.reading() as session:
            return list(session.scalars(select(StudyRow.name).order_by(StudyRow.name)))

    def withdrawals(self) -> list[tuple[str, str]]:
        """(Code, day) of everybody who withdrew."""
        with self.reading() as session:
            query = select(WithdrawalRow.code, WithdrawalRow.day).where(WithdrawalRow.study == self.name)
            return [(code, day) for code, day in session.execute(query.order_by(WithdrawalRow.code))]

    def contents(self) -> dict[str, Content]:
        """Item → what it shows."""
        with self.reading() as session:
            rows = session.scalars(select(ItemRow).where(ItemRow.study == self.name).order_by(ItemRow.id))
            return {row.id: Content.model_validate(row.content) for row in rows}

    def delete(self) -> None:
        """Remove the study with everything that raters gave."""
        with self.writing() as session:
            session.execute(delete(AnswerRow).where(AnswerRow.task.in_(select(TaskRow.id).where(TaskRow.study == self.name))))
            for table in (TaskRow, SessionRow, RaterRow, ItemRow, WithdrawalRow):
                session.execute(delete(table).where(table.study == self.name))
            session.execute(delete(StudyRow).where(StudyRow.name == self.name))

    def clear_deleted(self) -> None:
        """Give back what was deleted: free pages, and SQLite's log. Raises `UserError` while others keep the log busy."""
        if self.engine.dialect.name != "sqlite":
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM FULL")
            return
        with self._turn, closing(self.engine.raw_connection()) as raw:
            cursor = raw.cursor()
            cursor.execute("VACUUM")
            busy, *_ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise UserError(f"{self.name}: deleted, but its log still holds it while the study is read: stop the server")

    # --- who is there -------------------------------------------------------------------------------------------------------

    def enter(self, token: str) -> str | None:
        """The cookie of a new session for a link's token or the organiser's key; None for one that opens nothing."""
        cookie, print_of, now = new_token(), hashed(token), time.time()
        with self.writing() as session:
            session.execute(delete(SessionRow).where(SessionRow.ends < now))
            study = session.get(StudyRow, self.name)
            query = select(RaterRow).where(RaterRow.study == self.name, RaterRow.link == print_of, RaterRow.revoked.is_(False))
            rater = session.scalar(query)
            organises = study is not None and secrets.compare_digest(study.organiser, print_of)
            if rater is None and not organises:
                return None
            code = None if rater is None else rater.code
            ends = now + LASTS_S["organiser" if rater is None else "rater"]
            session.add(SessionRow(cookie=hashed(cookie), study=self.name, rater=code, csrf=new_token(), ends=ends))
        return cookie

    def leave(self, session: SessionRow) -> None:
        """End a session."""
        with self.writing() as writing:
            writing.execute(delete(SessionRow).where(SessionRow.cookie == session.cookie))

    def new_key(self, session: SessionRow) -> str:
        """The organiser's new key; the old one and the organiser's other sessions end."""
        key = new_token()
        with self.writing() as writing:
            writing.execute(update(StudyRow).where(StudyRow.name == self.name).values(organiser=hashed(key)))
            others = (SessionRow.study == self.name, SessionRow.rater.is_(None), SessionRow.cookie != session.cookie)
            writing.execute(delete(SessionRow).where(*others))
        return key

    def session(self, cookie: str) -> tuple[SessionRow, RaterRow | None] | None:
        """Whose cookie this is; None for one that is unknown, has ended, is of another study, or of a revoked link."""
        with self.reading() as session:
            row = session.get(SessionRow, hashed(cookie))
            if row is None or row.study != self.name or row.ends < time.time():
                return None
            if row.rater is None:
                return row, None
            rater = session.get(RaterRow, (self.name, row.rater))
            return None if rater is None or rater.revoked else (row, rater)

    def raters(self) -> list[RaterRow]:
        with self.reading() as session:
            return list(session.scalars(select(RaterRow).where(RaterRow.study == self.name).order_by(RaterRow.code)))

    def new_link(self, code: str) -> str:
        """A rater's new token; the old link and every session of it end."""
        token = new_token()
        with self.writing() as session:
            rater = session.get(RaterRow, (self.name, code))
            if rater is None:
                raise RefusedAnswer("no_rater", 404)
            rater.link, rater.revoked = hashed(token), False
            session.execute(delete(SessionRow).where(SessionRow.study == self.name, SessionRow.rater == code))
        return token

    def revoke(self, code: str) -> None:
        """End a rater's link and sessions; what they gave stays."""
        with self.writing() as session:
            rater = session.get(RaterRow, (self.name, code))
            if rater is None:
                raise RefusedAnswer("no_rater", 404)
            rater.revoked = True
            session.execute(delete(SessionRow).where(SessionRow.study == self.name, SessionRow.rater == code))

    def set_rater(self, code: str, **fields: Any) -> None:
        with self.writing() as session:
            query = update(RaterRow).where(RaterRow.study == self.name, RaterRow.code == code)
            session.execute(query.values(**fields))

    # --- tasks and answers --------------------------------------------------------------------------------------------------

    def tasks(self, rater: str | None = None) -> list[TaskRow]:
        with self.reading() as session:
            query = select(TaskRow).where(TaskRow.study == self.name)
            query = query if rater is None else query.where(TaskRow.rater == rater)
            return list(session.scalars(query.order_by(TaskRow.rater, TaskRow.place)))

    def task(self, id: int, rater: str) -> TaskRow:
        """A rater's own task. Raises `RefusedAnswer` for another's, as if it did not exist."""
        with self.reading() as session:
            task = session.get(TaskRow, id) if 0 <= id < 2**31 else None
            if task is None or (task.study, task.rater) != (self.name, rater):
                raise RefusedAnswer("no_task", 404)
            return task

    def answers(self, tasks: Sequence[int] | None = None) -> dict[int, dict[tuple[str, int | None], tuple[RaterAnswer, int]]]:
        """Task → (question, turn) → answer and version; of all tasks of the study, or of these."""
        with self.reading() as session:
            query = select(AnswerRow).join(TaskRow, TaskRow.id == AnswerRow.task).where(TaskRow.study == self.name)
            query = query if tasks is None else query.where(AnswerRow.task.in_(tasks))
            found: dict[int, dict[tuple[str, int | None], tuple[RaterAnswer, int]]] = {}
            for row in session.scalars(query):
                key = (row.question, None if row.turn == WHOLE else row.turn)
                found.setdefault(row.task, {})[key] = (_answer(row), row.version)
            return found

    def save(self, task: int, rater: str, question: str, turn: int | None, answer: RaterAnswer, version: int) -> int:
        """Save an answer over `version` (0: there is none yet) and return its new version.

        The same answer again changes nothing and returns the version that it has. Raises `Conflict` where another version was
        saved meanwhile, and `RefusedAnswer` for another's task and for one that was submitted.
        """
        try:
            with self.writing() as session:
                return self._save(session, task, rater, question, WHOLE if turn is None else turn, answer, version)
        except IntegrityError:  # both tabs gave the first answer at once: the other one's stands
            with self.writing() as session:
                return self._save(session, task, rater, question, WHOLE if turn is None else turn, answer, version)

    def _own(self, session: Session, id: int, rater: str) -> TaskRow:
        """A rater's own task, which nobody else changes before this transaction ends."""
        task = session.get(TaskRow, id, with_for_update=True)  # SQLite's writers are one at a time anyway
        if task is None or (task.study, task.rater) != (self.name, rater):
            raise RefusedAnswer("no_task", 404)
        return task

    def _save(self, session: Session, id: int, rater: str, question: str, turn: int, answer: RaterAnswer, version: int) -> int:
        task = self._own(session, id, rater)
        row = session.get(AnswerRow, (id, question, turn))
        if row is not None and _answer(row) == answer:
            return row.version
        if task.submitted:
            raise RefusedAnswer("submitted")
        if row is None and version == 0:
            session.add(AnswerRow(task=id, question=question, turn=turn, version=1, **vars(answer)))
            session.flush()
            return 1
        if row is None or row.version != version:
            raise Conflict(RaterAnswer() if row is None else _answer(row), 0 if row is None else row.version)
        for name, value in vars(answer).items():
            setattr(row, name, value)
        row.version += 1
        return row.version

    def submit(self, id: int, rater: str, asked: Sequence[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
        """Close a task to changes; what is still missing, in which case it stays open."""
        with self.writing() as session:
            task = self._own(session, id, rater)
            rows = session.scalars(select(AnswerRow).where(AnswerRow.task == id))
            given = {(row.question, None if row.turn == WHOLE else row.turn) for row in rows if not _answer(row).empty}
            missing = [one for one in asked if one not in given]
            if not missing:
                task.submitted = True
            return missing

    def add_tasks(self, tasks: Sequence[tuple[str, str, str, dict[str, Any]]]) -> int:
        """Add (purpose, rater, item, details) of later rounds, each once; how many were added."""
        added = 0
        with self.writing() as session:
            session.get(StudyRow, self.name, with_for_update=True)  # one at a time: two raters may open their pages at once
            of_study = TaskRow.study == self.name
            rows = session.execute(select(TaskRow.purpose, TaskRow.item, TaskRow.rater).where(of_study))
            known = {(purpose, item, rater) for purpose, item, rater in rows}
            items = {(purpose, item) for purpose, item, _ in known}  # a reviewer's, and a joint one, is one person's
            for purpose, rater, item, details in tasks:
                if (purpose, item, rater) in known if purpose == "again" else (purpose, item) in items:
                    continue
                place = session.scalar(select(func.max(TaskRow.place)).where(of_study, TaskRow.rater == rater))
                fields = {"rater": rater, "item": item, "place": 0 if place is None else place + 1, "order": "ab"}
                session.add(TaskRow(study=self.name, purpose=purpose, details=details, submitted=False, **fields))
                session.flush()
                added += 1
        return added

    def set_details(self, id: int, details: dict[str, Any]) -> None:
        with self.writing() as session:
            session.execute(update(TaskRow).where(TaskRow.id == id, TaskRow.study == self.name).values(details=details))


def _answer(row: AnswerRow) -> RaterAnswer:
    return RaterAnswer(row.value, row.choice, row.cannot, row.text)


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url, pool_size=10, max_overflow=20, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_S, "check_same_thread": False}, pool_size=20, max_overflow=40)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin where `_begun` says so
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA busy_timeout={BUSY_S * 1000}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Any) -> None:
        # A writer that began by reading could not wait for its turn: it takes it at once.
        connection.exec_driver_sql("BEGIN " + connection.get_execution_options().get("begin", "DEFERRED"))

    return engine


def redacted(url: str) -> str:
    """A database's URL without its password."""
    from sqlalchemy.engine import make_url

    return make_url(url).render_as_string(hide_password=True)


def fingerprint(dialogue: Dialogue) -> str:
    """The content of a dialogue: the same id in two files has to mean the same."""
    return digest(dialogue.model_dump(mode="json"))
