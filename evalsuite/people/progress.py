"""A study's progress: each rater's tasks, attention checks and repeated items, and agreement so far."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from core.statistics.accuracy import share
from core.tables import Cell, Column, Table
from data_prep.scores.annotation import TOLERATED
from data_prep.scores.annotator_agreement import agreement, agreement_table
from evalsuite.people.export import scores_of
from evalsuite.people.store import Answers, RaterAnswer, StudyStore


def _share(flags: list[bool]) -> Cell:
    return share(sum(flags), len(flags))


@dataclass
class RaterProgress:
    """A rater's progress. Checks and repeats are counted per dimension; nobody is dropped for them."""

    code: str
    label: Annotated[str, Column("rater")]
    """The code, and whether the link is revoked."""
    done: Annotated[int, Column("submitted")] = 0
    begun: Annotated[int, Column("begun")] = 0
    tasks: Annotated[int, Column("tasks")] = 0
    cannot: Annotated[int, Column("cannot judge")] = 0
    checks: Annotated[list[bool], Column("checks %", _share)] = field(default_factory=list)
    """Whether each answer to an attention check is within a point of the expected score."""
    repeats: Annotated[list[bool], Column("repeats %", _share)] = field(default_factory=list)
    """Whether each answer to a repeated item is the same as before (scores: within a point)."""


@dataclass(frozen=True)
class Progress:
    """The study's progress: its raters, and tables of them and of the agreement of scores so far."""

    raters: list[RaterProgress]
    tables: list[Table]


def progress(store: StudyStore) -> Progress:
    """The present progress, from the database."""
    study, answers, tasks = store.study(), store.answers(), store.tasks()
    raters = {row.code: RaterProgress(row.code, row.code + " (revoked)" * row.revoked) for row in store.raters()}
    first = {(task.rater, task.item): answers.get(task.id, {}) for task in tasks if task.purpose == "item"}
    for task in tasks:
        rater, given = raters[task.rater], answers.get(task.id, {})
        rater.tasks += 1
        rater.done += task.submitted
        rater.begun += bool(given) and not task.submitted
        rater.cannot += sum(answer.cannot for answer, _ in given.values())
        if task.purpose == "check" and task.submitted:
            for name, expected in study.expected.get(task.item, {}).items():
                value = given[name, None][0].value if (name, None) in given else None
                rater.checks.append(value is not None and abs(value - expected) <= TOLERATED)
        if task.purpose == "repeat" and task.submitted:
            rater.repeats += _alike(first[task.rater, task.item], given)
    note = (
        f"Checks: answers within {TOLERATED} point of the expected score. Repeats: answers to repeated items that are the "
        f"same as before (scores: within {TOLERATED} point). Wilson's 95 % intervals. Exports leave nobody out for them."
    )
    withdrew = [f"{code} withdrew on {day}; their data were deleted." for code, day in store.withdrawals()]
    tables = [Table.of("raters", "Raters", raters.values(), [note, *withdrew])]
    if agreed := agreement(scores_of(store)):
        tables.append(agreement_table(agreed))
    return Progress([*raters.values()], tables)


def _alike(before: Answers, repeated: Answers) -> Iterator[bool]:
    for key, (answer, _) in repeated.items():
        earlier = before.get(key, (RaterAnswer(), 0))[0]
        if answer.value is not None and earlier.value is not None:
            yield abs(answer.value - earlier.value) <= TOLERATED
        elif answer.choice is not None and earlier.choice is not None:
            yield answer.choice == earlier.choice
