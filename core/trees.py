"""Trees of questions: an answer leads to another question or to the end, and adds its points to the outcome.

A tree may have several outcomes instead, as dimensions of their own. Then an answer may give a level of its question's outcome:
of several on the way the worst counts, and where none is given the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import Field, field_validator

from core.records import Language
from core.scales import level_name
from core.settings import Settings

END = "END"
OUTCOME = "outcome"  # the dimension that a tree has beside its questions


class TreeAnswer(Settings):
    """Where an answer leads; written `yes: next_question` where it has no points."""

    goto: str = Field(default=END, coerce_numbers_to_str=True)
    """The next question, or END."""
    points: int | float = Field(default=0, exclude_if=lambda points: points == 0)
    """What it adds to the outcome, in whole or half points. Given to ends alone, they are the ends' values."""
    level: str | None = Field(default=None, exclude_if=lambda level: level is None)
    """The level that the question's outcome has at best from here on, where the rubric has `outcomes`."""
    offered: bool = Field(default=True, exclude_if=lambda offered: offered)
    """Whether the judge is told of it, by methods that read an answer out of free text; else it is understood all the same."""
    not_applicable: bool = Field(default=False, exclude_if=lambda nothing: not nothing)
    """Whether the dialogue has nothing to rate: the end, and no outcome applies."""


class TreeQuestion(Settings):
    """One question of a tree."""

    label: dict[Language, str]
    """Its name in tables."""
    text: dict[Language, str]
    """What is asked."""
    examples: dict[Language, str] = Field(default={}, exclude_if=lambda examples: not examples)
    """What helps to answer it; stands below it."""
    outcome: str = Field(default=OUTCOME, exclude_if=lambda outcome: outcome == OUTCOME)
    """The outcome that its answers bear on, where the rubric has `outcomes`."""
    answers: dict[str, TreeAnswer] = Field(min_length=2)
    """Answer → where it leads."""

    @field_validator("answers", mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {level_name(name): {"goto": to} if isinstance(to, str | int) else to for name, to in given.items()}


Tree = Mapping[str, TreeQuestion]


def tree_faults(tree: Tree, levels: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Everything that keeps a tree from being asked, as `questions.KEY…: what is wrong`. `levels` are those of its outcomes, by
    name, where it has several."""
    for key, question in tree.items():
        if key in (END, OUTCOME, *levels):
            yield f"questions.{key}: the name has a meaning of its own: rename the question"
        if question.outcome not in (levels or (OUTCOME,)):
            known = ", ".join(levels) or "none"
            yield f"questions.{key}.outcome: {question.outcome!r} is not among the rubric's outcomes: {known}"
        for name, answer in question.answers.items():
            if answer.goto not in tree and answer.goto != END:
                yield f"questions.{key}.answers.{name}.goto: no question {answer.goto!r}: write one of {', '.join(tree)}, {END}"
            if answer.level is not None and answer.level not in levels.get(question.outcome, ()):
                yield f"questions.{key}.answers.{name}.level: {answer.level!r} is no level of outcome {question.outcome}"
            if answer.not_applicable and answer.goto != END:
                yield f"questions.{key}.answers.{name}.goto: where nothing is to be rated, it is {END}"
            if answer.points * 2 % 1:
                yield f"questions.{key}.answers.{name}.points: {answer.points} is no whole or half number"
    try:
        last_first = order(tree)
    except CycleError as error:
        yield f"questions: a circle, {' → '.join(reversed(error.args[1]))}: let one of these answers lead elsewhere"
        return
    reached = set(list(tree)[:1])
    for key in reversed(last_first):
        reached |= _leads(tree[key]) if key in reached else set()
    for key in tree:
        if key not in reached:
            yield f"questions.{key}: no answer leads to it from the first question: lead to it or leave it out"
    if lacking := levels.keys() - {question.outcome for question in tree.values()}:
        yield f"outcomes: no question bears on {', '.join(sorted(lacking))}"
    if not levels and len(outcomes(tree)) < 2:
        yield "questions: every way through has the same points: give some answers points, which add up to the outcome"


def _leads(question: TreeQuestion) -> set[str]:
    return {answer.goto for answer in question.answers.values()}


def order(tree: Tree) -> list[str]:
    """The questions of a tree, each after all that it leads to. Raises `CycleError` for a circle."""
    return [*TopologicalSorter({key: _leads(question) & set(tree) for key, question in tree.items()}).static_order()]


def open_outcomes(tree: Tree, key: str) -> set[str]:
    """The outcomes that a question and all that it may lead to bear on."""
    reached = {key}
    for one in reversed(order(tree)):
        reached |= _leads(tree[one]) if one in reached else set()
    return {tree[one].outcome for one in reached & set(tree)}


def longest_way(tree: Tree) -> dict[str, str]:
    """For every question the answer after which most are still to be asked."""
    asked, way = {END: 0}, dict[str, str]()
    for key in order(tree):
        answers = tree[key].answers
        way[key] = max(answers, key=lambda name: asked.get(answers[name].goto, 0))
        asked[key] = 1 + asked.get(answers[way[key]].goto, 0)
    return way


def outcomes(tree: Tree) -> list[float]:
    """The sums of points that ways from the first question to an end have, ascending."""
    sums: dict[str, set[float]] = {END: {0}}
    for key in order(tree):
        sums[key] = {one.points + rest for one in tree[key].answers.values() for rest in sums.get(one.goto, ())}
    return sorted(sums[next(iter(tree))]) if tree else []
