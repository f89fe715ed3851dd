"""Profiles that a model builds from seeds, in the four steps of EmoHarbor's appendix B and a fifth in which it reviews them.

1 demographics (nothing that identifies the person), 2 preferences (expanded), 3 counselling (event, state and goals made
concrete), 4 scenario script (reactions to different replies). Every step reads the results of the earlier ones. What a person
stated (age, gender, test results, kind of problem) stays as stated. An unreadable reply becomes an `Unread` with its raw text.
The prompts are in configs/prompts/profiles, in our own words.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from core.files import check_unique, explain, read_jsonl
from core.languages import asked_in, of
from core.ledger import BuildStep
from core.prompts import load_pack
from core.records import Identifier, Language, Name, Record
from data_prep.cards import headed, is_card_file, load_cards
from data_prep.cards.llm import Prompt, Unread, ask
from data_prep.profiles.record import (
    HEADINGS,
    LEVELS,
    TRAITS,
    BigFive,
    Counselling,
    Demographics,
    Mbti,
    Preferences,
    Profile,
    Text,
    load_vocabulary,
    profile_text,
)
from serve.answers import Reply
from serve.batch import Batch

PACK = "profiles"
TEMPERATURE = 0.7
_WORDS = "words of profiles"
REJECTED = "the model's review found it inconsistent"
_TOKENS = 1500  # the longest step at one token per character; specs of simulators and judges allow less
StepName = Literal["demographics", "preferences", "counselling", "script", "review"]
STEPS: tuple[StepName, ...] = ("demographics", "preferences", "counselling", "script", "review")
# Each step's lines and their maximum lengths in characters; None where the answer comes from a closed list.
_LINES: dict[str, dict[str, int | None]] = {
    "demographics": {"name": 30, "age": None, "gender": 30, "occupation": 80, "nationality": 40, "relationship": 60},
    "preferences": {
        "mbti": None,
        **dict.fromkeys(TRAITS["en"]),
        "traits": 200,
        "habits": 300,
        "hobbies": 300,
        "speech_style": 300,
    },
    "counselling": {"scenario": None, "problem": 600, "state": 300, "goals": 400, "roles": 400},
}
_LISTS = frozenset({"traits", "habits", "hobbies", "goals", "roles"})

QUESTIONNAIRE, ROLE_CARD = "questionnaire", "role card"  # where a seed comes from


class Seed(Record):
    """One filled-in questionnaire; fields without an answer are left out. `age` is in years, or a stage of life in words,
    `topic` a key of configs/profiles/scenarios.yaml, `wishes` what the person hopes to get from the talk."""

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
    source: Name = QUESTIONNAIRE


def build(
    seeds: Sequence[Seed], batch: Batch, steps: Mapping[StepName, BuildStep]
) -> tuple[list[Profile], list[Profile], list[Unread]]:
    """(kept, rejected by the review, failed) in the seeds' order; each step asks about all seeds at once, the four steps at
    `TEMPERATURE` and the review greedily. A rerun on the same store asks only what is missing."""
    by_id = {seed.id: seed for seed in seeds}
    drafts = {seed.id: draft(seed) for seed in seeds}
    rejected: list[Profile] = []
    unbuilt: list[Unread] = []
    for name in STEPS:
        before = drafts
        drafts, failed = ask(
            batch,
            {key: prompt(by_id[key], profile, name) for key, profile in before.items()},
            name,
            dict.fromkeys(before, steps[name]),
            lambda key, reply, name=name, before=before: read(by_id[key], before[key], name, reply),  # type: ignore[misc]
            0.0 if name == "review" else TEMPERATURE,
            _TOKENS,
            "seeds",
        )
        rejected += [before[reply.id] for reply in failed if reply.reason == REJECTED]
        unbuilt += [reply for reply in failed if reply.reason != REJECTED]
    return list(drafts.values()), rejected, unbuilt


def prompt(seed: Seed, profile: Profile, step: StepName) -> Prompt:
    """The prompt of one step about a seed, given the profile as the earlier steps left it."""
    language, pack = seed.language, load_pack(PACK)
    data = seed_text(seed) if step == "demographics" else profile_text(profile, language)
    kinds = [scenario.label(language) for scenario in load_vocabulary().scenarios]
    system = pack.render(language, "review_system.j2" if step == "review" else "system.j2")
    text = pack.render(language, f"{step}.j2", data=data, headings=headings(step, language), kinds=kinds)
    # Guided decoding allows the step's lines, bounded so that a weak model stops, too.
    closed = {
        "age": "[1-9][0-9]",
        "mbti": "[EI][SN][TF][JP]",
        "scenario": "(" + "|".join(str(number) for number, _ in enumerate(kinds, start=1)) + ")",
        **dict.fromkeys(TRAITS["en"], "(" + "|".join(of(LEVELS, language, _WORDS).values()) + ")"),
    }
    colon, lines = asked_in(language).colon, []
    for key, heading in headings(step, language).items():
        most = _LINES[step][key]
        lines.append(f"{heading}{colon}" + (closed[key] if most is None else rf"[^\n]{{1,{most}}}"))
    return Prompt(system, text, choices=("0", "1") if step == "review" else None, regex=r"\n".join(lines) or None)


def headings(step: StepName, language: Language) -> dict[str, str]:
    """The line headings of a step by field, in order; empty for steps that are not answered line by line."""
    named = of(HEADINGS, language, _WORDS) | of(TRAITS, language, _WORDS)
    return {key: named[key] for key in _LINES.get(step, {})}


def read(seed: Seed, profile: Profile, step: StepName, reply: Reply) -> Profile | Unread:
    """The profile with what a step's reply adds, or the reason why the reply cannot be used."""
    text = reply.text.strip()
    if reply.finish_reason == "length":
        reason = "cut off"
    elif step == "review":
        if (verdict := text.rstrip(".。")) == "1":
            return profile
        reason = REJECTED if verdict == "0" else "unreadable"
    elif not text:
        reason = "empty"
    else:
        try:
            return _added(seed, profile, step, text)
        except ValueError as error:
            reason = f"unreadable: {explain(error)}"
    return Unread(id=seed.id, step=step, reason=reason, raw=reply.text)


def _added(seed: Seed, profile: Profile, step: StepName, text: str) -> Profile:
    """The profile with what a step's text adds. Raises `ValueError` for a text without the requested lines."""
    language = seed.language
    values = headed(text, {key: (heading,) for key, heading in headings(step, language).items()})
    if empty := [key for key, value in values.items() if not value]:
        raise ValueError(f"{headings(step, language)[empty[0]]}: empty")
    fields: dict[str, Any] = {
        key: [item.strip() for item in re.split(r"[;；]", value) if item.strip()] if key in _LISTS else value
        for key, value in values.items()
    }
    update: dict[str, Any] = {"scenario": text}
    if step == "demographics":
        age = years(seed.age) or years(values["age"])
        if age is None:
            raise ValueError(f"{of(HEADINGS, language, _WORDS)['age']}: no number of years")
        update = {"demographics": {**fields, "age": age, "gender": seed.gender or values["gender"]}}
    elif step == "preferences":
        by_word = {word: level for level, word in of(LEVELS, language, _WORDS).items()}
        traits = {key: by_word.get(word := fields.pop(key), word) for key in TRAITS["en"]}
        big_five = seed.big_five or BigFive.model_validate(traits)
        update = {"preferences": {**fields, "mbti": seed.mbti or values["mbti"], "big_five": big_five.model_dump()}}
    elif step == "counselling":
        keys = load_vocabulary().keys
        number = re.match(r"\d+", values["scenario"])
        if number is None or not 1 <= int(number[0]) <= len(keys):
            raise ValueError(f"{of(HEADINGS, language, _WORDS)['scenario']}: no number from 1 to {len(keys)}")
        update = {"counselling": {**fields, "scenario": seed.topic or keys[int(number[0]) - 1]}}
    return Profile.model_validate(profile.model_dump() | update)


# --- seeds ------------------------------------------------------------------------------------------------------------------
# A questionnaire that a person filled in before a talk (EmoHarbor appendices A, B and I), or a role card.


def load_seeds(path: Path) -> list[Seed]:
    """Seeds from role cards, or from a JSONL file of questionnaires. Raises `UserError` with file, line and field."""
    if is_card_file(path):
        fields = {"id", "language", "age", "gender", "occupation", "problem"}
        return [Seed(**card.model_dump(include=fields), source=ROLE_CARD) for card in load_cards(path)]
    seeds = read_jsonl(path, Seed, "questionnaire file")
    check_unique(path, (seed.id for seed in seeds), "seed ids")
    return seeds


def seed_text(seed: Seed) -> str:
    """The person's own statements as lines with headings, for the first step; later steps read the profile."""
    names, colon = of(HEADINGS, seed.language, _WORDS), asked_in(seed.language).colon
    keys = ("age", "gender", "occupation", "nationality", "relationship", "problem")
    return "\n".join(f"{names[key]}{colon}{getattr(seed, key)}" for key in keys if getattr(seed, key))


def draft(seed: Seed) -> Profile:
    """A profile with what the seed states."""
    return Profile(
        id=seed.id,
        language=seed.language,
        demographics=Demographics(
            age=years(seed.age), **seed.model_dump(include={"gender", "occupation", "nationality", "relationship"})
        ),
        preferences=Preferences(mbti=seed.mbti, big_five=seed.big_five, hobbies=seed.interests),
        counselling=Counselling(problem=seed.problem, scenario=seed.topic, goals=(seed.wishes,) if seed.wishes else ()),
        source=seed.source,
        source_id=seed.id,
    )


def years(text: str) -> int | None:
    """The age in years that a text gives as a number, perhaps with a unit ("34", "34岁", "34 years old"); else None."""
    number = re.fullmatch(r"\s*(\d{1,3})\s*(?:岁|years?(?: old)?)?\s*\.?", text)
    return int(number[1]) if number and 6 <= int(number[1]) <= 110 else None
