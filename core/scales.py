"""Scales: whole scores, steps of a half or another size, or named levels; the judge's spelling of a score; and trees of
questions: an answer leads to another question or to the end, and adds its points to the outcome. With several outcomes, an
answer may give a level of its question's: the worst on the way counts, or the best of all if none is given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from core.records import Language
from core.settings import Settings

NOT_APPLICABLE: Literal["n/a"] = "n/a"
Verdict = float | Literal["n/a"]  # a score, or that there is nothing to score
# A judge's words in other languages, by default the English ones.
_WORDS = {"zh": {"yes": "是", "no": "否", NOT_APPLICABLE: "不适用"}}
_NOTHING = {"n/a", "na", "not applicable", "不适用"}
MOST_SCORES = 1001  # most scores of a scale: each is a choice for the judge
COUNTED = 11  # most scores with a column in tables and a button in forms
_NUMBER = re.compile(r"([+−-]?[0-9]{1,4}(?:\.[0-9]{1,9}|,[0-9]{1,2})?)(?:\s?(?:/|out of)\s?([0-9]{1,4}))?\s?分?")


class Scale(Settings):
    """Scores from `min` to `max`, both included, or levels by name. `yes_no` is short for the levels no (0) and yes (1)."""

    min: int | float
    max: int | float
    # Dumps leave out the defaults of newer fields, so that the configs of older run folders stay the same.
    step: int | float = Field(default=1, gt=0, exclude_if=lambda step: step == 1)
    """The distance between scores: 0.5 for half points."""
    levels: dict[str, int | float] | None = Field(default=None, exclude_if=lambda levels: levels is None)
    """Level → its number, ascending; a list of levels counts from 0. `min` and `max` follow."""
    least: int | float | None = Field(default=None, exclude_if=lambda least: least is None)
    """The lowest verdict, if negative points may lead below `min`: averages may then be below 0."""

    @model_validator(mode="before")
    @classmethod
    def _of_levels(cls, raw: Any) -> Any:
        raw = {"levels": ["no", "yes"]} if raw == "yes_no" else raw
        if not isinstance(raw, dict | Scale):
            raise ValueError(
                "a scale is {min: 1, max: 10}, also with step: 0.5; or yes_no; or {levels: [never, sometimes, often]}"
            )
        if isinstance(raw, Scale) or not isinstance(raw.get("levels"), list | dict):
            return raw
        listed = raw["levels"]
        if isinstance(listed, list) and [*map(level_name, listed)] == ["yes", "no"]:
            raise ValueError(
                "levels: the worst comes first, or the lowest: write yes_no, or {yes: 0, no: 1} if yes counts less"
            )
        numbers = listed if isinstance(listed, dict) else {name: place for place, name in enumerate(listed)}
        levels = {level_name(name): number for name, number in numbers.items()}
        if len({name.casefold() for name in levels} - _NOTHING) < max(2, len(listed)):
            raise ValueError("levels: name two or more, each once; n/a is not a level: write `not_applicable: true`")
        if not all(isinstance(number, int | float) for number in levels.values()):
            raise ValueError("levels: give each level a number, as in {never: 0, often: 2}, or list the names alone")
        if [*levels.values()] != sorted({*levels.values()}):
            raise ValueError("levels: their numbers must be in ascending order")
        ends = {"min": min(levels.values()), "max": max(levels.values())}
        if any(raw.get(name, end) != end for name, end in ends.items()):
            raise ValueError(f"levels: their numbers run from {ends['min']} to {ends['max']}: leave min and max out")
        return raw | ends | {"levels": levels}

    def __hash__(self) -> int:  # equality compares the rest
        return hash((self.min, self.max, self.step))

    def faults(self) -> Iterator[str]:
        """Faults of its numbers."""
        if self.min >= self.max:
            yield f"min {self.min} is not below max {self.max}"
        elif self.span / self.step > MOST_SCORES - 1:
            yield f"step {self.step:g}: more than {MOST_SCORES:,} scores from {self.min} to {self.max}"
        elif not self.levels and abs(self.span / self.step - round(self.span / self.step)) > 1e-9:
            yield f"step {self.step:g} does not lead from {self.min} to {self.max}"
        if self.lowest > self.min:
            yield f"least {self.least} is above min {self.min}"
        if min(self.lowest, -self.max) < -1000:  # the limit of records
            yield "scores go from -1000 to 1000"

    @cached_property
    def scores(self) -> tuple[float, ...]:
        """All scores, ascending; whole ones are integers."""
        if self.levels:
            return tuple(self.levels.values())
        steps = (self.min + place * self.step for place in range(round(self.span / self.step) + 1))
        return tuple(round(score) if abs(score - round(score)) < 1e-9 else round(score, 9) for score in steps)

    @property
    def lowest(self) -> float:
        """The lowest possible verdict."""
        return self.min if self.least is None else self.least

    @property
    def span(self) -> float:
        """The distance from the lowest to the highest score, in points."""
        return self.max - self.min

    @property
    def digits(self) -> bool:
        """Whether every score is one digit."""
        return not self.levels and self.step == 1 and isinstance(self.min, int) and self.min >= 0 and self.max <= 9

    def __str__(self) -> str:
        """For errors and labels: `0 to 4`, `0 to 4 in steps of 0.5`, `never, sometimes, often`."""
        steps = "" if self.step == 1 else f" in steps of {self.step:g}"
        return ", ".join(self.levels) if self.levels else f"{self.min} to {self.max}{steps}"

    @cached_property
    def whole(self) -> bool:
        """Whether scores are consecutive whole numbers."""
        return self.scores == tuple(range(round(self.min), round(self.max) + 1))

    def place(self, score: float) -> float:
        """The number of steps above the lowest score, interpolated between scores."""
        return score - self.min if self.whole else float(np.interp(score, self.scores, range(len(self.scores))))

    def nearest(self, score: float) -> float:
        """The nearest score of the scale, by steps; halves round up."""
        return self.scores[math.floor(self.place(score) + 0.5)]

    @property
    def counted(self) -> Scale:
        """The scale for counts in tables: `COUNTED` evenly spaced scores at most."""
        return self if len(self.scores) <= COUNTED else Scale(min=self.min, max=self.max, step=self.span / (COUNTED - 1))

    def level(self, score: float) -> str:
        """The score in the rubric's spelling: a level's name, or the number."""
        return next((name for name, number in (self.levels or {}).items() if number == score), f"{score:g}")

    def name(self, score: float, language: Language = "en") -> str:
        """The score in the spelling of judges and tables."""
        return word(self.level(score), language)

    def read(self, text: str) -> float | None:
        """The score that a text consists of: a level's name in any case, or else `7`, `7.0` or `7/10`; None for any other."""
        folded = text.strip().casefold()
        if self.levels:
            return next((number for name, number in self.levels.items() if folded in spellings(name)), None)
        if not (match := _NUMBER.fullmatch(folded)) or (match[2] and float(match[2]) != self.max):
            return None
        return next((score for score in self.scores if score == float(match[1].replace("−", "-").replace(",", "."))), None)


def level_name(name: object) -> str:
    """A level's name; true and false are yes and no."""
    return {True: "yes", False: "no"}[name] if isinstance(name, bool) else str(name)


def word(name: str, language: Language) -> str:
    """A judge's word for yes, no or not applicable in the language; other names unchanged."""
    return _WORDS.get(language, {}).get(name, name)


def not_applicable(text: str) -> bool:
    """Whether an answer says that the dimension does not apply."""
    return text.strip().casefold() in _NOTHING


def spellings(name: str) -> set[str]:
    """A level's name in all languages, without case."""
    return {name.casefold(), *(words[name] for words in _WORDS.values() if name in words)}


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
