"""The tables of a study's database."""

from typing import Any, ClassVar

from sqlalchemy import JSON, ForeignKey, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core.records import Language


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


class WithdrawalRow(TableBase):
    """A participant who withdrew; their data are deleted."""

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
