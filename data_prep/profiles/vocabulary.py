"""The closed lists of profiles (configs/profiles/scenarios.yaml): kinds of problem, age groups, the ages of occupations."""

from functools import lru_cache
from typing import Annotated

from pydantic import Field

from core.files import CONFIGS
from core.records import Language
from core.settings import Pattern, Settings, read_yaml
from data_prep.cards.taxonomy import Labelled

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
