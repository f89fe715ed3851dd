"""YAML files: configs, specs, rubrics. Errors name file, line and field."""

import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

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
