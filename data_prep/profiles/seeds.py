"""Seeds of profiles: what a person wrote in a questionnaire before a talk (EmoHarbor appendices A, B and I), or a role card."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from core.files import check_unique, read_jsonl
from core.records import Identifier, Language, Record, RoleCard
from data_prep.profiles.record import HEADINGS, BigFive, Counselling, Demographics, Mbti, Preferences, Profile, Text

QUESTIONNAIRE, ROLE_CARD = "questionnaire", "role card"


class Seed(Record):
    """One filled-in questionnaire; what was not answered is left out.

    `age` is in years, or a stage of life in words. `interests` are hobbies, `topic` is a key of
    configs/profiles/scenarios.yaml, `problem` is what the person wants to talk about and `wishes` what they hope to get from
    it, in their own words. `mbti` and `big_five` are results of tests that were taken, if any.
    """

    id: Identifier
    language: Language
    age: str = ""
    gender: str = ""
    occupation: str = ""
    nationality: str = ""
    relationship: str = ""
    interests: tuple[Text, ...] = ()
    mbti: Mbti | None = None
    big_five: BigFive | None = None
    topic: Annotated[str, Field(pattern=r"^[a-z][a-z_]*$")] | None = None
    problem: Text
    wishes: str = ""
    source: str = QUESTIONNAIRE


def load_seeds(path: Path) -> list[Seed]:
    """Filled-in questionnaires from a JSONL file of `Seed`s; `UserError` names file, line and field, and doubled ids."""
    seeds = read_jsonl(path, Seed, "questionnaire file")
    check_unique(path, (seed.id for seed in seeds), "seed ids")
    return seeds


def seed_of_card(card: RoleCard) -> Seed:
    """A role card as a seed: it knows nothing of preferences."""
    fields = card.model_dump(include={"id", "language", "age", "gender", "occupation", "problem"})
    return Seed(**fields, source=ROLE_CARD)


def seed_text(seed: Seed) -> str:
    """What the person said of themselves, as headed lines; the first step reads it, later ones read the profile."""
    names, colon = HEADINGS[seed.language], ": " if seed.language == "en" else "："
    keys = ("age", "gender", "occupation", "nationality", "relationship", "problem")
    return "\n".join(f"{names[key]}{colon}{getattr(seed, key)}" for key in keys if getattr(seed, key))


def draft(seed: Seed) -> Profile:
    """The profile as far as the seed goes."""
    return Profile(
        id=seed.id,
        language=seed.language,
        demographics=Demographics(
            age=years(seed.age),
            **seed.model_dump(include={"gender", "occupation", "nationality", "relationship"}),
        ),
        preferences=Preferences(mbti=seed.mbti, big_five=seed.big_five, hobbies=seed.interests),
        counselling=Counselling(problem=seed.problem, scenario=seed.topic, goals=(seed.wishes,) if seed.wishes else ()),
        source=seed.source,
        source_id=seed.id,
    )


def years(text: str) -> int | None:
    """An age in years where a text gives a number and nothing else but a unit ("34", "34岁", "34 years old"); else None."""
    number = re.fullmatch(r"\s*(\d{1,3})\s*(?:岁|years?(?: old)?)?\s*\.?", text)
    return int(number[1]) if number and 6 <= int(number[1]) <= 110 else None
