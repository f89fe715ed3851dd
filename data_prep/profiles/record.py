"""The record of a seeker's profile (EmoHarbor section 2.1, equation 1), its closed lists (configs/profiles/scenarios.yaml), and
its text for models."""

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from core.files import CONFIGS
from core.languages import of, words
from core.records import Identifier, Language, Name, Record, Whole
from core.settings import Pattern, Settings, load_yaml, read_yaml
from data_prep.cards import Labelled

Age = Annotated[int, Field(ge=0, le=120)]


class _NamedWords(Labelled):
    key: Annotated[str, Field(pattern=r"^[a-z][a-z_]*$")]


class Scenario(_NamedWords):
    """A kind of problem. People younger than `youngest` (years) can hardly have it."""

    youngest: Age = 0


class AgeGroup(_NamedWords):
    """An age group, `first` to `last` years, both included."""

    first: Age
    last: Age


class Occupation(Settings):
    """The words for an occupation (regular expressions, case does not matter) and the usual ages, in years."""

    words: Annotated[tuple[Pattern, ...], Field(min_length=1)]
    youngest: Age = 0
    oldest: Age = 120


class Vocabulary(Settings):
    """The lists. Keys are unique within each; age groups have no gaps between them."""

    name: str
    source: str
    scenarios: Annotated[tuple[Scenario, ...], Field(min_length=1)]
    age_groups: Annotated[tuple[AgeGroup, ...], Field(min_length=1)]
    occupations: tuple[Occupation, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The scenarios' keys, in the file's order."""
        return [scenario.key for scenario in self.scenarios]

    def label(self, key: str, language: Language) -> str:
        """A scenario's name in a language; for an unknown key, which `check` reports, the key itself."""
        return next((scenario.label(language) for scenario in self.scenarios if scenario.key == key), key)

    def age_group(self, age: int | None) -> AgeGroup | None:
        """The group that an age belongs to; None for no age and for one outside all groups."""
        return next((group for group in self.age_groups if age is not None and group.first <= age <= group.last), None)


@lru_cache
def load_vocabulary() -> Vocabulary:
    return read_yaml(CONFIGS / "profiles" / "scenarios.yaml", Vocabulary, "scenario list")


Level = Literal["low", "middle", "high"]
Text = Annotated[str, Field(min_length=1)]
Mbti = Literal[
    "ISTJ", "ISFJ", "INFJ", "INTJ", "ISTP", "ISFP", "INFP", "INTP",
    "ESTP", "ESFP", "ENFP", "ENTP", "ESTJ", "ESFJ", "ENFJ", "ENTJ",
]  # fmt: skip

_LABELS = load_yaml(CONFIGS / "profiles" / "labels.yaml", "labels of profiles")
HEADINGS: dict[Language, dict[str, str]] = _LABELS["headings"]  # also what the builder asks for, line by line
TRAITS: dict[Language, dict[str, str]] = _LABELS["traits"]
LEVELS: dict[Language, dict[Level, str]] = _LABELS["levels"]
_SIMPLE = ("age", "gender", "occupation", "nationality", "relationship", "scenario", "problem", "state", "goals", "roles")


class Demographics(Record):
    """The seeker's background; "" (and null for the age, in years) where nothing is known. `name` is invented."""

    age: Annotated[Whole, Field(ge=6, le=110)] | None = None
    gender: str = ""
    occupation: str = ""
    name: str = ""
    nationality: str = ""
    relationship: str = ""


class BigFive(Record):
    """The levels of the five traits, as in a short questionnaire."""

    openness: Level
    conscientiousness: Level
    extraversion: Level
    agreeableness: Level
    neuroticism: Level


class Preferences(Record):
    """The seeker's individual ways of behaving and speaking."""

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
    """The kind of problem, a key of `configs/profiles/scenarios.yaml`; null if not stated."""
    state: str = ""
    """The emotional state at the start."""
    goals: tuple[Text, ...] = ()
    """What the seeker wants from the talk, perhaps without saying so."""
    roles: tuple[Text, ...] = ()
    """The other people in the story, and the seeker's relation to them."""


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


def profile_text(profile: Profile, language: Language, simple: bool = False) -> str:
    """The profile as lines with headings in `language`; its own text stays as written. `simple` keeps demographics and
    counselling only, without name, personality, preferences and script ("Simple Profile", section 4.1.1)."""
    person, likes, case = profile.demographics, profile.preferences, profile.counselling
    wording, heads = words(language), of(HEADINGS, language, "headings of profiles")
    traits, named = of(TRAITS, language, "words of profiles"), of(LEVELS, language, "words of profiles")
    levels = likes.big_five.model_dump() if likes.big_five else {}
    values: dict[str, str] = {
        **person.model_dump(include={"name", "gender", "occupation", "nationality", "relationship"}),
        "age": "" if person.age is None else str(person.age),
        "mbti": likes.mbti or "",
        "big_five": wording.comma.join(f"{traits[trait]} {named[level]}" for trait, level in levels.items()),
        **{key: wording.semicolon.join(getattr(likes, key)) for key in ("traits", "habits", "hobbies")},
        "speech_style": likes.speech_style,
        "scenario": load_vocabulary().label(case.scenario, language) if case.scenario else "",
        "problem": case.problem,
        "state": case.state,
        "goals": wording.semicolon.join(case.goals),
        "roles": wording.semicolon.join(case.roles),
        "script": profile.scenario,
    }
    wanted = [key for key in heads if values[key] and (key in _SIMPLE or not simple)]
    return "\n".join(f"{heads[key]}{wording.colon}{values[key]}" for key in wanted)
