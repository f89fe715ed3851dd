"""The options that several verbs share: one name, one meaning, one help text."""

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from core.errors import UserError, near
from core.paths import IN_PLACES, IN_SPEC, Writes
from core.tables import Screen

console = Screen()
T = TypeVar("T", bound=str)


def choice(option: str, text: str, names: tuple[T, ...]) -> T:
    """The name that an option gives. Raises `UserError` that suggests similar names."""
    for name in names:
        if text == name:
            return name
    raise UserError(f"{option}: unknown {option.removeprefix('--')} {text!r}: {near(text, names)}")


def name_and_value(option: str, text: str, form: str) -> tuple[str, str]:
    """The parts of an option NAME=VALUE. Raises `UserError` that shows the `form` for a malformed one."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise UserError(f"{option} {text}: write {form}")
    return name, value


def writes(*files: str) -> Writes:
    """The files that a step writes into --out: those of these patterns, and its manifest."""
    return Writes((*files, "manifest.json"))


_SOURCE = typer.Option(
    "--source",
    metavar="NAME=PLACE",
    help="A corpus and where it is: a folder, a file, or hf:OWNER/DATASET. Repeat for more; `fetch` lists the names. "
    "Your own: generic=FILE (docs/data.md).",
)
_OUT = typer.Option("--out", help="Folder for the output and its manifest.json.")
SourceOption = Annotated[list[str], _SOURCE, IN_PLACES]
SourceIfAnyOption = Annotated[list[str] | None, _SOURCE, IN_PLACES]
OutOption = Annotated[Path, _OUT]  # with `writes(…)`
OutIfAnyOption = Annotated[Path | None, _OUT]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set any field of the config, as YAML: --set FIELD=VALUE, or --set SECTION.FIELD=VALUE. Repeat for more.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="The same seed gives the same bytes; another seed draws other rows.")]
_MODEL = typer.Option(
    "--model",
    metavar="MODEL",
    help="The model to ask: a name in configs/models, a spec file (a server is started for it), or NAME@URL where one "
    "answers already (NAME@URL#VARIABLE: with the key in that environment variable).",
)
ModelOption = Annotated[str, _MODEL, IN_SPEC]
ModelIfAnyOption = Annotated[str | None, _MODEL, IN_SPEC]
