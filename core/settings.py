"""What the models of our YAML files are made of, and how the command line sets a field of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict

from core.errors import UserError, near
from core.yaml_files import parse_yaml


class Settings(BaseModel):
    """Base of what a YAML file holds: immutable, unknown fields rejected, NaN refused; the text below a field explains it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"pattern {text!r}: {error}") from None


Pattern = Annotated[re.Pattern[str], BeforeValidator(_compiled)]  # without regard to case


def fields_set(settings: Sequence[str]) -> set[str]:
    """The fields of a config that `--set` says something of, or of whose section."""
    return {setting.partition("=")[0].partition(".")[0] for setting in settings}


def with_settings(values: Mapping[str, Any], settings: Sequence[str], model: type[BaseModel]) -> dict[str, Any]:
    """The values of a config with those of `--set FIELD=VALUE`; a field in a section is SECTION.FIELD, and a value is YAML.

    One value stands for a list of one, and a list may be given item by item. Raises `UserError` for a field that the model
    does not have, with near names, and for one that is given twice.
    """
    changed, given = dict(values), set[str]()
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: write FIELD=VALUE, or SECTION.FIELD=VALUE")
        field = name
        place: dict[str, Any] = changed
        section: type[BaseModel] | None = model
        while section and "." in field:
            part, _, field = field.partition(".")
            section, keyed = _section(section, part, name)
            above = place.get(part) or {}
            if not isinstance(above, Mapping):
                raise UserError(f"--set {name}: {part} is {above!r} already, which has no fields: keep one of the two")
            place[part] = dict(above)
            place = place[part]
            if keyed and "." in field and section:  # a model for each key
                key, _, field = field.rpartition(".")
                place[key] = dict(place.get(key) or {})
                place = place[key]
            elif keyed:
                section = None
        if section and field not in section.model_fields:
            raise UserError(f"--set {name}: unknown field {field!r}: {near(field, section.model_fields)}")
        value = parse_yaml(text, f"--set {name}")
        if section and _is_list(section.model_fields[field].annotation) and isinstance(value, str | int | float):
            value = [*(place[field] if name in given else ()), value]
        elif name in given:
            raise UserError(f"--set {name}: given twice: keep one")
        given.add(name)
        place[field] = value
    return changed


def _section(model: type[BaseModel], field: str, name: str) -> tuple[type[BaseModel] | None, bool]:
    """The model of a section, or of each value of a mapping if these are models; and whether it is a mapping, whose keys are
    free (and may have dots)."""
    if field not in model.model_fields:
        raise UserError(f"--set {name}: unknown field {field!r}: {near(field, model.model_fields)}")
    annotation = model.model_fields[field].annotation
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    found = next((kind for kind in kinds if get_origin(kind) is None and issubclass(kind, BaseModel)), None)
    keyed = get_origin(annotation) is dict
    if found is None and not keyed:
        raise UserError(f"--set {name}: {field} is no section: write --set {field}=VALUE")
    return found, keyed


def _is_list(annotation: Any) -> bool:
    return any(get_origin(kind) is list for kind in (annotation, *get_args(annotation)))
