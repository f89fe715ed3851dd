"""Backups of a study, their restoration, and a participant's withdrawal.

A backup is one closed file. A restore changes nothing before the backup is verified, moves the present database aside, and can
be run again if it was killed between any two steps. Participants who withdrew stay withdrawn if an older backup is restored.
"""

import os
import sqlite3
from contextlib import AbstractContextManager, closing, suppress
from datetime import date
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.errors import UserError, near
from core.files import locked
from evalsuite.people.store import WHOLE, AnswerRow, RaterRow, SessionRow, StudyStore, TaskRow, WithdrawalRow

DATABASE = "study.sqlite"
_RESTORED = "study.sqlite.restored"  # the verified copy, until it replaces the database
_ASIDE = "before-restore-"


class Holding(NamedTuple):
    """The contents of a study's file."""

    name: str
    raters: int
    tasks: int
    answers: int


def in_use(folder: Path) -> AbstractContextManager[None]:
    """Lock a study's folder while its server runs or its file is replaced. Raises `UserError` if another process has it."""
    return locked(folder / ".in-use", f"{folder}: the study")


def holding(file: Path) -> Holding:
    """Verify a closed file and count its contents. Raises `UserError` for one that is damaged or has not exactly one study."""
    try:
        # immutable: SQLite creates no files next to it
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)) as db:
            problems = [row[0] for row in db.execute("PRAGMA integrity_check")]
            if problems != ["ok"]:
                raise UserError(f"{file}: damaged: {problems[0]}")
            names = [row[0] for row in db.execute("SELECT name FROM study")]
            counts = [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("rater", "task", "answer")]
    except (sqlite3.Error, OSError) as error:
        raise UserError(f"{file}: not a readable database of a study: {error}") from None
    if len(names) != 1:
        raise UserError(f"{file}: has {len(names)} studies, expected one: {', '.join(sorted(names)) or 'none'}")
    return Holding(names[0], *counts)


def backup(store: StudyStore, target: Path) -> None:
    """Write the whole database to one closed file, readable only by its owner; the study may be in use (SQLite)."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.touch(0o600)
    try:
        with store.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None, "the connection is open"
            raw.execute("VACUUM INTO ?", (str(temporary),))
        with temporary.open("ab") as handle:
            os.fsync(handle.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def restore(folder: Path, source: Path) -> tuple[Holding, Path | None, list[str]]:
    """Replace a study's database, if there is one, by a backup.

    Returns its contents, the folder that the former database was moved to, and the codes of those who withdrew after the backup
    was made, whose answers were removed from it again.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with in_use(folder):
        target, copy = folder / DATABASE, folder / _RESTORED
        _copy(source, copy)
        asides = sorted(folder.glob(f"{_ASIDE}*/{DATABASE}"), key=lambda path: path.stat().st_mtime)
        withdrawn = _withdrawn(target if target.exists() else asides[-1] if asides else target)
        with closing(StudyStore(f"sqlite:///{copy}", holding(copy).name)) as store:
            again = sorted(withdrawn & {rater.code for rater in store.raters()})
            for code in again:
                withdraw(store, code)
        aside = None
        # The database is moved before its log: without the log it would open, but lack the newest answers.
        for file in (target, *sorted(folder.glob(f"{DATABASE}-*"))):
            if file.exists():
                if aside is None:
                    aside = folder / f"{_ASIDE}{1 + len(list(folder.glob(f'{_ASIDE}*')))}"
                    aside.mkdir(mode=0o700)
                file.rename(aside / file.name)
        copy.replace(target)
    return holding(target), aside, again


def _copy(source: Path, copy: Path) -> None:
    """Make a verified copy of a backup, readable only by its owner. Raises `UserError` for a file that is no study's."""
    for old in copy.parent.glob(f"{copy.name}*"):  # of an interrupted restore
        old.unlink()
    copy.touch(0o600)
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(copy)) as db,
        ):
            original.backup(db)  # includes a log next to the file
            db.execute("PRAGMA journal_mode=DELETE")
        holding(copy)
    except sqlite3.Error as error:
        copy.unlink()
        raise UserError(f"{source}: not a readable database: {error}") from None
    except UserError as error:
        copy.unlink()
        raise UserError(str(error).replace(str(copy), str(source))) from None


def _withdrawn(database: Path) -> set[str]:
    """The codes of those who withdrew; none if the file cannot be read. Its log is merged into it."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return {row[0] for row in db.execute("SELECT code FROM withdrawal")}
    return set()


def withdraw(store: StudyStore, code: str) -> int:
    """Delete a participant's data, also where later rounds show their scores to others, and keep a note that they withdrew;
    returns the number of answers. SQLite overwrites the deleted data with zeros, and its log is emptied."""
    with store.writing() as session:
        rater = session.get(RaterRow, (store.name, code))
        if rater is None:
            codes = session.scalars(select(RaterRow.code).where(RaterRow.study == store.name))
            raise UserError(f"--rater {code}: nobody has this code: {near(code, codes)}")
        tasks = list(session.scalars(select(TaskRow).where(TaskRow.study == store.name, TaskRow.rater == code)))
        for task in tasks:
            if task.purpose == "item":
                _remove_from_later(session, store, task)
        ids = [task.id for task in tasks]
        answers = session.scalar(select(func.count()).select_from(AnswerRow).where(AnswerRow.task.in_(ids))) or 0
        session.execute(delete(TaskRow).where(TaskRow.id.in_(ids)))  # their answers go with them
        session.execute(delete(SessionRow).where(SessionRow.study == store.name, SessionRow.rater == code))
        session.delete(rater)
        session.add(WithdrawalRow(study=store.name, code=code, day=date.today().isoformat()))
    store.clear_deleted()
    return answers


def _remove_from_later(session: Session, store: StudyStore, task: TaskRow) -> None:
    """Remove a participant's scores of an item from the later rounds that show them to others."""
    query = select(AnswerRow.question, AnswerRow.value).where(AnswerRow.task == task.id, AnswerRow.turn == WHOLE)
    scores = {name: value for name, value in session.execute(query)}
    others = select(TaskRow).where(TaskRow.study == store.name, TaskRow.item == task.item, TaskRow.rater != task.rater)
    for other in session.scalars(others):
        shown = other.details.get("given", {})
        for name in shown.keys() & scores.keys():
            if scores[name] in shown[name]:
                remaining = list(shown[name])
                remaining.remove(scores[name])
                shown = shown | {name: remaining}
        if shown:
            other.details = other.details | {"given": shown}


def forget_replies(calls: Path) -> None:
    """Empty the store of supporters' replies, which may repeat what a person said."""
    if not calls.exists():
        return
    with closing(sqlite3.connect(calls, isolation_level=None)) as db:
        for table in ("calls", "replaced", "prompts", "failures"):
            db.execute(f"DELETE FROM {table}")
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
