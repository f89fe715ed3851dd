"""A study's database. Answers are saved exactly once, never overwritten unseen, never half-written.

SQLite (WAL, every commit on the disk before it is acknowledged) or PostgreSQL, by URL.
"""

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, ClassVar

from sqlalchemy import JSON, ForeignKey, Select, UniqueConstraint, create_engine, delete, event, func, select, update
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from core.errors import UserError, near
from core.records import Language
from evalsuite.people.study import Content, Items, Person, QuestionKey, RaterTask, Study

DAY_S = 86_400
LASTS_S = {"rater": 30 * DAY_S, "organiser": DAY_S}  # of a session; the link opens another
WHOLE = -1  # the turn of an answer about a whole dialogue; NULL would not be unique
BUSY_S = 5  # a writer's longest wait for another


class TableBase(DeclarativeBase):
    type_annotation_map: ClassVar = {dict[str, Any]: JSON, list[Any]: JSON}


class StudyRow(TableBase):
    __tablename__ = "study"
    name: Mapped[str] = mapped_column(primary_key=True)
    definition: Mapped[dict[str, Any]]
    organiser: Mapped[str]  # hash of the organiser's key


class ItemRow(TableBase):
    __tablename__ = "item"
    study: Mapped[str] = mapped_column(ForeignKey("study.name", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    language: Mapped[str]
    content: Mapped[dict[str, Any]]


class RaterRow(TableBase):
    __tablename__ = "rater"
    study: Mapped[str] = mapped_column(ForeignKey("study.name", ondelete="CASCADE"), primary_key=True)
    code: Mapped[str] = mapped_column(primary_key=True)
    link: Mapped[str] = mapped_column(unique=True)  # hash of the link's token
    languages: Mapped[list[Any]]
    interface: Mapped[str]  # the language of the pages
    revoked: Mapped[bool] = mapped_column(default=False)
    consented: Mapped[bool] = mapped_column(default=False)
    reviewer: Mapped[bool] = mapped_column(default=False)

    @property
    def other(self) -> Language:
        """The language to switch to: English, or from there the rater's own (Chinese if that is English)."""
        own = self.languages[0] if self.languages[0] != "en" else "zh"
        return own if self.interface == "en" else "en"


class SessionRow(TableBase):
    __tablename__ = "session"
    cookie: Mapped[str] = mapped_column(primary_key=True)  # hash of it
    study: Mapped[str] = mapped_column(ForeignKey("study.name", ondelete="CASCADE"))
    rater: Mapped[str | None]  # None: the organiser
    csrf: Mapped[str]
    ends: Mapped[float]  # seconds since 1970


class WithdrawalRow(TableBase):  # a participant who withdrew; their data are deleted
    __tablename__ = "withdrawal"
    study: Mapped[str] = mapped_column(ForeignKey("study.name", ondelete="CASCADE"), primary_key=True)
    code: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[str]


class TaskRow(TableBase):
    __tablename__ = "task"
    __table_args__ = (UniqueConstraint("study", "rater", "place"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    study: Mapped[str] = mapped_column(ForeignKey("study.name", ondelete="CASCADE"), index=True)
    rater: Mapped[str] = mapped_column(index=True)
    item: Mapped[str]
    place: Mapped[int]
    order: Mapped[str]
    purpose: Mapped[str]  # item, check, repeat, talk; review, again, joint
    submitted: Mapped[bool] = mapped_column(default=False)
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)  # a talk's supporter and turns; a review's scores


@dataclass(frozen=True)
class RaterAnswer:
    """A rater's answer to one question; `text`: a comment, or an answer in words."""

    value: float | None = None
    choice: str | None = None
    cannot: bool = False
    text: str | None = None


class AnswerRow(TableBase):
    __tablename__ = "answer"
    task: Mapped[int] = mapped_column(ForeignKey("task.id", ondelete="CASCADE"), primary_key=True)
    question: Mapped[str] = mapped_column(primary_key=True)
    turn: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None]
    choice: Mapped[str | None]
    cannot: Mapped[bool] = mapped_column(default=False)
    text: Mapped[str | None]
    version: Mapped[int]

    @property
    def answer(self) -> RaterAnswer:
        return RaterAnswer(self.value, self.choice, self.cannot, self.text)

    @property
    def key(self) -> QuestionKey:
        return self.question, None if self.turn == WHOLE else self.turn


Answers = dict[QuestionKey, tuple[RaterAnswer, int]]  # question → answer and version


class RefusedAnswer(Exception):
    """A refused request: a key of the pages' texts, and a status."""

    def __init__(self, word: str, status: int = 409) -> None:
        super().__init__(word)
        self.word, self.status = word, status


def hashed(token: str) -> str:
    """A secret's form in the database. A plain hash is enough: tokens have 192 bits and cannot be guessed."""
    return hashlib.sha256(token.encode()).hexdigest()


new_token = partial(secrets.token_urlsafe, 24)  # a secret for a link, a cookie or a form


class StudyStore:
    """One study's rows in a database."""

    def __init__(self, url: str, study: str) -> None:
        self.url, self.name = url, study
        self.engine = _engine(url)
        self._writer = self.engine.execution_options(begin="IMMEDIATE")
        # SQLite allows one writer at a time. Those of this process wait here, where the next one starts at once: SQLite's own
        # waiting sleeps for up to a tenth of a second.
        self._turn: AbstractContextManager[Any] = Lock() if self.engine.dialect.name == "sqlite" else nullcontext()
        TableBase.metadata.create_all(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction: all of it is on the disk when the block ends, or nothing."""
        with self._turn, Session(self._writer) as session, session.begin():
            yield session

    # --- the study ----------------------------------------------------------------------------------------------------------

    def create(
        self, study: Study, items: Items, people: Sequence[Person], tasks: Sequence[RaterTask], reviewers: Sequence[Person] = ()
    ) -> tuple[str, dict[str, str]]:
        """Write the study; returns the organiser's key and each rater's and reviewer's token, which are stored nowhere else."""
        key, tokens = new_token(), {person.code: new_token() for person in (*people, *reviewers)}
        with self.writing() as session:
            if session.get(StudyRow, self.name) is not None:
                raise UserError(f"study {self.name} exists already: choose another name, or delete it with `people delete`")
            session.add(StudyRow(name=self.name, definition=study.model_dump(mode="json"), organiser=hashed(key)))
            session.flush()
            for item, content in items:
                shown = content.model_dump(mode="json")
                session.add(ItemRow(study=self.name, id=item.id, language=item.language, content=shown))
            for person in (*people, *reviewers):
                names = {"code": person.code, "languages": list(person.languages), "interface": person.languages[0]}
                link = hashed(tokens[person.code])
                session.add(RaterRow(study=self.name, link=link, reviewer=person in reviewers, **names))
            session.add_all(TaskRow(study=self.name, **vars(task) | {"details": dict(task.details)}) for task in tasks)
        return key, tokens

    def study(self) -> Study:
        with Session(self.engine) as session:
            row = session.get(StudyRow, self.name)
            if row is None:
                raise UserError(f"no study {self.name} in {redacted(self.url)}: {near(self.name, self.names())}")
            return Study.model_validate(row.definition)

    def _rows(self, query: Select[Any]) -> list[Any]:
        with Session(self.engine) as session:
            return list(session.scalars(query))

    def names(self) -> list[str]:
        """The names of all studies in the database."""
        return self._rows(select(StudyRow.name).order_by(StudyRow.name))

    def withdrawals(self) -> list[WithdrawalRow]:
        return self._rows(select(WithdrawalRow).where(WithdrawalRow.study == self.name).order_by(WithdrawalRow.code))

    def contents(self) -> dict[str, Content]:
        """Item → its content."""
        rows = self._rows(select(ItemRow).where(ItemRow.study == self.name).order_by(ItemRow.id))
        return {row.id: Content.model_validate(row.content) for row in rows}

    def delete(self) -> None:
        """Delete the study with all data of its raters."""
        with self.writing() as session:
            session.execute(delete(StudyRow).where(StudyRow.name == self.name))  # every other row goes with it

    def clear_deleted(self) -> None:
        """Free the space of deleted data, also in SQLite's log. Raises `UserError` while others use the log."""
        if self.engine.dialect.name != "sqlite":
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM FULL")
            return
        with self._turn, closing(self.engine.raw_connection()) as raw:
            cursor = raw.cursor()
            cursor.execute("VACUUM")
            busy, *_ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise UserError(f"{self.name}: deleted, but the data are still in the log while the study is read: stop the server")

    # --- sessions and raters ------------------------------------------------------------------------------------------------

    def enter(self, token: str) -> str | None:
        """The cookie of a new session for a link's token or the organiser's key; None for an invalid one."""
        cookie, link, now = new_token(), hashed(token), time.time()
        with self.writing() as session:
            session.execute(delete(SessionRow).where(SessionRow.ends < now))
            study = session.get(StudyRow, self.name)
            query = select(RaterRow).where(RaterRow.study == self.name, RaterRow.link == link, RaterRow.revoked.is_(False))
            rater = session.scalar(query)
            organises = study is not None and secrets.compare_digest(study.organiser, link)
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
        """A cookie's session and rater; None for a cookie that is unknown, expired, of another study or of a revoked link."""
        with Session(self.engine) as session:
            row = session.get(SessionRow, hashed(cookie))
            if row is None or row.study != self.name or row.ends < time.time():
                return None
            if row.rater is None:
                return row, None
            rater = session.get(RaterRow, (self.name, row.rater))
            return None if rater is None or rater.revoked else (row, rater)

    def raters(self) -> list[RaterRow]:
        return self._rows(select(RaterRow).where(RaterRow.study == self.name).order_by(RaterRow.code))

    def new_link(self, code: str) -> str:
        """A rater's new token; the old link and its sessions end."""
        token = new_token()
        self.set_rater(code, ended=True, link=hashed(token), revoked=False)
        return token

    def set_rater(self, code: str, ended: bool = False, **fields: Any) -> None:
        """Change fields of a rater's row and, if `ended`, end their sessions."""
        with self.writing() as session:
            rater = session.get(RaterRow, (self.name, code))
            if rater is None:
                raise RefusedAnswer("no_rater", 404)
            for name, value in fields.items():
                setattr(rater, name, value)
            if ended:
                session.execute(delete(SessionRow).where(SessionRow.study == self.name, SessionRow.rater == code))

    # --- tasks and answers --------------------------------------------------------------------------------------------------

    def tasks(self, rater: str | None = None) -> list[TaskRow]:
        query = select(TaskRow).where(TaskRow.study == self.name).order_by(TaskRow.rater, TaskRow.place)
        return self._rows(query if rater is None else query.where(TaskRow.rater == rater))

    def task(self, id: int, rater: str) -> TaskRow:
        """A rater's own task. Raises `RefusedAnswer` for another rater's, as if it did not exist."""
        with Session(self.engine) as session:
            return self._own(session, id, rater)

    def answers(self, tasks: Sequence[int] | None = None) -> dict[int, Answers]:
        """Task → answers; of these tasks, or of all in the study."""
        query = select(AnswerRow).join(TaskRow, TaskRow.id == AnswerRow.task).where(TaskRow.study == self.name)
        by_task: dict[int, Answers] = {}
        for row in self._rows(query if tasks is None else query.where(AnswerRow.task.in_(tasks))):
            by_task.setdefault(row.task, {})[row.key] = (row.answer, row.version)
        return by_task

    def save(
        self, task: int, rater: str, question: str, turn: int | None, answer: RaterAnswer, version: int
    ) -> tuple[RaterAnswer, int]:
        """Save an answer in place of `version` (0: none yet); returns the answer that now stands, which is another one if
        another tab saved it meanwhile, and its version. Raises `RefusedAnswer` for another rater's task and for a submitted
        one."""
        with suppress(IntegrityError), self.writing() as session:
            own = self._own(session, task, rater, locked=True)
            place = WHOLE if turn is None else turn
            row = session.get(AnswerRow, (task, question, place))
            stored, present = (RaterAnswer(), 0) if row is None else (row.answer, row.version)
            if row is not None and stored == answer:
                return stored, present
            if own.submitted:
                raise RefusedAnswer("submitted")
            if present != version:
                return stored, present
            session.merge(AnswerRow(task=task, question=question, turn=place, version=version + 1, **vars(answer)))
            session.flush()
            return answer, version + 1
        return self.save(task, rater, question, turn, answer, version)  # two tabs saved the first answer; the other one won

    def _own(self, session: Session, id: int, rater: str, locked: bool = False) -> TaskRow:
        """A rater's own task, if `locked`, until this transaction ends (SQLite has one writer at a time anyway)."""
        task = session.get(TaskRow, id, with_for_update=locked) if 0 <= id < 2**31 else None
        if task is None or (task.study, task.rater) != (self.name, rater):
            raise RefusedAnswer("no_task", 404)
        return task

    def submit(self, id: int, rater: str, required: Sequence[QuestionKey]) -> list[QuestionKey]:
        """Close a task to changes, unless answers to required questions are missing, which are returned."""
        with self.writing() as session:
            task = self._own(session, id, rater, locked=True)
            rows = session.scalars(select(AnswerRow).where(AnswerRow.task == id))
            given = {row.key for row in rows if row.answer not in (RaterAnswer(), RaterAnswer(text=""))}
            missing = [key for key in required if key not in given]
            if not missing:
                task.submitted = True
            return missing

    def add_tasks(self, tasks: Sequence[tuple[str, str, str, dict[str, Any]]]) -> None:
        """Add (purpose, rater, item, details) of later rounds, each once."""
        with self.writing() as session:
            session.get(StudyRow, self.name, with_for_update=True)  # a lock: two raters may open their pages at once
            in_study = TaskRow.study == self.name
            rows = session.execute(select(TaskRow.purpose, TaskRow.item, TaskRow.rater).where(in_study))
            present = {(purpose, item, rater) for purpose, item, rater in rows}
            items = {(purpose, item) for purpose, item, _ in present}  # reviews and joint tasks have one rater per item
            for purpose, rater, item, details in tasks:
                if (purpose, item, rater) in present if purpose == "again" else (purpose, item) in items:
                    continue
                place = session.scalar(select(func.max(TaskRow.place)).where(in_study, TaskRow.rater == rater))
                fields = {"rater": rater, "item": item, "place": 0 if place is None else place + 1, "order": "ab"}
                session.add(TaskRow(study=self.name, purpose=purpose, details=details, **fields))
                session.flush()

    def set_details(self, id: int, details: dict[str, Any]) -> None:
        with self.writing() as session:
            session.execute(update(TaskRow).where(TaskRow.id == id, TaskRow.study == self.name).values(details=details))


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url, pool_size=10, max_overflow=20, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_S, "check_same_thread": False}, pool_size=20, max_overflow=40)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions are begun by `_begun`
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA busy_timeout={BUSY_S * 1000}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Any) -> None:
        # Writers begin with IMMEDIATE: SQLite fails at once, without waiting, if a reader turns into a writer.
        connection.exec_driver_sql("BEGIN " + connection.get_execution_options().get("begin", "DEFERRED"))

    return engine


def redacted(url: str) -> str:
    """A database's URL without its password."""
    return make_url(url).render_as_string(hide_password=True)
