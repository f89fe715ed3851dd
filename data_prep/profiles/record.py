"""The record of a seeker's profile (EmoHarbor section 2.1, equation 1): demographics, preferences, counselling, script."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from core.records import Identifier, Language, Name, Record, Whole

Level = Literal["low", "middle", "high"]
Text = Annotated[str, Field(min_length=1)]
Mbti = Literal[
    "ISTJ", "ISFJ", "INFJ", "INTJ", "ISTP", "ISFP", "INFP", "INTP",
    "ESTP", "ESFP", "ENFP", "ENTP", "ESTJ", "ESFJ", "ENFJ", "ENTJ",
]  # fmt: skip


class Demographics(Record):
    """What grounds the seeker in a context; "" (and a null age, in years) where nothing is known. `name` is an invented one."""

    age: Annotated[Whole, Field(ge=6, le=110)] | None = None
    gender: str = ""
    occupation: str = ""
    name: str = ""
    nationality: str = ""
    relationship: str = ""


class BigFive(Record):
    """The five traits, each as it would come out of a short questionnaire."""

    openness: Level
    conscientiousness: Level
    extraversion: Level
    agreeableness: Level
    neuroticism: Level


class Preferences(Record):
    """What makes the seeker behave and speak as nobody else does."""

    big_five: BigFive | None = None
    mbti: Mbti | None = None
    traits: tuple[Text, ...] = ()
    habits: tuple[Text, ...] = ()
    hobbies: tuple[Text, ...] = ()
    speech_style: str = ""


class Counselling(Record):
    """What brings the seeker to a supporter."""

    problem: Text
    """The problem itself."""
    scenario: Annotated[str, Field(pattern=r"^[a-z][a-z_]*$")] | None = None
    """The kind of problem, a key of `configs/profiles/scenarios.yaml`; null where nobody has said."""
    state: str = ""
    """The emotional state at the start."""
    goals: tuple[Text, ...] = ()
    """What the seeker wants of the talk, perhaps without saying so."""
    roles: tuple[Text, ...] = ()
    """The other people in the story, and how the seeker stands to them."""


class Profile(Record):
    """One seeker (EmoHarbor)."""

    id: Identifier
    """Unique among the profiles of a run."""
    language: Language
    demographics: Demographics
    """Who the seeker is."""
    preferences: Preferences = Preferences()
    """How the seeker behaves and speaks."""
    counselling: Counselling
    """What brings the seeker."""
    scenario: str = ""
    """The script: how this person reacts to different kinds of reply; empty where there is none."""
    source: Name = ""
    """Where the profile comes from."""
    source_id: Name | None = None
    """Its id there."""
