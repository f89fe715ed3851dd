"""YAML files (configs, specs, rubrics): the base of their models, reading with errors that name file, line and field, `--set`,
lists of patterns, and differences between two configs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Annotated, Any, TypeVar, get_args, get_origin

import orjson
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, RootModel, ValidationError

from core.errors import UserError, near
from core.files import CONFIGS, DEEPEST, problems_in, read_text

M = TypeVar("M", bound=BaseModel)

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is about ten times as fast


class _OnceLoader(_Loader):
    """YAML's safe loader with two rules of YAML 1.2: a duplicate key is an error (the later value would silently win), and only
    true and false are truth values (yes and off are levels of rubrics, and no is Norwegian)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        result: dict[Any, Any] = super().construct_mapping(node, deep)
        return result


_OnceLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":bool")]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_OnceLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|True|TRUE|false|False|FALSE"), [*"tTfF"])

# A text with fewer brackets and shallower indents is not deeply nested; only others are checked event by event.
_BRACKETS, _INDENTED = 100, re.compile(r"^[ ?-]{60}", re.MULTILINE)


def _too_deep(text: str) -> int | None:
    """The line of a value nested deeper than `DEEPEST`, if any: libyaml's recursion would crash the process."""
    if text.count("[") + text.count("{") < _BRACKETS and not _INDENTED.search(text):
        return None
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST and event.start_mark:
            return event.start_mark.line + 1
    return None


def load_yaml(path: Path, what: str) -> Any:
    """The value of a YAML file. Raises `UserError` with file and line."""
    return parse_yaml(read_text(path, what), path)


def parse_yaml(text: str, place: object) -> Any:
    """The value of a YAML text. Raises `UserError` with its place and the line."""
    try:
        if line := _too_deep(text):
            raise UserError(f"{place}:{line}: malformed YAML: nested too deeply")
        return yaml.load(text, Loader=_OnceLoader)
    except yaml.MarkedYAMLError as error:
        at_line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{place}{at_line}: malformed YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2024-13-41 looks like a date
        raise UserError(f"{place}: malformed YAML: {' '.join(str(error).split())}") from None


def read_yaml(path: Path, model: type[M], what: str) -> M:
    """A YAML file as a model. Raises `UserError` with file, line and field."""
    value = load_yaml(path, what)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        location = error.errors(include_url=False)[0]["loc"]
        told = (problem.removeprefix("record: ") for problem in problems_in(error))
        raise UserError(f"{path}{_line_of(path, location)}: {'; '.join(told)}") from None


def read_named(folder: str, name: str, model: type[M], what: str) -> M:
    """A bundled config by name (configs/FOLDER/NAME.yaml), or any other by path. Raises `UserError` with similar names."""
    if name.endswith((".yaml", ".yml")):
        return read_yaml(Path(name), model, what)
    path = CONFIGS / folder / f"{name}.yaml"
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", name) or not path.is_file():
        problem = "a file must end in .yaml" if "/" in name else near(name[:100], (p.stem for p in path.parent.glob("*.yaml")))
        raise UserError(f"unknown {what} {name[:100]!r}: {problem}")
    return read_yaml(path, model, what)


def _line_of(path: Path, location: tuple[int | str, ...]) -> str:
    """`:line` of a field in a YAML file, or of the deepest existing node on the way to it."""
    node = yaml.compose(read_text(path, "YAML"), Loader=_Loader)
    line = node.start_mark.line if node is not None else 0
    for part in location:
        children = {}
        if isinstance(node, yaml.MappingNode):
            children = {str(key.value): (key, value) for key, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            children = {str(index): (item, item) for index, item in enumerate(node.value)}
        if str(part) not in children:
            break
        key, node = children[str(part)]
        line = key.start_mark.line
    return f":{line + 1}"


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


class Patterns(RootModel[tuple[Pattern, ...]]):
    """Patterns in order. Each is searched only in texts with its signs, strings in every match, since most texts match few."""

    def __len__(self) -> int:
        return len(self.root)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The spans of all matches, pattern by pattern."""
        return [match.span() for place in self.candidates(text) for match in self.root[place].finditer(text)]

    def candidates(self, text: str) -> list[int]:
        """The places of the patterns that may match, since the text contains their signs."""
        folded = _folded(text)
        first, further = self._signs
        present = {place for sign, places in first.items() if sign in folded for place in places}
        return sorted(place for place in present if all(any(sign in folded for sign in choices) for choices in further[place]))

    @cached_property
    def _signs(self) -> tuple[dict[str, list[int]], list[list[set[str]]]]:
        """Sign → the places of its patterns, for the first set of each pattern's signs; and every pattern's other sets."""
        places: dict[str, list[int]] = {}
        further = []
        for place, pattern in enumerate(self.root):
            first, *others = _signs(parser.parse(pattern.pattern, pattern.flags)) or [{""}]
            for sign in _shortest(first):
                places.setdefault(sign, []).append(place)
            further.append([_shortest(choices) for choices in others])
        return places, further


def _shortest(signs: set[str]) -> set[str]:
    return {sign for sign in signs if not any(other in sign for other in signs - {sign})}


def _signs(parsed: Iterable[tuple[Any, Any]]) -> list[set[str]]:
    """Sets of strings, `_folded`, such that every match of a parsed pattern contains a string of each set; a small set of
    strings of at least three letters first, since few texts contain one and the search for them is short."""
    sets, run = [], ""
    for op, value in [*_ungrouped(parsed), (ops.AT, None)]:
        letter = chr(value).lower() if op is ops.LITERAL else ""
        if letter and (letter.isascii() or letter == letter.upper()):
            run += letter
            continue
        before, run = run, ""
        sets += [{before}] if before else []
        if op is ops.BRANCH:
            # The parser takes out the common beginning of alternatives: "thanks|thank you" is "thank" and "s| you".
            words = [_word(alternative) for alternative in value[1]]
            sets += [{before + word for word in words}] if before and all(words) else []
            alternatives = [_signs(alternative) for alternative in value[1]]
            sets += [set().union(*(signs[0] for signs in alternatives))] if all(alternatives) else []
        elif op is ops.IN and all(letters := [_word([item]) for item in value]):
            sets.append(set(letters))
        elif op in parser._REPEATCODES and value[0]:
            sets += _signs(value[-1])
    return sorted(sets, key=lambda signs: (-min(3, *map(len, signs)), len(signs)))


def _ungrouped(parsed: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """A parsed pattern with what is in its groups in their place."""
    for op, value in parsed:
        yield from _ungrouped(value[-1]) if op is ops.SUBPATTERN else [(op, value)]


def _word(parsed: Iterable[tuple[Any, Any]]) -> str:
    """The text of a parsed pattern that consists of plain letters; "" for any other."""
    letters = [chr(value).lower() if op is ops.LITERAL else "" for op, value in parsed]
    return "".join(letters) if all(letter and (letter.isascii() or letter == letter.upper()) for letter in letters) else ""


def _folded(text: str) -> str:
    """The text in lower case, with the three other letters that case-insensitive patterns match as Latin ones."""
    if text.isascii():
        return text.lower()
    return text.replace("İ", "i").replace("ı", "i").replace("ſ", "s").lower()
