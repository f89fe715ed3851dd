"""A profile as a model is told it: plain headed lines, what is not known left out."""

from __future__ import annotations

from collections.abc import Sequence

from core.files import CONFIGS, load_yaml
from core.records import Language
from data_prep.profiles.record import Level, Profile
from data_prep.profiles.vocabulary import load_vocabulary

_LABELS = load_yaml(CONFIGS / "profiles" / "labels.yaml", "labels of profiles")
HEADINGS: dict[Language, dict[str, str]] = _LABELS["headings"]  # also what the builder asks for, line by line
TRAITS: dict[Language, dict[str, str]] = _LABELS["traits"]
LEVELS: dict[Language, dict[Level, str]] = _LABELS["levels"]
_SIMPLE = ("age", "gender", "occupation", "nationality", "relationship", "scenario", "problem", "state", "goals", "roles")


def profile_text(profile: Profile, language: Language, simple: bool = False) -> str:
    """The profile as headed lines with the headings of `language`; its own text stays in the language it was written in.

    `simple` leaves demographics and counselling only: no name, personality, preferences or script ("Simple Profile", section
    4.1.1).
    """
    values = _values(profile, language)
    wanted = [key for key in HEADINGS[language] if values[key] and (key in _SIMPLE or not simple)]
    colon = ": " if language == "en" else "："
    return "\n".join(f"{HEADINGS[language][key]}{colon}{values[key]}" for key in wanted)


def _values(profile: Profile, language: Language) -> dict[str, str]:
    who, likes, case = profile.demographics, profile.preferences, profile.counselling
    return {
        **who.model_dump(include={"name", "gender", "occupation", "nationality", "relationship"}),
        "age": "" if who.age is None else str(who.age),
        "mbti": likes.mbti or "",
        "big_five": _big_five(profile, language),
        "traits": _joined(likes.traits, language),
        "habits": _joined(likes.habits, language),
        "hobbies": _joined(likes.hobbies, language),
        "speech_style": likes.speech_style,
        "scenario": load_vocabulary().label(case.scenario, language) if case.scenario else "",
        "problem": case.problem,
        "state": case.state,
        "goals": _joined(case.goals, language),
        "roles": _joined(case.roles, language),
        "script": profile.scenario,
    }


def _big_five(profile: Profile, language: Language) -> str:
    if profile.preferences.big_five is None:
        return ""
    levels = LEVELS[language]
    scores = profile.preferences.big_five.model_dump()
    pairs = [f"{TRAITS[language][key]} {levels[level]}" for key, level in scores.items()]
    return (", " if language == "en" else "，").join(pairs)


def _joined(items: Sequence[str], language: Language) -> str:
    return ("; " if language == "en" else "；").join(items)
