"""The base of the models of our YAML files, `--set`, which sets their fields, and differences between two configs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict

from core.errors import UserError, near
from core.yaml_files import parse_yaml


class Settings(BaseModel):
    """Base of models of YAML files: immutable, unknown fields rejected, NaN refused; docstrings describe the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"pattern {text!r}: {error}") from None


Pattern = Annotated[re.Pattern[str], BeforeValidator(_compiled)]  # case-insensitive


def fields_set(settings: Sequence[str]) -> set[str]:
    """The top-level fields of a config that `--set` changes."""
    return {setting.partition("=")[0].partition(".")[0] for setting in settings}


def with_settings(values: Mapping[str, Any], settings: Sequence[str], model: type[BaseModel]) -> dict[str, Any]:
    """The values of a config with those of `--set FIELD=VALUE`; a field in a section is SECTION.FIELD, and a value is YAML.

    A list may be given item by item. Raises `UserError` for an unknown field, with similar names, and for one that is given
    twice.
    """
    changed, names = dict(values), set[str]()
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
            fields = place.get(part) or {}
            if not isinstance(fields, Mapping):
                raise UserError(f"--set {name}: {part} is already {fields!r}, which has no fields: keep one of the two")
            place[part] = dict(fields)
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
        annotation = section.model_fields[field].annotation if section else None
        is_list = any(get_origin(kind) is list for kind in (annotation, *get_args(annotation)))
        if is_list and isinstance(value, str | int | float):
            value = [*(place[field] if name in names else ()), value]
        elif name in names:
            raise UserError(f"--set {name}: given twice: keep one")
        names.add(name)
        place[field] = value
    return changed


def _section(model: type[BaseModel], field: str, name: str) -> tuple[type[BaseModel] | None, bool]:
    """The model of a section or of a mapping's values, and whether it is a mapping, with free keys (which may have dots)."""
    if field not in model.model_fields:
        raise UserError(f"--set {name}: unknown field {field!r}: {near(field, model.model_fields)}")
    annotation = model.model_fields[field].annotation
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    section = next((kind for kind in kinds if get_origin(kind) is None and issubclass(kind, BaseModel)), None)
    keyed = get_origin(annotation) is dict
    if section is None and not keyed:
        raise UserError(f"--set {name}: {field} is not a section: write --set {field}=VALUE")
    return section, keyed


SHOWN = 60  # characters of a value


def changed_leaves(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The leaves in which two JSON values differ: path, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            yield from changed_leaves(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        yield where, old, new


def differing_leaves(old: Any, new: Any) -> list[str]:
    """The leaves in which two JSON values differ, as `path: old → new`."""
    return [f"{where}: {_short(before)} → {_short(after)}" for where, before, after in changed_leaves(old, new)]


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "…"
