"""What a program hands to a run: models, people to play, dialogues and a rubric of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from core.errors import UserError
from core.files import problems_in, validated, write_text
from core.people_tables import Faults
from core.records import Dialogue, RoleCard
from core.rows import CorpusRow
from core.rubrics import Rubric
from core.specs import ModelSpec
from data_prep.cards.own import own_cards
from data_prep.dialogue_files import dialogues_of
from data_prep.profiles import Profile
from serve.callables import CallableSpec, Model

M = TypeVar("M", bound=BaseModel)
AnyModel = str | ModelSpec | Model
"""A name in configs/models, a spec file, NAME@URL; a spec; or a callable, which is known by its own or its class's name."""
OneModel = AnyModel | Mapping[str, AnyModel]
"""The same, or `{name: callable}`."""
Models = OneModel | Sequence[AnyModel]
"""One or several."""
Row = RoleCard | Profile | Mapping[str, Any]


class Frame(Protocol):
    """A data frame of pandas or polars."""

    @property
    def columns(self) -> Any: ...


People = str | Path | Iterable[Row] | Frame
"""A file or `bundled`; records, or dicts with their fields; or a frame with such columns."""


def one_model(role: str, model: OneModel, given: dict[str, ModelSpec]) -> str:
    """How the config names the only model of a role."""
    names = named_models(model, given)
    if len(names) != 1:
        raise UserError(f"{role}: one model plays it, not {len(names)}")
    return names[0]


def named_models(models: Models, given: dict[str, ModelSpec]) -> list[str]:
    """How the config names models; specs and callables are put into `given`."""
    if isinstance(models, Mapping):
        return [_name(model, name, given) for name, model in models.items()]
    listed = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    return [_name(model, None, given) for model in listed]


def _name(model: AnyModel, name: str | None, given: dict[str, ModelSpec]) -> str:
    if isinstance(model, str):
        if name is not None:
            raise UserError(f"model {name}: {model!r} has a name already: only callables are given one")
        return model
    if isinstance(model, ModelSpec):
        spec = model
    elif callable(model) or hasattr(model, "reply"):
        spec = CallableSpec.of(name or str(getattr(model, "__name__", type(model).__name__)), model)
    else:
        raise UserError(f"a model is a name, a spec or a callable, not {type(model).__name__}")
    known = given.setdefault(spec.name, spec)
    if known is not spec and not (isinstance(known, CallableSpec) and known.is_of(model)):
        raise UserError(f"two models are named {spec.name}: give one another name: {{'NAME': model}}")
    return spec.name


def people_of(cards: Any, profiles: bool, language: str | None) -> list[RoleCard | Profile]:
    """Role cards, or profiles, of records, of dicts with their fields or of a frame of pandas or polars. `language`: that of
    cards that name none. Raises one `UserError` with every fault, by position and field."""
    rows, where = _rows(cards), "profiles" if profiles else "cards"
    with Faults() as faults:
        if profiles:
            return _records(rows, Profile, where, faults)
        dicts = [CorpusRow(f"cards[{place}]", row) for place, row in enumerate(rows) if not isinstance(row, RoleCard | Profile)]
        made = iter(own_cards(dicts, where, faults, language))
        if not faults.found:
            return [row if isinstance(row, RoleCard | Profile) else next(made) for row in rows]
    raise AssertionError("the faults were told")


def given_dialogues(dialogues: Any, settings: Mapping[str, Any]) -> list[Dialogue]:
    """Dialogues of records, or of dicts with their fields or in another form (`data_prep.dialogue_files`), as `people_of`."""
    placed = ((f"dialogues[{place}]", row) for place, row in enumerate(_rows(dialogues)))
    return dialogues_of(placed, only_language(settings), settings.get("roles"), "own").dialogues


def only_language(settings: Mapping[str, Any]) -> str | None:
    """The language of what names none: that of the settings, where there is one."""
    languages = settings.get("languages", ())
    return languages[0] if len(languages) == 1 else None


def with_rubric(settings: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The settings of a run, where a `Rubric`, or a dict of its fields, is a file in `folder`."""
    rubric = settings.get("rubric")
    if isinstance(rubric, Mapping):
        rubric = validated(Rubric, rubric, "rubric")
    if not isinstance(rubric, Rubric):
        return settings
    path = folder / "rubric.yaml"
    write_text(path, yaml.safe_dump(rubric.model_dump(mode="json"), allow_unicode=True, sort_keys=False))
    return {**settings, "rubric": str(path)}


def _rows(given: Any) -> list[Any]:
    """The rows of a frame as dicts, or what else is iterated over."""
    if hasattr(given, "to_dicts"):  # polars
        return list(given.to_dicts())
    if hasattr(given, "iterrows"):  # pandas
        return list(given.astype(object).where(given.notna(), None).to_dict("records"))
    return [{str(key): value for key, value in row.items()} if isinstance(row, Mapping) else row for row in given]


def _records(rows: Iterable[Any], model: type[M], where: str, faults: Faults) -> list[M]:
    """Rows as records."""
    records = []
    for place, row in enumerate(rows):
        try:
            records.append(row if isinstance(row, model) else model.model_validate(row))
        except ValidationError as error:
            faults.found += [f"{where}[{place}]: {problem}" for problem in problems_in(error)]
    return records
