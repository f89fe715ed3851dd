"""A study's progress: each rater's tasks, attention checks and repeated items, and agreement so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from core.records import HumanScore
from core.statistics.accuracy import share
from core.tables import Table
from data_prep.scores.annotation import TOLERATED
from data_prep.scores.annotator_agreement import agreement, agreement_table
from evalsuite.people.export import scores_of
from evalsuite.people.store import Answers, RaterAnswer, StudyStore


@dataclass
class RaterProgress:
    """A rater's progress. Checks and repeats are counted per dimension; nobody is dropped for them."""

    code: str
    tasks: int = 0
    done: int = 0
    begun: int = 0
    cannot: int = 0
    checks: list[bool] = field(default_factory=list)
    """Whether each answer to an attention check is within a point of the expected score."""
    repeats: list[bool] = field(default_factory=list)
    """Whether each answer to a repeated item is the same as before (scores: within a point)."""
    revoked: bool = False


@dataclass(frozen=True)
class Progress:
    """The study's progress."""

    raters: list[RaterProgress]
    scores: list[HumanScore]
    withdrawals: list[tuple[str, str]]
    """(Code, day) of those who withdrew; their data are deleted."""

    def tables(self) -> list[Table]:
        """The raters, and the agreement of scores so far."""
        rows = [
            {"rater": rater.code + (" (revoked)" if rater.revoked else ""), "submitted": rater.done, "begun": rater.begun}
            | {"tasks": rater.tasks, "cannot judge": rater.cannot}
            | {
                "checks %": share(sum(rater.checks), len(rater.checks)),
                "repeats %": share(sum(rater.repeats), len(rater.repeats)),
            }
            for rater in self.raters
        ]
        note = (
            f"Checks: answers within {TOLERATED} point of the expected score. Repeats: answers to repeated items that are the "
            f"same as before (scores: within {TOLERATED} point). Wilson's 95 % intervals. Exports leave nobody out for them."
        )
        withdrew = [f"{code} withdrew on {day}; their data were deleted." for code, day in self.withdrawals]
        tables = [Table.of("raters", "Raters", rows, [note, *withdrew])]
        rated = agreement(self.scores) if self.scores else []
        return [*tables, *([agreement_table(rated)] if rated else [])]


def progress(store: StudyStore) -> Progress:
    """The present progress, from the database."""
    study, answers, tasks = store.study(), store.answers(), store.tasks()
    raters = {row.code: RaterProgress(row.code, revoked=row.revoked) for row in store.raters()}
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
    return Progress(list(raters.values()), scores_of(store, submitted_only=True), store.withdrawals())


def _alike(before: Answers, repeated: Answers) -> Iterator[bool]:
    for key, (answer, _) in repeated.items():
        earlier = before.get(key, (RaterAnswer(), 0))[0]
        if answer.value is not None and earlier.value is not None:
            yield abs(answer.value - earlier.value) <= TOLERATED
        elif answer.choice is not None and earlier.choice is not None:
            yield answer.choice == earlier.choice
