"""What people can type: every verb of every program, loaded."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import typer

import data_prep.__main__
import evalsuite.cli
import serve.__main__
import train.__main__

APPS = {
    "esc-eval": evalsuite.cli.app,
    "data_prep": data_prep.__main__.app,
    "serve": serve.__main__.app,
    "train": train.__main__.app,
}


def command_of(app: typer.Typer) -> Any:
    """A program's command line, with all its verbs loaded."""
    command = typer.main.get_command(app)
    for _ in leaves(command):
        pass
    return command


def leaves(command: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """The verbs below a command: what is typed for each, and its own command."""
    for name in list(getattr(command, "commands", ())):
        yield from leaves(command.get_command(None, name), *words, name)
    if not hasattr(command, "commands"):
        yield " ".join(words), command


COMMANDS = {name: command_of(app) for name, app in APPS.items()}
VERBS: dict[str, Callable[..., Any]] = {
    typed: inspect.unwrap(leaf.callback) for name, command in COMMANDS.items() for typed, leaf in leaves(command, name)
}


def parsed(words: list[str]) -> dict[str, Any]:
    """The values of a verb's options as its own parser reads them; the words begin with the program."""
    command, rest = COMMANDS[words[0]], words[1:]
    while getattr(command, "commands", None):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context(" ".join(words), rest) as context:
        return dict(context.params)
