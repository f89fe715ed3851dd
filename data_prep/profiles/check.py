"""Checks of profiles without a model: missing fields, contradictions, repetitions."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from core.errors import near
from core.grouping import group_by
from core.languages import PAPER_LANGUAGES, in_order
from core.tables import Cell, Table
from data_prep.profiles.record import LEVELS, TRAITS, Mbti, Profile, load_vocabulary
from data_prep.role_play.examples import near_duplicates

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


def check_profiles(profiles: Sequence[Profile]) -> list[ProfileFinding]:
    """All findings, profile by profile in their order; texts are compared with earlier ones in the same language."""
    findings = [ProfileFinding(profile.id, *problem) for profile in profiles for problem in _alone(profile)]
    texts: dict[str, Callable[[Profile], str]] = {
        "counselling.problem": lambda profile: profile.counselling.problem,
        "scenario": lambda profile: profile.scenario,
    }
    for name, text_of in texts.items():
        for members in group_by(profiles, lambda profile: profile.language).values():
            told = [profile for profile in members if text_of(profile)]
            for profile, earlier in zip(told, near_duplicates([*map(text_of, told)], REPEATS), strict=True):
                if earlier is not None:
                    problem = f"nearly repeats that of {told[earlier].id}"
                    findings.append(ProfileFinding(profile.id, "look", name, problem))
    order = {profile.id: place for place, profile in enumerate(profiles)}
    return sorted(findings, key=lambda finding: order[finding.profile_id])


def table(findings: Sequence[ProfileFinding], profiles: int) -> Table:
    """Wrong and doubtful fields in a row each, and counts of missing ones."""
    rows: list[tuple[Cell, ...]] = [(f.profile_id, f.kind, f.field, f.problem) for f in findings if f.kind != "missing"]
    missing = Counter(finding.field for finding in findings if finding.kind == "missing")
    rows += [("", "missing", field, f"empty in {count} of {profiles} profiles") for field, count in missing.items()]
    notes = ("wrong: fix it. look: breaks a rule of thumb, a person decides. missing: the model is not told it.",)
    return Table("profile-findings", f"{profiles} profiles checked", ("Profile", "", "Field", "Finding"), tuple(rows), notes)


def _alone(profile: Profile) -> Iterator[tuple[Kind, str, str]]:
    """The findings about a profile by itself: kind, field and problem."""
    person, likes, case, vocabulary = profile.demographics, profile.preferences, profile.counselling, load_vocabulary()
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


# --- who they are -----------------------------------------------------------------------------------------------------------

_NOT_GIVEN = "not given"
# Gender is free text; the plain words of both languages are counted together, all others as they are.
_GENDERS = {"female": ("female", "woman", "女", "女性"), "male": ("male", "man", "男", "男性")}


def tables(profiles: Sequence[Profile]) -> list[Table]:
    """All tables, the summary first, with a row per value; only closed lists have rows for values that nobody has."""
    closed = _closed_lists()
    levels = [profile.preferences.big_five for profile in profiles if profile.preferences.big_five]
    big_five: list[tuple[Cell, ...]] = [
        (name, *(sum(getattr(result, trait) == level for result in levels) for level in LEVELS["en"]))
        for trait, name in TRAITS["en"].items()
    ]
    note = f"{len(profiles) - len(levels)} of {len(profiles)} profiles have no Big Five."
    return [
        _summary(profiles),
        _counted("gender", "Gender (figure 3)", profiles, _gender),
        _counted("age", "Age (figures 3 and 8)", profiles, *closed["age groups"]),
        _counted("mbti", "MBTI (figure 3)", profiles, *closed["MBTI types"]),
        Table("profile-big-five", "Big Five (figure 3)", ("", *LEVELS["en"].values()), tuple(big_five), (note,)),
        _counted("occupation", "Occupations (figure 3)", profiles, lambda profile: profile.demographics.occupation),
        _counted("scenario", "Kinds of problem (figures 4 and 8)", profiles, *closed["kinds of problem"]),
        _counted("nationality", "Nationality (figure 8)", profiles, lambda profile: profile.demographics.nationality),
    ]


def gaps(profiles: Sequence[Profile]) -> Iterator[str]:
    """Age groups, MBTI types and kinds of problem that no profile of a language covers, a line each."""
    by_language = group_by(profiles, lambda profile: profile.language)
    scopes: dict[str, Sequence[Profile]] = {language: by_language[language] for language in in_order(by_language)}
    scopes = {"all": profiles, **scopes} if len(scopes) > 1 else scopes
    for what, (value, wanted) in _closed_lists().items():
        for scope, members in scopes.items():
            values = set(map(value, members))
            if missing := [name for name in wanted if name not in values]:
                yield f"{scope}: no profile with {len(missing)} of {len(wanted)} {what}: {', '.join(missing)}"


def _languages(profiles: Sequence[Profile]) -> list[str]:
    return in_order([*PAPER_LANGUAGES, *(profile.language for profile in profiles)])


def _closed_lists() -> dict[str, tuple[Callable[[Profile], str], Sequence[str]]]:
    """The fields with a fixed list of values: how to get a profile's value ("" for none), and the list."""
    vocabulary = load_vocabulary()

    def age_group(profile: Profile) -> str:
        group = vocabulary.age_group(profile.demographics.age)
        return group.en if group else ""

    return {
        "age groups": (age_group, [group.en for group in vocabulary.age_groups]),
        "MBTI types": (lambda profile: profile.preferences.mbti or "", get_args(Mbti)),
        "kinds of problem": (
            lambda profile: vocabulary.label(profile.counselling.scenario or "", "en"),
            [scenario.en for scenario in vocabulary.scenarios],
        ),
    }


def _gender(profile: Profile) -> str:
    text = profile.demographics.gender.strip().lower()
    return next((name for name, words in _GENDERS.items() if text in words), text)


def _counted(
    key: str, title: str, profiles: Sequence[Profile], value: Callable[[Profile], str], closed: Sequence[str] = ()
) -> Table:
    """The values of a closed list in its order, then other values by frequency, then "not given"."""
    counted = Counter((value(profile) or _NOT_GIVEN, column) for profile in profiles for column in (profile.language, "All"))
    others = {name for name, _ in counted} - set(closed) - {_NOT_GIVEN}
    names = [*closed, *sorted(others, key=lambda name: (-counted[name, "All"], name))]
    names += [_NOT_GIVEN] if counted[_NOT_GIVEN, "All"] else []
    columns = (*_languages(profiles), "All")
    rows: list[tuple[Cell, ...]] = [(name, *(counted[name, column] for column in columns)) for name in names]
    return Table(f"profile-{key}", title, ("", *columns), tuple(rows))


def _summary(profiles: Sequence[Profile]) -> Table:
    scopes = [[profile for profile in profiles if profile.language == language] for language in _languages(profiles)]
    values = {name: value for name, (value, _) in _closed_lists().items()}
    counted: tuple[tuple[str, Callable[[Profile], str], int | None], ...] = (
        ("Profiles", lambda profile: profile.id, 100),
        ("Occupations", lambda profile: profile.demographics.occupation, 28),
        ("MBTI types", values["MBTI types"], 16),
        ("Kinds of problem", values["kinds of problem"], 16),
        ("Age groups", values["age groups"], None),
    )
    rows: list[tuple[Cell, ...]] = [
        (name, *(len({value(profile) for profile in members} - {""}) for members in (*scopes, profiles)), paper)
        for name, value, paper in counted
    ]
    notes = (
        "Paper: section 2.1, its Chinese set. It names only four of its sixteen kinds of problem.",
        "Figure 8 also counts emotional states; here they are free text, which is not counted.",
    )
    return Table("profile-summary", "Profiles", ("", *_languages(profiles), "All", "Paper"), tuple(rows), notes)
