"""Checks of profiles without a model: missing fields, contradictions, repetitions."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from core.errors import near
from core.languages import PAPER_LANGUAGES
from core.tables import Cell, Table
from data_prep.profiles.record import Profile
from data_prep.profiles.vocabulary import Vocabulary
from data_prep.role_play.repeats import near_duplicates

Kind = Literal["wrong", "look", "missing"]
REPEATS = 0.7  # shingle Jaccard from which a text counts as a rewording of another; below it, the search misses some
_HAN = re.compile(r"[一-鿿]")
_AGAINST = {"E": "low", "I": "high"}  # the level of extraversion that speaks against a type


@dataclass(frozen=True)
class ProfileFinding:
    """A finding about one profile: `wrong` must be fixed, `look` is for a person to judge, `missing` is an empty field."""

    profile_id: str
    kind: Kind
    field: str
    problem: str


def check_profiles(profiles: Sequence[Profile], vocabulary: Vocabulary) -> list[ProfileFinding]:
    """All findings, profile by profile in their order; texts are compared with earlier ones in the same language."""
    findings = [ProfileFinding(profile.id, *problem) for profile in profiles for problem in _alone(profile, vocabulary)]
    for name in ("counselling.problem", "scenario"):
        for language in sorted({profile.language for profile in profiles}):
            texts = [
                (profile.id, text)
                for profile in profiles
                if profile.language == language
                and (text := profile.scenario if name == "scenario" else profile.counselling.problem)
            ]
            earlier_places = near_duplicates([text for _, text in texts], REPEATS)
            for (key, _), earlier in zip(texts, earlier_places, strict=True):
                if earlier is not None:
                    findings.append(ProfileFinding(key, "look", name, f"nearly repeats that of {texts[earlier][0]}"))
    order = {profile.id: place for place, profile in enumerate(profiles)}
    return sorted(findings, key=lambda finding: order[finding.profile_id])


def table(findings: Sequence[ProfileFinding], profiles: int) -> Table:
    """Wrong and doubtful fields in a row each, and counts of missing ones."""
    rows: list[tuple[Cell, ...]] = [(f.profile_id, f.kind, f.field, f.problem) for f in findings if f.kind != "missing"]
    missing = Counter(finding.field for finding in findings if finding.kind == "missing")
    rows += [("", "missing", field, f"empty in {count} of {profiles} profiles") for field, count in missing.items()]
    notes = ("wrong: fix it. look: breaks a rule of thumb, a person decides. missing: the model is not told it.",)
    return Table("profile-findings", f"{profiles} profiles checked", ("Profile", "", "Field", "Finding"), tuple(rows), notes)


def _alone(profile: Profile, vocabulary: Vocabulary) -> Iterator[tuple[Kind, str, str]]:
    """The findings about a profile by itself: kind, field and problem."""
    person, likes, case = profile.demographics, profile.preferences, profile.counselling
    parts = profile.model_dump(include={"demographics", "preferences", "counselling"})
    fields = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    for name, value in {**fields, "scenario": profile.scenario}.items():  # the parts of equation 1, which has no name
        if value in (None, "", ()) and name != "demographics.name":
            yield "missing", name, "empty"
    if case.scenario and case.scenario not in vocabulary.keys:
        yield "wrong", "counselling.scenario", f"unknown {case.scenario!r}: {near(case.scenario, vocabulary.keys)}"
    if profile.language in PAPER_LANGUAGES and (profile.language == "zh") != bool(_HAN.search(case.problem)):
        yield "wrong", "counselling.problem", f"not in the profile's language, {profile.language}"
    if likes.mbti and likes.big_five and _AGAINST[likes.mbti[0]] == likes.big_five.extraversion:
        yield "look", "preferences.mbti", f"{likes.mbti}, yet extraversion is {likes.big_five.extraversion}"
    if person.age is None:
        return
    if vocabulary.age_group(person.age) is None:
        yield "look", "demographics.age", f"{person.age} is in no age group"
    for occupation in vocabulary.occupations:
        named = any(word.search(person.occupation) for word in occupation.words)
        if named and not occupation.youngest <= person.age <= occupation.oldest:
            expected = f"expected at {occupation.youngest} to {occupation.oldest}"
            yield "look", "demographics.occupation", f"{person.occupation!r} at {person.age} ({expected})"
    for scenario in vocabulary.scenarios:
        if scenario.key == case.scenario and person.age < scenario.youngest:
            yield "look", "counselling.scenario", f"{scenario.key} at {person.age} (expected from {scenario.youngest} on)"
