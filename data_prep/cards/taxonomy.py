"""The taxonomy of life problems (configs/taxonomy.yaml): three levels, with the role cards that table 9 of ESC-Eval counts."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Annotated

from pydantic import Field

from core.files import CONFIGS
from core.languages import lineage
from core.records import Language
from core.settings import Settings, read_yaml

Path3 = tuple[str, str, str]  # English names of levels 1 to 3


class Labelled(Settings):
    """Something with an English and a Chinese name; other languages use the English one."""

    en: Annotated[str, Field(min_length=1)]
    zh: Annotated[str, Field(min_length=1)]

    def label(self, language: Language) -> str:
        """Its name in a language; `en` is the name that records use."""
        return self.zh if lineage(language)[-1] == "zh" else self.en


class Leaf(Labelled):
    """A category of level 3 and the cards of high and middle quality printed for it (None where the cell is lost)."""

    high: Annotated[int, Field(ge=0)] | None = None
    middle: Annotated[int, Field(ge=0)] | None = None


class Group(Labelled):
    """A category of level 2."""

    children: Annotated[tuple[Leaf, ...], Field(min_length=1)]


class Area(Labelled):
    """A category of level 1."""

    children: Annotated[tuple[Group, ...], Field(min_length=1)]

    @property
    def leaves(self) -> list[tuple[Path3, Leaf]]:
        """(path, leaf) of every category of level 3 below, in the file's order."""
        return [((self.en, group.en, leaf.en), leaf) for group in self.children for leaf in group.children]


class Taxonomy(Settings):
    """The whole tree. English and Chinese names are unique in it, so a name alone identifies a category."""

    name: str
    source: str
    categories: Annotated[tuple[Area, ...], Field(min_length=1)]

    @cached_property
    def leaves(self) -> dict[Path3, Leaf]:
        """Every category of level 3 by its path, in the file's order (table 9's 35 rows)."""
        return {path: leaf for area in self.categories for path, leaf in area.leaves}

    def holds(self, path: Sequence[str]) -> bool:
        """Whether a path of one to three English names is in the tree."""
        return bool(path) and any(leaf[: len(path)] == tuple(path) for leaf in self.leaves)


@lru_cache
def load_taxonomy() -> Taxonomy:
    return read_yaml(CONFIGS / "taxonomy.yaml", Taxonomy, "taxonomy")
