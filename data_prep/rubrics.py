"""Rubrics: dimensions, scales and level descriptions, read from configs/rubrics (or a user's own file)."""

from __future__ import annotations

from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field, model_validator

from data_prep.records import Language
from serve.files import read_named


class Scale(BaseModel):
    """Whole scores from `min` to `max`, both included."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    min: int
    max: int

    @cached_property
    def scores(self) -> tuple[int, ...]:
        return tuple(range(self.min, self.max + 1))


class Dimension(BaseModel):
    """One dimension: what it is about and what each score means, per language; `facet` is the group it belongs to, if any."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    label: dict[Language, str]
    # Left out of dumps where there is none: a run folder's config stays as it was before there were facets.
    facet: dict[Language, str] | None = Field(default=None, exclude_if=lambda facet: facet is None)
    about: dict[Language, str]
    levels: dict[Language, dict[int, str]]


class Rubric(BaseModel):
    """A named set of dimensions on one scale.

    `source` says which table or figure of which paper the levels follow. Every dimension describes every score of the scale
    in every language of `languages`: a gap is an error, not a default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    source: str
    languages: tuple[Language, ...]
    scale: Scale
    dimensions: dict[str, Dimension]

    @model_validator(mode="after")
    def _complete(self) -> Rubric:
        if self.scale.min >= self.scale.max:
            raise ValueError(f"scale: min {self.scale.min} is not below max {self.scale.max}")
        if not self.dimensions:
            raise ValueError("dimensions: none given")
        for key, dimension in self.dimensions.items():
            for language in self.languages:
                if language not in dimension.label or language not in dimension.about:
                    raise ValueError(f"dimension {key}: no {language} label or about")
                if dimension.facet is not None and language not in dimension.facet:
                    raise ValueError(f"dimension {key}: no {language} facet")
                levels = dimension.levels.get(language, {})
                missing = sorted(set(self.scale.scores) - set(levels))
                extra = sorted(set(levels) - set(self.scale.scores))
                if missing or extra:
                    what = f"no description for score {missing[0]}" if missing else f"score {extra[0]} is off the scale"
                    raise ValueError(
                        f"dimension {key} ({language}): {what}; the scale runs from {self.scale.min} to {self.scale.max}"
                    )
        return self


def load_rubric(name: str) -> Rubric:
    """A rubric by name (configs/rubrics) or by the path of a YAML file."""
    return read_named("rubrics", name, Rubric, "rubric")
