"""How far a study is: each rater's progress, attention checks and repeated items, and agreement so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from core.records import HumanScore
from core.statistics.accuracy import share
from core.tables import Table
from data_prep.scores.annotation import TOLERATED
from data_prep.scores.annotator_agreement import agreement, agreement_table
from evalsuite.people.export import scores_of
from evalsuite.people.store import RaterAnswer, StudyStore

Answers = dict[tuple[str, int | None], tuple[RaterAnswer, int]]


@dataclass
class RaterProgress:
    """One rater. Checks and repeats are counted dimension by dimension; nobody is dropped for them."""

    code: str
    tasks: int = 0
    done: int = 0
    begun: int = 0
    cannot: int = 0
    checks: list[bool] = field(default_factory=list)
    """Whether each answer to an attention check is within a point of what was expected."""
    repeats: list[bool] = field(default_factory=list)
    """Whether each repeated answer is the one given first (scores: within a point)."""
    revoked: bool = False


@dataclass(frozen=True)
class Progress:
    """The study."""

    raters: list[RaterProgress]
    scores: list[HumanScore]
    withdrawals: list[tuple[str, str]]
    """(Code, day) of who withdrew; what they gave is gone."""

    def tables(self) -> list[Table]:
        """Raters, and the agreement of scores so far."""
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
            f"Checks: answers within {TOLERATED} point of what was expected. Repeats: answers to repeated items that are as "
            f"before (scores: within {TOLERATED} point). Wilson's 95 % intervals. Nobody is left out of an export for them."
        )
        withdrew = [f"{code} withdrew on {day}; what they gave was deleted." for code, day in self.withdrawals]
        tables = [Table.of("raters", "Raters", rows, [note, *withdrew])]
        rated = agreement(self.scores) if self.scores else []
        return [*tables, *([agreement_table(rated)] if rated else [])]


def progress(store: StudyStore) -> Progress:
    """Read from the database as it is now."""
    study, answers = store.study(), store.answers()
    raters = {row.code: RaterProgress(row.code, revoked=row.revoked) for row in store.raters()}
    tasks = store.tasks()
    first: dict[tuple[str, str], Answers] = defaultdict(dict)
    for task in tasks:
        if task.purpose == "item":
            first[task.rater, task.item] = answers.get(task.id, {})
    for task in tasks:
        one, given = raters[task.rater], answers.get(task.id, {})
        one.tasks += 1
        one.done += task.submitted
        one.begun += bool(given) and not task.submitted
        one.cannot += sum(answer.cannot for answer, _ in given.values())
        if task.purpose == "check" and task.submitted:
            for name, wanted in study.expected.get(task.item, {}).items():
                value = given[name, None][0].value if (name, None) in given else None
                one.checks.append(value is not None and abs(value - wanted) <= TOLERATED)
        if task.purpose == "repeat" and task.submitted:
            one.repeats += _alike(first[task.rater, task.item], given)
    return Progress(list(raters.values()), scores_of(store, submitted_only=True), store.withdrawals())


def _alike(before: Answers, again: Answers) -> Iterator[bool]:
    for key, (answer, _) in again.items():
        earlier = before.get(key, (RaterAnswer(), 0))[0]
        if answer.value is not None and earlier.value is not None:
            yield abs(answer.value - earlier.value) <= TOLERATED
        elif answer.choice is not None and earlier.choice is not None:
            yield answer.choice == earlier.choice
