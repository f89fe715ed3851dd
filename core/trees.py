"""Trees of questions: an answer leads to another question or to the end, and adds its points to the outcome. With several
outcomes, an answer may give a level of its question's: the worst on the way counts, or the best of all if none is given."""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import Field, field_validator

from core.records import Language
from core.scales import level_name
from core.settings import Settings

END = "END"
OUTCOME = "outcome"  # a tree's further dimension besides its questions


class TreeAnswer(Settings):
    """Where an answer leads. `yes: next_question` is short for an answer without points."""

    goto: str = Field(default=END, coerce_numbers_to_str=True)
    """The next question, or END."""
    points: int | float = Field(default=0, exclude_if=lambda points: points == 0)
    """Whole or half points added to the outcome. If only final answers have points, these are their values."""
    level: str | None = Field(default=None, exclude_if=lambda level: level is None)
    """The best level that the question's outcome can still have, if the rubric has `outcomes`."""
    offered: bool = Field(default=True, exclude_if=lambda offered: offered)
    """Whether methods that find an answer in free text offer it to the judge. It is understood even if not."""
    not_applicable: bool = Field(default=False, exclude_if=lambda nothing: not nothing)
    """Whether the dialogue has nothing to rate: the tree ends, and no outcome applies."""


class TreeQuestion(Settings):
    """One question of a tree."""

    label: dict[Language, str]
    """Its name in tables."""
    text: dict[Language, str]
    """The question."""
    examples: dict[Language, str] = Field(default={}, exclude_if=lambda examples: not examples)
    """Help for answering it, shown below it."""
    outcome: str = Field(default=OUTCOME, exclude_if=lambda outcome: outcome == OUTCOME)
    """The outcome that its answers contribute to, if the rubric has `outcomes`."""
    answers: dict[str, TreeAnswer] = Field(min_length=2)
    """Answer → where it leads."""

    @field_validator("answers", mode="before")
    @classmethod
    def _short(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        return {level_name(name): {"goto": to} if isinstance(to, str | int) else to for name, to in raw.items()}


Tree = Mapping[str, TreeQuestion]


def tree_faults(tree: Tree, levels: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """All faults of a tree, as `questions.KEY…: what is wrong`. `levels` has those of its several outcomes, by name."""
    for key, question in tree.items():
        if key in (END, OUTCOME, *levels):
            yield f"questions.{key}: this name is reserved: rename the question"
        if question.outcome not in (levels or (OUTCOME,)):
            names = ", ".join(levels) or "none"
            yield f"questions.{key}.outcome: {question.outcome!r} is not among the rubric's outcomes: {names}"
        for name, answer in question.answers.items():
            if answer.goto not in tree and answer.goto != END:
                yield f"questions.{key}.answers.{name}.goto: no question {answer.goto!r}: write one of {', '.join(tree)}, {END}"
            if answer.level is not None and answer.level not in levels.get(question.outcome, ()):
                yield f"questions.{key}.answers.{name}.level: {answer.level!r} is not a level of outcome {question.outcome}"
            if answer.not_applicable and answer.goto != END:
                yield f"questions.{key}.answers.{name}.goto: an answer with not_applicable must lead to {END}"
            if answer.points * 2 % 1:
                yield f"questions.{key}.answers.{name}.points: {answer.points} is not a whole or half number"
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
            yield f"questions.{key}: cannot be reached from the first question: lead to it or leave it out"
    if lacking := levels.keys() - {question.outcome for question in tree.values()}:
        yield f"outcomes: no question contributes to {', '.join(sorted(lacking))}"
    if not levels and len(outcomes(tree)) < 2:
        yield "questions: all paths have the same points: give some answers points, which add up to the outcome"


def _leads(question: TreeQuestion) -> set[str]:
    return {answer.goto for answer in question.answers.values()}


def order(tree: Tree) -> list[str]:
    """The questions of a tree, each after all those that it leads to. Raises `CycleError` for a circle."""
    return [*TopologicalSorter({key: _leads(question) & set(tree) for key, question in tree.items()}).static_order()]


def open_outcomes(tree: Tree, key: str) -> set[str]:
    """The outcomes to which a question, and all questions that it may lead to, contribute."""
    reached = {key}
    for question in reversed(order(tree)):
        reached |= _leads(tree[question]) if question in reached else set()
    return {tree[question].outcome for question in reached & set(tree)}


def longest_way(tree: Tree) -> dict[str, str]:
    """For every question, the answer that most questions may follow."""
    lengths, way = {END: 0}, dict[str, str]()
    for key in order(tree):
        answers = tree[key].answers
        way[key] = max(answers, key=lambda name: lengths.get(answers[name].goto, 0))
        lengths[key] = 1 + lengths.get(answers[way[key]].goto, 0)
    return way


def outcomes(tree: Tree) -> list[float]:
    """The possible sums of points from the first question to an end, ascending."""
    sums: dict[str, set[float]] = {END: {0}}
    for key in order(tree):
        sums[key] = {answer.points + later for answer in tree[key].answers.values() for later in sums.get(answer.goto, ())}
    return sorted(sums[next(iter(tree))]) if tree else []
