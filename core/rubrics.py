"""Rubrics: dimensions, scales and level descriptions, read from configs/rubrics (or a user's own file)."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from core.errors import UserError
from core.files import CONFIGS
from core.records import Identifier, Language
from core.settings import Settings
from core.yaml_files import read_named


class Scale(Settings):
    """Whole scores from `min` to `max`, both included."""

    min: int
    max: int

    @cached_property
    def scores(self) -> tuple[int, ...]:
        return tuple(range(self.min, self.max + 1))

    @property
    def span(self) -> int:
        """From the lowest to the highest score, in points."""
        return self.max - self.min


class Dimension(Settings):
    """One dimension; all texts are per language."""

    label: dict[Language, str]
    """Its name in tables."""
    # Facet and scale are left out of dumps where there is none: a run folder's config stays as it was before they existed.
    facet: dict[Language, str] | None = Field(default=None, exclude_if=lambda facet: facet is None)
    """The group of dimensions that it belongs to."""
    scale: Scale | None = Field(default=None, exclude_if=lambda scale: scale is None)
    """Its own scale, where it is not the rubric's."""
    about: dict[Language, str]
    """What is judged."""
    levels: dict[Language, dict[int, str]] = Field(default={})
    """What each score means; scores may be left out."""


class Rubric(Settings):
    """A named set of dimensions."""

    name: Identifier
    """Stands in every judgement on this rubric."""
    source: str
    """Which table or figure of which paper the levels follow."""
    languages: tuple[Language, ...]
    """Every dimension has a label and a description in each of them."""
    scale: Scale
    """Of every dimension without one of its own: ask `scale_of`, or `one_scale` where a figure needs the same everywhere."""
    dimensions: dict[Identifier, Dimension]
    """By name, in the order of tables."""
    # Left out of dumps where they say nothing new, as facet and scale are.
    rates: Literal["supporter", "seeker"] = Field(default="supporter", exclude_if=lambda rates: rates == "supporter")
    """Whose part in the dialogue is scored; a seeker is scored against its role card or profile."""
    halves: bool = Field(default=False, exclude_if=lambda halves: not halves)
    """Whether people may give halves for what lies between two levels."""
    example: dict[Language, str] = Field(default={}, exclude=True)
    """A dialogue that is scored, for people's guides; no judge is shown it."""

    @model_validator(mode="after")
    def _complete(self) -> Rubric:
        if not self.dimensions:
            raise ValueError("dimensions: none given")
        for place, scale in (("", self.scale), *((f"dimension {key}: ", self.scale_of(key)) for key in self.dimensions)):
            if scale.min >= scale.max:
                raise ValueError(f"{place}scale: min {scale.min} is not below max {scale.max}")
        for key, dimension in self.dimensions.items():
            scale = self.scale_of(key)
            for language in self.languages:
                if language not in dimension.label or language not in dimension.about:
                    raise ValueError(f"dimension {key}: no {language} label or about")
                if dimension.facet is not None and language not in dimension.facet:
                    raise ValueError(f"dimension {key}: no {language} facet")
                if extra := sorted(set(dimension.levels.get(language, {})) - set(scale.scores)):
                    raise ValueError(
                        f"dimension {key} ({language}): score {extra[0]} is off the scale, {scale.min} to {scale.max}"
                    )
        return self

    def __hash__(self) -> int:  # what differs is told apart by comparison
        return hash(self.name)

    def scale_of(self, dimension: str) -> Scale:
        """The dimension's own scale, else the rubric's."""
        return self.dimensions[dimension].scale or self.scale

    @property
    def scales(self) -> dict[str, Scale]:
        """The scale of every dimension, in the rubric's order."""
        return {key: self.scale_of(key) for key in self.dimensions}

    @property
    def shared_scale(self) -> Scale | None:
        """The scale that all dimensions are on; None where they differ."""
        scales = set(self.scales.values())
        return scales.pop() if len(scales) == 1 else None

    @property
    def scores(self) -> tuple[int, ...]:
        """Every score of any dimension, ascending."""
        return tuple(sorted({score for scale in self.scales.values() for score in scale.scores}))

    def one_scale(self, purpose: str) -> Scale:
        """The scale that all dimensions are on. Raises `UserError`, which names `purpose`, where they differ."""
        if (shared := self.shared_scale) is not None:
            return shared
        (a, first), *others = self.scales.items()
        b, second = next((key, scale) for key, scale in others if scale != first)
        raise UserError(
            f"rubric {self.name}: {purpose} needs all dimensions on one scale, but {a} runs from {first.min} to {first.max} "
            f"and {b} from {second.min} to {second.max}: make a rubric of the dimensions that share one"
        )

    def steps(self, dimension: str, halves: bool | None = None) -> list[float]:
        """What people may give, ascending: whole scores, or halves too (`halves`; without it, as the rubric says)."""
        scale, parts = self.scale_of(dimension), 2 if (self.halves if halves is None else halves) else 1
        return [scale.min + step / parts for step in range(parts * scale.span + 1)]

    def texts(self, dimension: str, language: Language) -> dict[int, str]:
        """What each score of a dimension means, ascending; "" where the rubric does not say."""
        levels = self.dimensions[dimension].levels.get(language, {})
        return {score: levels.get(score, "") for score in self.scale_of(dimension).scores}


def load_rubric(name: str) -> Rubric:
    """A rubric by name (configs/rubrics) or by the path of a YAML file."""
    return read_named("rubrics", name, Rubric, "rubric")


def known_rubric(name: str) -> Rubric | None:
    """The rubric where `name` is one of configs/rubrics or a YAML file; None for a name that only somebody's records have."""
    bundled = (CONFIGS / "rubrics" / f"{name}.yaml").is_file()
    return load_rubric(name) if bundled or name.endswith((".yaml", ".yml")) else None
