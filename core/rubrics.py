"""Rubrics: dimensions, scales and descriptions of levels, from configs/rubrics or a user's own file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from graphlib import CycleError
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt, ValidationError, model_validator

from core.errors import UserError
from core.files import CONFIGS
from core.languages import file_of, lineage, of, texts, words
from core.records import Identifier, Language
from core.scales import NOT_APPLICABLE, OUTCOME, TreeQuestion, Verdict, not_applicable, outcomes, tree_faults, word
from core.scales import Scale as Scale
from core.settings import Settings, read_named

Level = Annotated[int | float | str, Field(union_mode="left_to_right")]  # a score, or a level's name


class Dimension(Settings):
    """A dimension, with its texts per language. A single sentence is short for its `about`."""

    label: dict[Language, str]
    """Its name in tables. Default: from its key."""
    # Dumps leave out the defaults of newer fields, so that the configs of older run folders stay the same.
    facet: dict[Language, str] | None = Field(default=None, exclude_if=lambda facet: facet is None)
    """The group of dimensions that it belongs to."""
    scale: Scale | None = Field(default=None, exclude_if=lambda scale: scale is None)
    """Its own scale, if it differs from the rubric's."""
    about: dict[Language, str]
    """The quality that is judged."""
    levels: dict[Language, dict[Level, str]] = Field(default={})
    """The meaning of each score (or named level); any may be left out."""
    weight: float = Field(default=1, ge=0, exclude_if=lambda weight: weight == 1)
    """Its relative weight in the average; 0: none."""
    higher_is: Literal["better", "worse"] = Field(default="better", exclude_if=lambda higher: higher == "better")
    """Which end of the scale is good: averages run from 0 (worst) to 100 (best)."""
    not_applicable: bool = Field(default=False, exclude_if=lambda allowed: not allowed)
    """Whether a judge may answer that it does not apply to a dialogue. Such verdicts are left out of means."""


class Rubric(Settings):
    """A named set of dimensions, or a tree of questions. Texts without a language are in `language` (default: en)."""

    name: Identifier
    """The name in every judgement on this rubric."""
    source: str = Field(default="", exclude_if=lambda source: not source)
    """The paper's table or figure that the levels follow."""
    languages: tuple[Language, ...]
    """Every dimension has a label and a description in each of them. Default: the languages of the texts."""
    scale: Scale
    """The scale of dimensions without their own: see `scale_of`, and `one_scale` for figures that need a common one."""
    dimensions: dict[Identifier, Dimension]
    """By name, in the order of tables."""
    questions: dict[Identifier, TreeQuestion] | None = Field(default=None, exclude_if=lambda questions: questions is None)
    """A tree of questions instead of dimensions, beginning with its root. Each question becomes a dimension of weight 0, and
    the sum of the answers' points the dimension `outcome`, to which the rubric's `higher_is: worse` applies."""
    outcomes: tuple[Identifier, ...] = Field(default=(), exclude_if=lambda outcomes: not outcomes)
    """The outcomes of `questions`, if there are several: written like dimensions whose scales have levels."""
    rates: Literal["supporter", "seeker"] = Field(default="supporter", exclude_if=lambda rates: rates == "supporter")
    """The side that is scored; a seeker is scored against its role card or profile."""
    halves: bool = Field(default=False, exclude_if=lambda halves: not halves)
    """Whether people may give half points between two levels."""
    example: dict[Language, str] = Field(default={}, exclude=True)
    """A scored dialogue for people's guides; judges never see it."""

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, raw: Any) -> Any:
        """Expand short forms: texts without a language, single-sentence dimensions, the languages, a tree's questions."""
        if not isinstance(raw, dict):
            return raw
        language = str(raw.get("language", "en"))
        full = {key: value for key, value in raw.items() if key != "language"}
        if isinstance(questions := full.get("questions"), dict):
            full["questions"] = questions = {str(key): _in_full(key, raw, language, "text") for key, raw in questions.items()}
            outcomes = full.get("outcomes")
            if isinstance(outcomes, dict):
                full["outcomes"] = [*outcomes]
            full.setdefault("dimensions", _dimensions_of(questions, full.pop("higher_is", "better"), outcomes))
            full.setdefault("scale", {"min": 0, "max": 1})  # required, though no dimension uses it
        if isinstance(dimensions := full.get("dimensions"), dict):
            dimensions = {str(key): _in_full(key, raw, language, "about") for key, raw in dimensions.items()}
            full["dimensions"] = dimensions
            wellformed = [dimension for dimension in dimensions.values() if isinstance(dimension, dict)]
            texts = [raw[field] for raw in wellformed for field in ("label", "about") if isinstance(raw.get(field), dict)]
            full.setdefault("languages", [*dict.fromkeys(code for text in texts for code in text)])
            if wellformed and all("scale" in dimension for dimension in wellformed):
                full.setdefault("scale", wellformed[-1]["scale"])
        return {"languages": [language]} | full  # without dimensions, these alone are the fault

    @model_validator(mode="after")
    def _complete(self) -> Rubric:
        if faults := [*self._faults()]:
            raise ValueError("; ".join(faults))
        return self

    def _faults(self) -> Iterator[str]:
        if self.questions:
            scales = {key: self.scale_of(key) for key in self.outcomes if key in self.dimensions}
            yield from (f"outcomes.{key}.scale: give it levels" for key, scale in scales.items() if not scale.levels)
            yield from tree_faults(self.questions, {key: scale.levels or {} for key, scale in scales.items()})
            if self.dimensions and {*self.dimensions} != {*self.questions, *(self.outcomes or (OUTCOME,))}:
                yield "dimensions: give them or questions"
        elif not self.dimensions:
            yield "dimensions: none given"
        if self.dimensions and not any(dimension.weight for dimension in self.dimensions.values()):
            yield "dimensions: every weight is 0"
        for place, scale in (("", self.scale), *((f"dimension {k}: ", d.scale) for k, d in self.dimensions.items() if d.scale)):
            yield from (f"{place}scale: {fault}" for fault in scale.faults())
        for key, dimension in self.dimensions.items():
            scale = self.scale_of(key)
            for language in self.languages:
                if language not in dimension.label or language not in dimension.about:
                    yield f"dimension {key}: no {language} label or about"
                if dimension.facet is not None and language not in dimension.facet:
                    yield f"dimension {key}: no {language} facet"
                if not [*scale.faults()]:
                    for level in dimension.levels.get(language, {}).keys() - {*scale.scores, *(scale.levels or ())}:
                        what = "score" if isinstance(level, int | float) else "level"
                        yield f"dimension {key} ({language}): {what} {level} is off the scale, {scale}"

    @property
    def title(self) -> str:
        """Its name, with its source if it has one."""
        return f"{self.name} ({self.source})" if self.source else self.name

    def __hash__(self) -> int:  # equality compares the rest
        return hash(self.name)

    def scale_of(self, dimension: str) -> Scale:
        """The dimension's own scale, else the rubric's."""
        return self.dimensions[dimension].scale or self.scale

    @property
    def scored(self) -> list[str]:
        """The dimensions that boards show: all, or a tree's outcomes if it has several."""
        return [*(self.outcomes or self.dimensions)]

    @property
    def scales(self) -> dict[str, Scale]:
        """The scale of every dimension, in the rubric's order."""
        return {key: self.scale_of(key) for key in self.dimensions}

    @property
    def shared_scale(self) -> Scale | None:
        """The common scale of all dimensions; None if they differ."""
        scales = set(self.scales.values())
        return scales.pop() if len(scales) == 1 else None

    @property
    def scores(self) -> tuple[float, ...]:
        """All scores of all dimensions, ascending."""
        return tuple(sorted({score for scale in self.scales.values() for score in scale.scores}))

    @property
    def counted(self) -> dict[float, str]:
        """The scores that tables count, ascending, with their headings: the names of levels if all dimensions share them."""
        scales = {scale.counted for scale in self.scales.values()}
        named = len(scales) == 1 and bool(self.shared_scale)
        scores = sorted({score for scale in scales for score in scale.scores})
        return {score: next(iter(scales)).name(score) if named else f"{score:g}" for score in scores}

    @cached_property
    def digits(self) -> bool:
        """Whether every verdict is one digit, so that a judge may answer in digits only."""
        applies = not any(dimension.not_applicable for dimension in self.dimensions.values())
        return applies and not self.questions and all(scale.digits for scale in self.scales.values())

    @cached_property
    def told(self) -> bool:
        """Whether verdicts are digits of a common scale and every score has a text, so that the texts explain the scale."""
        texts = (text for key in self.dimensions for code in self.languages for text in self.texts(key, code).values())
        return self.digits and self.shared_scale is not None and all(texts)

    @cached_property
    def weights(self) -> tuple[float, ...] | None:
        """The weight of each dimension in the average; None if all are equal."""
        weights = tuple(dimension.weight for dimension in self.dimensions.values())
        return None if len({*weights}) == 1 else weights

    @cached_property
    def alike(self) -> bool:
        """Whether all dimensions have the same scale and weight, and higher is better: then their scores have a plain mean."""
        ups = {dimension.higher_is for dimension in self.dimensions.values()}
        return self.shared_scale is not None and ups == {"better"} and self.weights is None

    def ends(self, dimension: str) -> tuple[float, float]:
        """The worst and the best score."""
        scale = self.scale_of(dimension)
        return (scale.max, scale.min) if self.dimensions[dimension].higher_is == "worse" else (scale.min, scale.max)

    def normalised(self, dimension: str, score: float) -> float:
        """A score, or a mean of scores, from 0 (worst) to 100 (best)."""
        worst, best = self.ends(dimension)
        return (score - worst) * 100 / (best - worst)

    def average(self, figures: Mapping[str, float]) -> float | None:
        """The weighted mean of the dimensions' figures; None if their weights are all 0."""
        weights = {key: self.dimensions[key].weight for key in figures}
        total = math.fsum(weights.values())
        return math.fsum(figures[key] * weight for key, weight in weights.items()) / total if total else None

    def answers(self, dimension: str, language: Language) -> dict[str, Verdict]:
        """The judge's possible answers in the language, with their meanings."""
        scale = self.scale_of(dimension)
        answers: dict[str, Verdict] = {scale.name(score, language): score for score in scale.scores}
        if self.dimensions[dimension].not_applicable:
            answers[word(NOT_APPLICABLE, language)] = NOT_APPLICABLE
        return answers

    def verdict(self, dimension: str, text: str) -> Verdict | None:
        """The verdict on a dimension that a judge's text states, in any language; None if that is not certain."""
        if self.dimensions[dimension].not_applicable and not_applicable(text):
            return NOT_APPLICABLE
        return self.scale_of(dimension).read(text)

    def one_scale(self, purpose: str) -> Scale:
        """The common scale of all dimensions. Raises `UserError` that names `purpose` if they differ."""
        if (shared := self.shared_scale) is not None:
            return shared
        (a, first), *others = self.scales.items()
        b, second = next((key, scale) for key, scale in others if scale != first)
        ends = f"{a} runs from {first.min} to {first.max} and {b} from {second.min} to {second.max}"
        raise UserError(f"rubric {self.name}: {purpose} needs all dimensions on one scale, but {ends}")

    def steps(self, dimension: str, halves: bool | None = None) -> list[float]:
        """The scores that people may give, ascending: the scale's and, with `halves` (default: the rubric's), half points."""
        scale = self.scale_of(dimension)
        if scale.levels or scale.step != 1 or not (self.halves if halves is None else halves):
            return [*map(float, scale.scores)]
        return [scale.min + step / 2 for step in range(2 * round(scale.span) + 1)]

    def texts(self, dimension: str, language: Language) -> dict[float, str]:
        """The meaning of each score of a dimension, ascending; "" if the rubric has none."""
        levels, scale = self._text(dimension, "levels", language) or {}, self.scale_of(dimension)
        return {score: levels.get(score, levels.get(scale.level(score), "")) for score in scale.scores}

    def named_texts(self, dimension: str, language: Language) -> dict[float, str]:
        """Like `texts`, each with the name of its level in front if the scale has names: for people, who give numbers."""
        scale, texts = self.scale_of(dimension), self.texts(dimension, language)
        names = {score: scale.name(score, language) for score in texts if scale.levels}
        return {score: ": ".join(filter(None, (names.get(score), text))) for score, text in texts.items()}

    def label(self, dimension: str, language: Language = "en") -> str:
        """A dimension's name in tables."""
        return str(self._text(dimension, "label", language))

    def about(self, dimension: str, language: Language) -> str:
        """The quality that a dimension judges."""
        return str(self._text(dimension, "about", language))

    def facet(self, dimension: str, language: Language) -> str:
        """The group that a dimension belongs to; "" if the rubric has none."""
        return str(self._text(dimension, "facet", language) or "")

    def speaks(self, language: Language) -> bool:
        """Whether the rubric or the language's folder has texts in the language."""
        own = any(code in self.languages for code in lineage(language))
        return own or set(self.dimensions) <= set(texts(language, f"rubrics/{self.name}.yaml"))

    def _text(self, dimension: str, field: str, language: Language) -> Any:
        """The text in the language: the rubric's, else the language folder's, else in English (`core.languages`)."""
        own = getattr(self.dimensions[dimension], field) or {}
        for code in lineage(language) if own else ():
            entry = texts(code, name := f"rubrics/{self.name}.yaml").get(dimension, {})
            added = entry.get(field) if isinstance(entry, dict) else entry
            if added is not None and not isinstance(added, dict if field == "levels" else str):
                hint = f"`esc-data language check {code}` says what is expected"
                raise UserError(f"{file_of(code, name)}: {dimension}: {field} cannot be read: {hint}")
            if code in own or added is not None:
                return own.get(code, added)
        return of(own, language, f"texts of rubric {self.name}") if own else None


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise ValueError("expected a number")
    return value


class Criterion(BaseModel):
    """A property that a good answer has or, with negative points, lacks: HealthBench's format. Other fields are ignored."""

    model_config = ConfigDict(frozen=True)
    criterion: Annotated[str, Field(min_length=1)]
    points: Annotated[StrictInt | StrictFloat, Field(ge=-1000, le=1000), BeforeValidator(_number)]
    """5 and 5.0 stay distinct."""
    tags: tuple[str, ...] = ()

    @property
    def item(self) -> str:
        """The criterion's text in the published prompt."""
        return f"[{self.points}] {self.criterion}"


def _in_full(key: object, raw: Any, language: str, text: str) -> Any:
    """A raw dimension or question with the language of its texts and a label; `text` is its main field."""
    raw = {text: raw} if isinstance(raw, str) else raw
    if not isinstance(raw, dict):
        return raw
    localised = ("label", "facet", "examples", text)
    full = {name: {language: value} if name in localised and isinstance(value, str) else value for name, value in raw.items()}
    levels = full.get("levels")
    if isinstance(levels, dict) and levels and all(isinstance(level, str) for level in levels.values()):
        full["levels"] = {language: levels}
    codes = full[text] if isinstance(full.get(text), dict) else [language]
    full.setdefault("label", dict.fromkeys(codes, str(key).replace("_", " ").capitalize()))
    return full


def _dimensions_of(questions: Mapping[str, Any], higher_is: Any, named_outcomes: Any) -> dict[str, Any]:
    """A tree's questions and its outcome or outcomes as dimensions; none for an invalid tree, whose model reports the fault."""
    try:
        tree = {key: TreeQuestion.model_validate(raw) for key, raw in questions.items()}
        sums = outcomes(tree) or [0]  # none if no path ends, which is a fault
    except (CycleError, ValidationError):
        return {}
    dimensions: dict[str, Any] = {}
    for key, question in tree.items():
        scale: Any = "yes_no" if {*question.answers} == {"yes", "no"} else {"levels": [*question.answers]}
        dimensions[key] = {"label": question.label, "about": question.text, "scale": scale, "weight": 0}
    if isinstance(named_outcomes, dict):
        return named_outcomes | dimensions
    codes = dict.fromkeys(code for question in tree.values() for code in question.text)
    label, about = ({code: words(code)[word] for code in codes} for word in ("outcome", "outcome_about"))
    sums_scale = {"min": sums[0], "max": max(sums[-1], sums[0] + 1), "step": 0.5 if any(total % 1 for total in sums) else 1}
    return dimensions | {OUTCOME: {"label": label, "about": about, "scale": sums_scale, "higher_is": higher_is}}


def load_rubric(name: str) -> Rubric:
    """A rubric by name (configs/rubrics) or by the path of a YAML file."""
    return read_named("rubrics", name, Rubric, "rubric")


def flat_rubric(name: str, purpose: str) -> Rubric:
    """Like `load_rubric`, but raises `UserError` that names `purpose` for a tree of questions."""
    if (rubric := load_rubric(name)).questions:
        raise UserError(f"rubric {rubric.name}: {purpose} needs a rubric with dimensions; this one's questions form a tree")
    return rubric


def known_rubric(name: str) -> Rubric | None:
    """The rubric if `name` is in configs/rubrics or a YAML file; None for a name that occurs only in records."""
    bundled = (CONFIGS / "rubrics" / f"{name}.yaml").is_file()
    return load_rubric(name) if bundled or name.endswith((".yaml", ".yml")) else None
