"""Writes the reference pages (docs/reference/*.md) from the code: commands from the typer apps, fields from the models.

Fields come from pydantic's JSON schema of a model, where a field's docstring is its description. `make docs` runs this.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from core.records import Record
from core.rubrics import Rubric
from core.specs import ModelSpec
from data_prep.profiles import Profile
from data_prep.role_play.mix import RoleSftConfig
from evalsuite.people.commands.people_create import StudyConfig
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.framework import entries, framework_of
from train.recipes import DataArguments, RankArguments, RoleArguments, SupporterArguments

FOLDER = Path(__file__).parent / "reference"
COMMANDS = {
    "esc-eval": ("evalsuite.cli", "esc-eval"),
    "data-prep": ("data_prep.__main__", "python -m data_prep"),
    "serve": ("serve.__main__", "python -m serve"),
    "train": ("train.__main__", "python -m train"),
}
MODELS: dict[str, tuple[str, Sequence[type[BaseModel]]]] = {
    "records": ("Records", [kind for kind in Record.__subclasses__() if kind.__module__ == "core.records"] + [Profile]),
    "specs": ("Model specs", [ModelSpec]),
    "run-config": ("Run configs", [EvalConfig, *(framework_of(name).config_model for name in entries())]),
    "study-config": ("Studies with people", [StudyConfig]),
    "rubrics": ("Rubrics", [Rubric]),
    "role-sft-config": ("The simulator's training set", [RoleSftConfig]),
}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def kind(schema: dict[str, Any]) -> str:
    """What a value may be, in words, with links to other models of the page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(kind(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "prefixItems" in schema:
        return "list: " + ", ".join(kind(part) for part in schema["prefixItems"])
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"mapping to {kind(values)}" if isinstance(values, dict) else "mapping"
    bounds = ", ".join(f"{sign} {schema[name]:,}" for name, sign in BOUNDS.items() if name in schema)
    return schema.get("type", "any") + (f" ({bounds})" if bounds else "")


def default(value: Any) -> str:
    """A default as YAML has it; a dash for what is null, empty or made of defaults."""
    text = json.dumps(value).strip('"')
    return "–" if value in (None, "", []) or isinstance(value, dict) else f"`{text}`"


def table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    """A Markdown table of fields: name, value, default, meaning."""
    lines = [f"| `{name}` | {value} | {default} | {' '.join(meaning.split())} |" for name, value, default, meaning in rows]
    return "\n".join(["| field | value | default | meaning |", "|---|---|---|---|", *lines])


def section(name: str, schema: dict[str, Any]) -> str:
    """A model: its docstring and its fields."""
    rows = []
    for field, part in schema.get("properties", {}).items():
        needed = field in schema.get("required", [])
        rows.append((field, kind(part), "needed" if needed else default(part.get("default")), part.get("description", "")))
    return f"## {name}\n\n{schema.get('description', '')}\n\n{table(rows)}\n"


def models_page(title: str, models: Sequence[type[BaseModel]]) -> str:
    """The models and those that they are made of, each once."""
    sections: dict[str, str] = {}
    for model in models:
        schema = model.model_json_schema()
        for above in {*models} & {*model.__mro__[1:]}:  # what is inherited is not repeated
            inherited = above.model_json_schema()["properties"].items()
            schema["properties"] = dict(field for field in schema["properties"].items() if field not in inherited)
        for name, part in {model.__name__: schema, **schema.get("$defs", {})}.items():
            sections.setdefault(name, section(name, part))
    return f"# {title}\n\n" + "\n".join(sections.values())


def recipes_page() -> str:
    """Our settings of training recipes; everything else in a recipe is TRL's."""
    common = {field.name for field in fields(DataArguments)}
    trl = "`ModelConfig` and `SFTConfig` (supporter: `GRPOConfig`)"
    page = f"# Training recipes\n\nBeside these, a recipe takes every field of TRL's {trl}.\n"
    for model in (DataArguments, RoleArguments, RankArguments, SupporterArguments):
        chosen = [field for field in fields(model) if model is DataArguments or field.name not in common]
        rows = [(field.name, str(field.type), default(field.default), field.metadata["help"]) for field in chosen]
        page += f"\n## {model.__name__}\n\n{model.__doc__}\n\n{table(rows)}\n"
    return page


def main() -> None:
    """Write every page."""
    for name, (module, command) in COMMANDS.items():
        page = FOLDER / f"{name}.md"
        typer = [sys.executable, "-m", "typer", module, "utils", "docs", "--name", command, "--output", str(page)]
        subprocess.run(typer, check=True, stdout=subprocess.DEVNULL)
    for name, (title, models) in MODELS.items():
        (FOLDER / f"{name}.md").write_text(models_page(title, models), "utf-8")
    (FOLDER / "recipes.md").write_text(recipes_page(), "utf-8")


if __name__ == "__main__":
    main()
