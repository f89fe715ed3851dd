"""The distribution of profiles: figures 3 (gender, age, personality, occupations), 4 (kinds of problem) and 8 (nationality) as
tables. The paper's figures are lost; the numbers in its text (section 2.1) stand beside our counts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

from core.grouping import group_by
from core.languages import PAPER_LANGUAGES, in_order
from core.tables import Cell, Table
from data_prep.profiles.record import LEVELS, TRAITS, Mbti, Profile
from data_prep.profiles.vocabulary import Vocabulary

_NOT_GIVEN = "not given"
# Gender is free text; the plain words of both languages are counted together, all others as they are.
_GENDERS = {"female": ("female", "woman", "女", "女性"), "male": ("male", "man", "男", "男性")}


def tables(profiles: Sequence[Profile], vocabulary: Vocabulary) -> list[Table]:
    """All tables, the summary first, with a row per value; only closed lists have rows for values that nobody has."""
    closed = _closed_lists(vocabulary)
    levels = [profile.preferences.big_five for profile in profiles if profile.preferences.big_five]
    big_five: list[tuple[Cell, ...]] = [
        (name, *(sum(getattr(result, trait) == level for result in levels) for level in LEVELS["en"]))
        for trait, name in TRAITS["en"].items()
    ]
    note = f"{len(profiles) - len(levels)} of {len(profiles)} profiles have no Big Five."
    return [
        _summary(profiles, vocabulary),
        _counted("gender", "Gender (figure 3)", profiles, _gender),
        _counted("age", "Age (figures 3 and 8)", profiles, *closed["age groups"]),
        _counted("mbti", "MBTI (figure 3)", profiles, *closed["MBTI types"]),
        Table("profile-big-five", "Big Five (figure 3)", ("", *LEVELS["en"].values()), tuple(big_five), (note,)),
        _counted("occupation", "Occupations (figure 3)", profiles, lambda profile: profile.demographics.occupation),
        _counted("scenario", "Kinds of problem (figures 4 and 8)", profiles, *closed["kinds of problem"]),
        _counted("nationality", "Nationality (figure 8)", profiles, lambda profile: profile.demographics.nationality),
    ]


def gaps(profiles: Sequence[Profile], vocabulary: Vocabulary) -> list[str]:
    """Age groups, MBTI types and kinds of problem that no profile of a language covers, a line each."""
    by_language = group_by(profiles, lambda profile: profile.language)
    scopes: dict[str, Sequence[Profile]] = {language: by_language[language] for language in in_order(by_language)}
    scopes = {"all": profiles, **scopes} if len(scopes) > 1 else scopes
    lines = []
    for what, (value, wanted) in _closed_lists(vocabulary).items():
        for scope, members in scopes.items():
            values = set(map(value, members))
            if missing := [name for name in wanted if name not in values]:
                lines.append(f"{scope}: no profile with {len(missing)} of {len(wanted)} {what}: {', '.join(missing)}")
    return lines


def _languages(profiles: Sequence[Profile]) -> list[str]:
    return in_order([*PAPER_LANGUAGES, *(profile.language for profile in profiles)])


def _closed_lists(vocabulary: Vocabulary) -> dict[str, tuple[Callable[[Profile], str], Sequence[str]]]:
    """The fields with a fixed list of values: how to get a profile's value ("" for none), and the list."""

    def age_group(profile: Profile) -> str:
        group = vocabulary.age_group(profile.demographics.age)
        return group.en if group else ""

    def kind(profile: Profile) -> str:
        return vocabulary.label(profile.counselling.scenario, "en") if profile.counselling.scenario else ""

    return {
        "age groups": (age_group, [group.en for group in vocabulary.age_groups]),
        "MBTI types": (lambda profile: profile.preferences.mbti or "", get_args(Mbti)),
        "kinds of problem": (kind, [scenario.en for scenario in vocabulary.scenarios]),
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


def _summary(profiles: Sequence[Profile], vocabulary: Vocabulary) -> Table:
    scopes = [[profile for profile in profiles if profile.language == language] for language in _languages(profiles)] + [
        list(profiles)
    ]
    values = {name: value for name, (value, _) in _closed_lists(vocabulary).items()}
    counted: dict[str, tuple[Callable[[Profile], str], int | None]] = {
        "Profiles": (lambda profile: profile.id, 100),
        "Occupations": (lambda profile: profile.demographics.occupation, 28),
        "MBTI types": (values["MBTI types"], 16),
        "Kinds of problem": (values["kinds of problem"], 16),
        "Age groups": (values["age groups"], None),
    }
    rows: list[tuple[Cell, ...]] = [
        (name, *(len({value(profile) for profile in members} - {""}) for members in scopes), paper)
        for name, (value, paper) in counted.items()
    ]
    notes = (
        "Paper: section 2.1, its Chinese set. It names only four of its sixteen kinds of problem.",
        "Figure 8 also counts emotional states; here they are free text, which is not counted.",
    )
    return Table("profile-summary", "Profiles", ("", *_languages(profiles), "All", "Paper"), tuple(rows), notes)
