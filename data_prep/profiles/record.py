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
    """What brings the seeker to a supporter.

    `scenario` is the kind of problem, a key of configs/profiles/scenarios.yaml (null where nobody has said). `state` is the
    emotional state at the start, `goals` are what the seeker wants of the talk (perhaps without saying so), `roles` are the
    other people in the story and how the seeker stands to them.
    """

    problem: Text
    scenario: Annotated[str, Field(pattern=r"^[a-z][a-z_]*$")] | None = None
    state: str = ""
    goals: tuple[Text, ...] = ()
    roles: tuple[Text, ...] = ()


class Profile(Record):
    """One seeker. `scenario` is the script: how this person reacts to different kinds of reply ("" where there is none).

    `source` says where the profile comes from, `source_id` is its id there.
    """

    id: Identifier
    language: Language
    demographics: Demographics
    preferences: Preferences = Preferences()
    counselling: Counselling
    scenario: str = ""
    source: Name = ""
    source_id: Name | None = None
