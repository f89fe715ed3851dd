"""What people who talk tell of themselves: once who they are, before and after a talk how they feel (EmoHarbor, appendix I).

The questions stand in a recipe (configs/people). Their answers become the profile by which a judge sees the person.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, model_validator

from core.languages import of
from core.records import Language
from core.settings import Settings
from data_prep.profiles.build import Seed, draft
from data_prep.profiles.record import TRAITS, BigFive, Profile

Told = Mapping[str, tuple[float | None, str]]  # question → place on its scale, and words
_IN_WORDS = ("age", "gender", "occupation", "relationship", "interests", "problem", "wishes")


class Ask(Settings):
    """A question: answered in words, or on a scale where it has one."""

    text: dict[Language, str]
    """What is asked."""
    scale: str | None = None
    """The scale of the answer, by its name."""
    trait: str | None = None
    """The Big Five trait that agreement speaks for."""
    reversed: bool = False
    """Whether agreement speaks against the trait."""
    optional: bool = False
    """Whether it may be left empty."""


class Questionnaire(Settings):
    """The questions by name, in the order of the page."""

    scales: dict[str, dict[Language, tuple[str, ...]]]
    """Name → what its places mean, from 1."""
    person: dict[str, Ask]
    """Once, before the first talk: words of a profile (age, problem, …), and statements on traits."""
    talk: dict[str, Ask] = Field(default={})
    """Before every talk: words of the profile that are others this time."""
    mood: dict[str, Ask] = Field(default={})
    """Before and after every talk."""

    @model_validator(mode="after")
    def _whole(self) -> Questionnaire:
        for name, ask in self.named().items():
            if ask.scale not in (None, *self.scales):
                raise ValueError(f"{name}: no scale {ask.scale!r}: there are {', '.join(self.scales)}")
            if ask.trait not in (None, *TRAITS["en"]) or (ask.trait and ask.scale is None):
                raise ValueError(f"{name}: trait {ask.trait!r}: give a scale, and one of {', '.join(TRAITS['en'])}")
            if not ask.trait and name.partition(".")[2] not in (*_IN_WORDS, *self.mood):
                raise ValueError(f"{name}: a profile has none of this name, but {', '.join(_IN_WORDS)}")
        if "problem" not in self.person or self.person["problem"].scale or self.person["problem"].optional:
            raise ValueError("person: ask for the problem, in words: no profile is without one")
        return self

    def named(self) -> dict[str, Ask]:
        """The questions by the names that answers have, as `person.age`, `before.sad` and `after.sad`."""
        groups = {"person": self.person, "before": self.talk | self.mood, "after": self.mood}
        return {f"{group}.{key}": ask for group, asks in groups.items() for key, ask in asks.items()}

    @staticmethod
    def text(ask: Ask, language: Language) -> str:
        """What is asked."""
        return of(ask.text, language, "text of a questionnaire")

    def words(self, ask: Ask, language: Language) -> tuple[str, ...]:
        """What the places of a question's scale mean."""
        return of(self.scales[ask.scale], language, "scale of a questionnaire") if ask.scale else ()

    def profile(self, id: str, language: Language, told: Told) -> Profile:
        """The profile of who talks; the feelings before the talk are its state."""
        said = {}
        for name, ask in self.named().items():
            value, text = told.get(name, (None, ""))
            said[name] = text.strip() if value is None else self.words(ask, language)[int(value) - 1]
        known = {key: said.get(f"before.{key}") or said.get(f"person.{key}", "") for key in _IN_WORDS}
        interests = tuple(part for part in re.split(r"\s*[,;，；、\n]\s*", known.pop("interests")) if part)
        feelings = ((ask, said[f"before.{key}"]) for key, ask in self.mood.items())
        state = "; ".join(f"{self.text(ask, language)}: {felt}" for ask, felt in feelings if felt)
        profile = draft(Seed(id=id, language=language, interests=interests, big_five=self._big_five(told), **known))
        return profile.model_copy(update={"counselling": profile.counselling.model_copy(update={"state": state})})

    def _big_five(self, told: Told) -> BigFive | None:
        """The mean of each trait's statements: low in the lower two fifths of the scale, high in the upper; None where a trait
        has no answer."""
        shares: dict[str, list[float]] = {trait: [] for trait in TRAITS["en"]}
        for key, ask in self.person.items():
            if ask.trait and (value := told.get(f"person.{key}", (None, ""))[0]) is not None:
                share = (value - 1) / (len(self.words(ask, "en")) - 1)
                shares[ask.trait].append(1 - share if ask.reversed else share)
        means = {trait: sum(given) / len(given) for trait, given in shares.items() if given}
        levels = {trait: "low" if mean < 0.4 else "high" if mean > 0.6 else "middle" for trait, mean in means.items()}
        return BigFive.model_validate(levels) if len(levels) == len(shares) else None
