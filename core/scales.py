"""Scales: whole scores, steps of a half or another size, or levels by name; and how a judge writes and means a score."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from core.records import Language
from core.settings import Settings

NOT_APPLICABLE: Literal["n/a"] = "n/a"
Verdict = float | Literal["n/a"]  # what a judge's answer says: a score, or that there is nothing to score
# What a judge of another language writes; English stands in for those that are not here.
_WORDS = {"zh": {"yes": "是", "no": "否", NOT_APPLICABLE: "不适用"}}
_NOTHING = {"n/a", "na", "not applicable", "不适用"}
MOST_SCORES = 1001  # of a scale: every one is a choice of the judge's
COUNTED = 11  # scores that a table has columns for, and a question buttons
_NUMBER = re.compile(r"(-?[0-9]{1,4}(?:\.[0-9]{1,9})?)(?:\s?(?:/|out of)\s?([0-9]{1,4}))?\s?分?")


class Scale(Settings):
    """Scores from `min` to `max`, both included, or levels by name. `yes_no` is short for the levels no (0) and yes (1)."""

    min: int | float
    max: int | float
    # What a scale of whole scores does not need is left out of dumps: a run folder's config stays as it was.
    step: int | float = Field(default=1, gt=0, exclude_if=lambda step: step == 1)
    """From one score to the next: 0.5 for half points."""
    levels: dict[str, int | float] | None = Field(default=None, exclude_if=lambda levels: levels is None)
    """Level → its number, ascending; a list of levels counts from 0. `min` and `max` follow."""
    least: int | float | None = Field(default=None, exclude_if=lambda least: least is None)
    """The lowest verdict, where points that are taken off may lead below `min`: averages may then be below 0."""

    @model_validator(mode="before")
    @classmethod
    def _of_levels(cls, raw: Any) -> Any:
        raw = {"levels": ["no", "yes"]} if raw == "yes_no" else raw
        if not isinstance(raw, dict) or not isinstance(raw.get("levels"), list | dict):
            return raw
        given = raw["levels"]
        numbers = given if isinstance(given, dict) else {name: place for place, name in enumerate(given)}
        levels = {level_name(name): number for name, number in numbers.items()}
        if len({name.casefold() for name in levels} - _NOTHING) < max(2, len(given)):
            raise ValueError("levels: name two or more, each once; n/a is not a level, but `not_applicable: true`")
        if not all(isinstance(number, int | float) for number in levels.values()):
            raise ValueError("levels: give each level a number, as in {never: 0, often: 2}, or list the names alone")
        if [*levels.values()] != sorted({*levels.values()}):
            raise ValueError("levels: their numbers have to rise from each to the next")
        ends = {"min": min(levels.values()), "max": max(levels.values())}
        if any(raw.get(name, end) != end for name, end in ends.items()):
            raise ValueError(f"levels: their numbers run from {ends['min']} to {ends['max']}: leave min and max out")
        return raw | ends | {"levels": levels}

    def __hash__(self) -> int:  # what differs is told apart by comparison
        return hash((self.min, self.max, self.step))

    def faults(self) -> Iterator[str]:
        """What is wrong with the numbers."""
        if self.min >= self.max:
            yield f"min {self.min} is not below max {self.max}"
        elif self.span / self.step > MOST_SCORES - 1:
            yield f"step {self.step:g}: more than {MOST_SCORES:,} scores from {self.min} to {self.max}"
        elif not self.levels and abs(self.span / self.step - round(self.span / self.step)) > 1e-9:
            yield f"step {self.step:g} does not lead from {self.min} to {self.max}"
        if self.lowest > self.min:
            yield f"least {self.least} is above min {self.min}"
        if min(self.lowest, -self.max) < -1000:  # as records have it
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
        """The lowest verdict that there may be."""
        return self.min if self.least is None else self.least

    @property
    def span(self) -> float:
        """From the lowest to the highest score, in points."""
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
        """Whether scores are whole numbers, each one above the one before."""
        return self.scores == tuple(range(round(self.min), round(self.max) + 1))

    def place(self, score: float) -> float:
        """How many steps above the lowest score, in between as well: what is compared where steps are counted."""
        return score - self.min if self.whole else float(np.interp(score, self.scores, range(len(self.scores))))

    def nearest(self, score: float) -> float:
        """The score of the scale nearest by steps, halves up."""
        return self.scores[math.floor(self.place(score) + 0.5)]

    @property
    def counted(self) -> Scale:
        """The scale that tables count by: of more than `COUNTED` scores, so many evenly spaced ones."""
        return self if len(self.scores) <= COUNTED else Scale(min=self.min, max=self.max, step=self.span / (COUNTED - 1))

    def level(self, score: float) -> str:
        """The score as the rubric has it: a level's name, or the number."""
        return next((name for name, number in (self.levels or {}).items() if number == score), f"{score:g}")

    def name(self, score: float, language: Language = "en") -> str:
        """The score as a judge writes it, and as tables show it."""
        return word(self.level(score), language)

    def read(self, text: str) -> float | None:
        """The score that a text names and nothing else: a level's name in any case, `7`, `7.0`, `7/10`. Of named levels no
        number is one."""
        told = text.strip().casefold()
        if self.levels:
            return next((number for name, number in self.levels.items() if told in spellings(name)), None)
        if not (said := _NUMBER.fullmatch(told)) or (said[2] and float(said[2]) != self.max):
            return None
        return next((score for score in self.scores if score == float(said[1])), None)


def level_name(name: object) -> str:
    """A level's name; YAML reads yes and no as truth values."""
    return {True: "yes", False: "no"}[name] if isinstance(name, bool) else str(name)


def word(name: str, language: Language) -> str:
    """How a judge of the language writes yes, no or that nothing applies; other names as they are."""
    return _WORDS.get(language, {}).get(name, name)


def not_applicable(text: str) -> bool:
    """Whether an answer says that there is nothing to score."""
    return text.strip().casefold() in _NOTHING


def spellings(name: str) -> set[str]:
    """A level's name in all languages, without case."""
    return {name.casefold(), *(words[name] for words in _WORDS.values() if name in words)}
