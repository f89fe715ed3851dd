"""A profile as a model is told it: plain headed lines, what is not known left out."""

from __future__ import annotations

from collections.abc import Sequence

from core.records import Language
from data_prep.profiles.record import Level, Profile
from data_prep.profiles.vocabulary import load_vocabulary

# Also what the builder asks for, line by line (`profiles.build`).
HEADINGS: dict[Language, dict[str, str]] = {
    "en": {
        "name": "Name",
        "age": "Age",
        "gender": "Gender",
        "occupation": "Occupation",
        "nationality": "Nationality",
        "relationship": "Relationship status",
        "mbti": "MBTI",
        "big_five": "Big Five",
        "traits": "Character",
        "habits": "Habits",
        "hobbies": "Hobbies",
        "speech_style": "Way of speaking",
        "scenario": "Kind of problem",
        "problem": "What happened",
        "state": "Emotional state",
        "goals": "Wants from the talk",
        "roles": "People involved",
        "script": "Reactions to different replies",
    },
    "zh": {
        "name": "称呼",
        "age": "年龄",
        "gender": "性别",
        "occupation": "职业",
        "nationality": "国籍",
        "relationship": "感情状况",
        "mbti": "MBTI",
        "big_five": "大五人格",
        "traits": "性格",
        "habits": "习惯",
        "hobbies": "爱好",
        "speech_style": "说话方式",
        "scenario": "困扰类型",
        "problem": "事情经过",
        "state": "情绪状态",
        "goals": "希望从谈话中得到",
        "roles": "相关的人",
        "script": "对不同回应的反应",
    },
}
TRAITS: dict[Language, dict[str, str]] = {
    "en": {
        "openness": "openness",
        "conscientiousness": "conscientiousness",
        "extraversion": "extraversion",
        "agreeableness": "agreeableness",
        "neuroticism": "neuroticism",
    },
    "zh": {
        "openness": "开放性",
        "conscientiousness": "尽责性",
        "extraversion": "外向性",
        "agreeableness": "宜人性",
        "neuroticism": "神经质",
    },
}
LEVELS: dict[Language, dict[Level, str]] = {
    "en": {"low": "low", "middle": "middle", "high": "high"},
    "zh": {"low": "低", "middle": "中", "high": "高"},
}
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
