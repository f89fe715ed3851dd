"""Path options: what a verb reads and writes is declared at the option, and checked before the verb begins.

    sheet: Annotated[Path, typer.Option(help="…"), IN_FILE]
    out: Annotated[Path, typer.Option(help="…"), OUT_FOLDER]

A program (`core.verbs`) takes a run folder for the file in it that is meant. It refuses an input that is missing, an output
that cannot be one, and an output that would replace an input or be read with it the next time. By then nothing was asked or
written.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from pydantic import BaseModel

from core.addresses import SPEC_FILES, named_part
from core.completion import EVERYWHERE, NAMED
from core.errors import UserError
from core.files import CONFIGS

# What ends so is a file, not the name of something bundled.
SUFFIXES = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv", ".xlsx")


@dataclass(frozen=True)
class Reads:
    """The option names what the verb reads.

    kind: a file, a folder, either of them (place), the name of something bundled or its path (name), or the same of a model,
        which may have an address behind it (model).
    files: patterns of the files that are read in a folder; without any, everything below it is.
    labelled: written NAME=PATH.
    beside: may lie in the folder that the verb writes to: the verb itself leaves it alone.
    made: the command that makes it, for people who lack it.

    Labelled places, and names that are no file's, are looked up by the verb, which says what there is instead; everything else
    has to exist.
    """

    kind: Literal["file", "folder", "place", "name", "model"] = "file"
    files: tuple[str, ...] = ()
    labelled: bool = False
    beside: bool = False
    made: str = ""

    def path(self, value: str) -> Path | None:
        """The path that a value of the option names, if it names one."""
        if self.labelled:
            label, separator, place = value.partition("=")
            value = place if separator and "/" not in label else value
            return None if value.startswith("hf:") else Path(value).expanduser()
        if self.kind == "model" and (spec := named_part(value)) != value:
            return Path(spec) if spec.endswith(SPEC_FILES) else None
        named = self.kind in ("name", "model") and "/" not in value and Path(value).suffix not in SUFFIXES
        return None if named else Path(value)

    def problem(self, path: Path) -> str | None:
        """What keeps a path from being read."""
        if self.kind in ("name", "model"):
            return IN_FILE.problem(path) if path.suffix in SUFFIXES else None
        if self.kind == "place" and self.labelled:
            return None
        if not path.exists():
            if path.is_symlink():
                return f"a link to {path.readlink()}, which does not exist"
            if path.parts[:1] == ("configs",) and (bundled := CONFIGS.parent / path).exists():
                return f"no such {self.kind} here; the bundled one is {bundled}"
            made = f": {self.made.format(path=path)}" if self.made else ""
            return f"no such {'file or folder' if self.kind == 'place' else self.kind}{made}"
        if self.kind != "place" and path.is_dir() != (self.kind == "folder"):
            return f"not a {self.kind}"
        return None if os.access(path, os.R_OK) else "no permission to read it"


@dataclass(frozen=True)
class Writes:
    """The option names what the verb writes: a file or, with `files`, a folder and in it files of these patterns."""

    files: tuple[str, ...] = ()

    def path(self, value: str) -> Path:
        """The path that a value of the option names."""
        return Path(value)

    def problem(self, path: Path) -> str | None:
        """What keeps a path from being written."""
        if "\0" in str(path):
            return "no name can hold a NUL"
        if path.is_symlink() and not path.exists():
            return f"a link to {path.readlink()}, which does not exist"
        if path.exists() and path.is_dir() != bool(self.files):
            return "not a folder" if self.files else "not a file"
        above = next(folder for folder in path.absolute().parents if folder.exists())
        return None if above.is_dir() else f"{above} is a file"


IN_FILE, IN_FOLDER, IN_NAME, IN_SPEC = Reads(), Reads("folder"), Reads("name"), Reads("model")
IN_MODEL = Reads("folder", ("*",))  # a checkpoint or an adapter: its files, not its subfolders
IN_PLACES = Reads("place", ("*",), labelled=True)  # corpora: an output in a subfolder is not read again
OUT_FILE, OUT_FOLDER = Writes(), Writes(("*",))
# The same as types of a verb's parameters; Maybe: of an option that may be left out.
InFile = Annotated[Path, IN_FILE]
InFiles = Annotated[list[Path], IN_FILE]
MaybeFile = Annotated[Path | None, IN_FILE]
MaybeFiles = Annotated[list[Path] | None, IN_FILE]
InName = Annotated[str, IN_NAME]
MaybeName = Annotated[str | None, IN_NAME]
InModel = Annotated[str, IN_SPEC]
InModels = Annotated[list[str], IN_SPEC]
MaybeModel = Annotated[str | None, IN_SPEC]
MaybeModels = Annotated[list[str] | None, IN_SPEC]
MaybeOutFile = Annotated[Path | None, OUT_FILE]
# Where a run folder is given for a file, the file in it is meant (judgements only where one judge gave them).
IN_RUNS = {
    "--dialogues": "dialogues.jsonl",
    "--judgements": "judgements.jsonl",
    "--gold": "gold_scores.jsonl",
    "--cards": "cards.jsonl",
    "--profiles": "profiles.jsonl",
    "--people": "scores.jsonl",  # of a study's export
}
SHEET = Reads(beside=True)  # people fill it in where it was written to


@dataclass(frozen=True)
class PathOption:
    """An option, argument or setting of a config that names paths: the verb's parameter, its name for users, its values."""

    parameter: str
    name: str
    role: Reads | Writes
    values: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        return [path for value in self.values if (path := self.role.path(value)) is not None]


RUNNING: ContextVar[tuple[PathOption, ...]] = ContextVar("path options of the running verb", default=())


def prepare(verb: Callable[..., Any]) -> None:
    """Say how the values of a verb's options are completed (`core.completion`), where the options do not."""
    hints = verb.__annotations__ = get_type_hints(
        verb, include_extras=True
    )  # typer would evaluate the text anew, without these
    for parameter, hint in hints.items():
        metadata = getattr(hint, "__metadata__", ())
        for info in (item for item in metadata if isinstance(item, typer.models.ParameterInfo)):
            name = _name(parameter, metadata)
            named = any(isinstance(role, Reads) and role.kind in ("name", "model") for role in metadata)
            info.autocompletion = info.autocompletion or EVERYWHERE.get(name) or (NAMED.get(name) if named else None)


def begin(verb: Callable[..., Any], arguments: dict[str, Any]) -> Token[tuple[PathOption, ...]]:
    """Check the path options of a verb that is about to run; run folders become the files in them where files are meant.

    Until the token is reset, `check_config` knows these options.
    """
    for option in path_options(verb, arguments):
        name, given = IN_RUNS.get(option.name), arguments.get(option.parameter)
        if name and given and isinstance(option.role, Reads) and option.role.kind == "file":
            several = isinstance(given, list | tuple)
            arguments[option.parameter] = [_in_run(place, name) for place in given] if several else _in_run(given, name)
    options = path_options(verb, arguments)
    check(options)
    return RUNNING.set(options)


def _in_run(place: Path, name: str) -> Path:
    with suppress(OSError, ValueError):  # no path can be like this: `check` says so
        if (place / name).is_file() and not (name == IN_RUNS["--judgements"] and (place / "judges").is_dir()):
            return place / name
    return place


def path_options(verb: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[PathOption, ...]:
    """The path options that a verb declares, with the values given."""
    options = []
    for parameter, hint in get_type_hints(verb, include_extras=True).items():
        metadata = getattr(hint, "__metadata__", ())
        for role in metadata:
            if isinstance(role, Reads | Writes):
                options.append(PathOption(parameter, _name(parameter, metadata), role, _texts(arguments.get(parameter))))
    return tuple(options)


def _name(parameter: str, metadata: Sequence[Any]) -> str:
    """`--out`, or `FILE` of an argument that its help calls `FILE...`."""
    info = next(item for item in metadata if isinstance(item, typer.models.ParameterInfo))
    if isinstance(info, typer.models.ArgumentInfo):
        return (info.metavar or parameter.upper()).split()[-1].rstrip("….")
    spelled = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    return spelled[0] if spelled else "--" + parameter.replace("_", "-")


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


def check(options: Sequence[PathOption]) -> None:
    """Raise `UserError` for the first path that cannot be read or written as declared, or would replace an input."""
    for option in options:
        for path in option.paths:
            try:
                problem = option.role.problem(path)
            except OSError as error:  # a name that is too long
                problem = error.strerror
            if problem:
                raise UserError(f"{option.name} {path}: {problem}")
    _check_apart(options)


def check_config(config: BaseModel) -> None:
    """Raise `UserError` where the running verb would replace what a config names.

    Inputs are the fields that are declared as such. An output of the verb that the config has a field for is where that says.
    """
    options = [
        replace(option, values=_texts(getattr(config, option.parameter)))
        if isinstance(option.role, Writes) and hasattr(config, option.parameter)
        else option
        for option in RUNNING.get()
    ]
    _check_apart([*options, *_settings(config)])


def _settings(config: BaseModel, above: str = "") -> Iterator[PathOption]:
    """The fields of a config, and of its sections, that name what is read."""
    for field, info in type(config).model_fields.items():
        value, name = getattr(config, field), f"{above}{field}"
        if isinstance(value, BaseModel):
            yield from _settings(value, f"{name}.")
        yield from (PathOption(name, name, role, _texts(value)) for role in info.metadata if isinstance(role, Reads))


def _check_apart(options: Sequence[PathOption]) -> None:
    """Raise `UserError` where an output would replace an input, or be read with it the next time."""
    for output, source in itertools.product(options, options):
        if isinstance(output.role, Writes) and isinstance(source.role, Reads) and output.parameter != source.parameter:
            for target, path in itertools.product(output.paths, source.paths):
                try:
                    problem = _clash(target, output.role, path, source.role)
                except (OSError, RuntimeError, ValueError):  # no path can be like this: who looks it up says so
                    continue
                if problem:
                    another = "choose another folder" if output.role.files else "choose another name"
                    raise UserError(f"{output.name} {target}: {source.name} {problem}: {another}")


def _clash(target: Path, writes: Writes, path: Path, reads: Reads) -> str | None:
    """What an output would do to an input."""
    if path.is_dir() and not reads.files:
        folder, held = path.resolve(), target.resolve()
        inside = any(place.is_relative_to(folder) for place in _places(target))
        below = f"{folder.relative_to(held)}/" if folder.is_relative_to(held) else None
        if inside or (below and any(pattern.startswith(below) for pattern in writes.files)):
            return f"{path} is read whole, with what is written there"
        return None
    for file in [path / pattern for pattern in reads.files] if path.is_dir() else [path]:
        if _replaces(target, writes, file) and not (reads.beside and writes.files):
            return f"{file} is read from there and would be replaced"
    return None


def _replaces(target: Path, writes: Writes, file: Path) -> bool:
    """Whether an output is this file, or may write one of its name into the folder that holds it."""
    if not writes.files:
        same = target.exists() and file.exists() and target.samefile(file)  # by a hard link
        pairs = itertools.product(_places(target), _places(file))
        return same or any(one.parent == other.parent and alike(one.name, other.name) for one, other in pairs)
    folder = target.resolve()
    names = [place.relative_to(folder).as_posix() for place in _places(file) if place.is_relative_to(folder)]
    return any(alike(name, pattern) for name, pattern in itertools.product(names, writes.files))


def alike(one: str, other: str) -> bool:
    """Whether two names, or patterns of names, can stand for the same file."""
    either = fnmatch.fnmatch(one, other) or fnmatch.fnmatch(other, one)
    return one == other or (either and one.count("/") == other.count("/"))


def _places(path: Path) -> set[Path]:
    """Where a path is: under its own name, and under that of what it links to."""
    return {path.parent.resolve() / path.name, path.resolve()}
