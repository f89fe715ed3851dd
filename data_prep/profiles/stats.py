"""Who the profiles are: figures 3 (gender, age, personality, occupations), 4 (kinds of problem) and 8 (nationality) as tables.

The paper's figures are lost; what its text says of them (section 2.1) stands beside our counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from core import page
from core.files import write_text
from core.records import LANGUAGES
from core.tables import Cell, Table
from data_prep.profiles.record import LEVELS, TRAITS, BigFive, Mbti, Profile
from data_prep.profiles.vocabulary import Vocabulary

NOT_GIVEN = "not given"
_MBTI: tuple[str, ...] = get_args(Mbti)
_COLUMNS = ("en", "zh", "All")
# Gender is free text; the plain words of both languages count together, all others as they stand.
_GENDERS = {"female": ("female", "woman", "女", "女性"), "male": ("male", "man", "男", "男性")}
_PAPER = {"Profiles": 100, "Occupations": 28, "MBTI types": 16, "Kinds of problem": 16}


def tables(profiles: Sequence[Profile], vocabulary: Vocabulary) -> list[Table]:
    """All tables, the summary first. A row a value; values that nobody has are rows of closed lists only."""
    groups = [group.en for group in vocabulary.age_groups]
    kinds = [scenario.en for scenario in vocabulary.scenarios]
    return [
        _summary(profiles, vocabulary),
        _counted("profile-gender", "Gender (figure 3)", profiles, gender),
        _counted("profile-age", "Age (figures 3 and 8)", profiles, lambda one: age_group(one, vocabulary), groups),
        _counted("profile-mbti", "MBTI (figure 3)", profiles, mbti, _MBTI),
        _big_five(profiles),
        _counted("profile-occupation", "Occupations (figure 3)", profiles, lambda one: one.demographics.occupation),
        _counted("profile-scenario", "Kinds of problem (figures 4 and 8)", profiles, lambda one: kind(one, vocabulary), kinds),
        _counted("profile-nationality", "Nationality (figure 8)", profiles, lambda one: one.demographics.nationality),
    ]


def gaps(profiles: Sequence[Profile], vocabulary: Vocabulary) -> list[str]:
    """What no profile of a language covers, a line each: age groups, MBTI types, kinds of problem."""
    lists: dict[str, tuple[Sequence[str], Callable[[Profile], str]]] = {
        "age groups": ([group.en for group in vocabulary.age_groups], lambda one: age_group(one, vocabulary)),
        "MBTI types": (_MBTI, mbti),
        "kinds of problem": ([scenario.en for scenario in vocabulary.scenarios], lambda one: kind(one, vocabulary)),
    }
    present = [language for language in LANGUAGES if any(one.language == language for one in profiles)]
    scopes = {language: [one for one in profiles if one.language == language] for language in present}
    if len(present) > 1:
        scopes = {"all": list(profiles), **scopes}  # type: ignore[dict-item]
    lines = []
    for what, (wanted, value) in lists.items():
        for scope, members in scopes.items():
            values = {value(one) for one in members}
            missing = [name for name in wanted if name not in values]
            if missing:
                lines.append(f"{scope}: no profile with {len(missing)} of {len(wanted)} {what}: {', '.join(missing)}")
    return lines


def gender(profile: Profile) -> str:
    text = profile.demographics.gender.strip().lower()
    return next((name for name, words in _GENDERS.items() if text in words), text)


def age_group(profile: Profile, vocabulary: Vocabulary) -> str:
    group = vocabulary.age_group(profile.demographics.age)
    return group.en if group else ""


def mbti(profile: Profile) -> str:
    return profile.preferences.mbti or ""


def kind(profile: Profile, vocabulary: Vocabulary) -> str:
    scenario = profile.counselling.scenario
    return vocabulary.label(scenario, "en") if scenario else ""


def _counts(profiles: Sequence[Profile], value: Callable[[Profile], str]) -> Counter[tuple[str, str]]:
    """How many profiles have each (value, column); "" counts as not given."""
    counted: Counter[tuple[str, str]] = Counter()
    for profile in profiles:
        name = value(profile) or NOT_GIVEN
        counted[name, profile.language] += 1
        counted[name, "All"] += 1
    return counted


def _counted(
    key: str, title: str, profiles: Sequence[Profile], value: Callable[[Profile], str], closed: Sequence[str] = ()
) -> Table:
    """A closed list in its own order, then other values, the commonest first, then those not given."""
    counted = _counts(profiles, value)
    others = {name for name, _ in counted} - set(closed) - {NOT_GIVEN}
    names = [*closed, *sorted(others, key=lambda name: (-counted[name, "All"], name))]
    names += [NOT_GIVEN] if counted[NOT_GIVEN, "All"] else []
    rows: list[tuple[Cell, ...]] = [(name, *(counted[name, column] for column in _COLUMNS)) for name in names]
    return Table(key, title, ("", *_COLUMNS), tuple(rows))


def _big_five(profiles: Sequence[Profile]) -> Table:
    """Profiles at each level of each trait, those without a test left out and counted in the note."""
    rated: list[BigFive] = [one.preferences.big_five for one in profiles if one.preferences.big_five]
    rows: list[tuple[Cell, ...]] = [
        (name, *(sum(getattr(one, trait) == level for one in rated) for level in LEVELS["en"]))
        for trait, name in TRAITS["en"].items()
    ]
    note = f"{len(profiles) - len(rated)} of {len(profiles)} profiles have no Big Five."
    return Table("profile-big-five", "Big Five (figure 3)", ("", *LEVELS["en"].values()), tuple(rows), (note,))


def _summary(profiles: Sequence[Profile], vocabulary: Vocabulary) -> Table:
    def distinct(value: Callable[[Profile], str], members: Sequence[Profile]) -> int:
        return len({value(one) for one in members} - {""})

    scopes = [[one for one in profiles if one.language == language] for language in LANGUAGES] + [list(profiles)]
    counts: dict[str, Callable[[Sequence[Profile]], int]] = {
        "Profiles": len,
        "Occupations": lambda members: distinct(lambda one: one.demographics.occupation, members),
        "MBTI types": lambda members: distinct(mbti, members),
        "Kinds of problem": lambda members: distinct(lambda one: kind(one, vocabulary), members),
        "Age groups": lambda members: distinct(lambda one: age_group(one, vocabulary), members),
    }
    rows: list[tuple[Cell, ...]] = [
        (name, *(count(members) for members in scopes), _PAPER.get(name)) for name, count in counts.items()
    ]
    notes = (
        "Paper: section 2.1; its Chinese set. Which twelve kinds of problem it has besides the four that it names is lost.",
        "Figure 8 also counts emotional states; here they are free text, which is not counted.",
    )
    return Table("profile-summary", "Profiles", ("", *_COLUMNS, "Paper"), tuple(rows), notes)


def write_page(path: Path, tables: Sequence[Table], gaps: Sequence[str], files: Sequence[str], total: int) -> None:
    """The tables as one HTML file that needs no network and runs no script. All text in it is escaped."""
    template = page.environment(Path(__file__).parent).get_template("profile_stats.html.j2")
    write_text(path, template.render(tables=tables, gaps=gaps, files=files, total=total))
