"""The questionnaire of a recipe for people who talk (EmoHarbor, appendix I): its answers become the profile shown to judges."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, model_validator

from core.languages import of
from core.records import Language
from core.settings import Settings
from data_prep.profiles.build import Seed, draft
from data_prep.profiles.record import TRAITS, BigFive, Profile

Replies = Mapping[str, tuple[float | None, str]]  # question → place on its scale, and words
_IN_WORDS = ("age", "gender", "occupation", "relationship", "interests", "problem", "wishes")


class Ask(Settings):
    """A question, answered on a scale or, without one, in words."""

    text: dict[Language, str]
    """The wording of the question."""
    scale: str | None = None
    """The name of the answer's scale."""
    trait: str | None = None
    """The Big Five trait that agreement indicates."""
    reversed: bool = False
    """Whether agreement indicates the opposite of the trait."""
    optional: bool = False
    """Whether it may be left empty."""


class Questionnaire(Settings):
    """The questions by name, in the order of the page."""

    scales: dict[str, dict[Language, tuple[str, ...]]]
    """Name → the meanings of its places, from 1."""
    person: dict[str, Ask]
    """Once, before the first talk: the profile in words (age, problem, …), and statements on traits."""
    talk: dict[str, Ask] = Field(default={})
    """Before every talk: parts of the profile that may have changed."""
    mood: dict[str, Ask] = Field(default={})
    """Feelings, before and after every talk."""

    @model_validator(mode="after")
    def _whole(self) -> Questionnaire:
        for name, ask in self.named().items():
            if ask.scale not in (None, *self.scales):
                raise ValueError(f"{name}: no scale {ask.scale!r}: expected one of {', '.join(self.scales)}")
            if ask.trait not in (None, *TRAITS["en"]) or (ask.trait and ask.scale is None):
                raise ValueError(f"{name}: trait {ask.trait!r}: give a scale, and one of {', '.join(TRAITS['en'])}")
            if not ask.trait and name.partition(".")[2] not in (*_IN_WORDS, *self.mood):
                raise ValueError(f"{name}: no field of a profile: expected one of {', '.join(_IN_WORDS)}")
        if "problem" not in self.person or self.person["problem"].scale or self.person["problem"].optional:
            raise ValueError("person: ask for the problem, in words: every profile needs one")
        return self

    def named(self) -> dict[str, Ask]:
        """The questions by their names in answers, such as `person.age`, `before.sad` and `after.sad`."""
        groups = {"person": self.person, "before": self.talk | self.mood, "after": self.mood}
        return {f"{group}.{key}": ask for group, asks in groups.items() for key, ask in asks.items()}

    @staticmethod
    def text(ask: Ask, language: Language) -> str:
        """The wording of a question in a language."""
        return of(ask.text, language, "text of a questionnaire")

    def words(self, ask: Ask, language: Language) -> tuple[str, ...]:
        """The meanings of the places of a question's scale."""
        return of(self.scales[ask.scale], language, "scale of a questionnaire") if ask.scale else ()

    def profile(self, id: str, language: Language, replies: Replies) -> Profile:
        """The profile of the person in a talk; their feelings before it are the profile's state."""
        texts = {}
        for name, ask in self.named().items():
            value, text = replies.get(name, (None, ""))
            texts[name] = text.strip() if value is None else self.words(ask, language)[int(value) - 1]
        fields = {key: texts.get(f"before.{key}") or texts.get(f"person.{key}", "") for key in _IN_WORDS}
        interests = tuple(part for part in re.split(r"\s*[,;，；、\n]\s*", fields.pop("interests")) if part)
        feelings = ((ask, texts[f"before.{key}"]) for key, ask in self.mood.items())
        state = "; ".join(f"{self.text(ask, language)}: {feeling}" for ask, feeling in feelings if feeling)
        profile = draft(Seed(id=id, language=language, interests=interests, big_five=self._big_five(replies), **fields))
        return profile.model_copy(update={"counselling": profile.counselling.model_copy(update={"state": state})})

    def _big_five(self, replies: Replies) -> BigFive | None:
        """Each trait by the mean of its statements: low in the lower two fifths of the scale, high in the upper; None if a
        trait has no answer."""
        shares: dict[str, list[float]] = {trait: [] for trait in TRAITS["en"]}
        for key, ask in self.person.items():
            if ask.trait and (value := replies.get(f"person.{key}", (None, ""))[0]) is not None:
                share = (value - 1) / (len(self.words(ask, "en")) - 1)
                shares[ask.trait].append(1 - share if ask.reversed else share)
        means = {trait: sum(values) / len(values) for trait, values in shares.items() if values}
        levels = {trait: "low" if mean < 0.4 else "high" if mean > 0.6 else "middle" for trait, mean in means.items()}
        return BigFive.model_validate(levels) if len(levels) == len(shares) else None
