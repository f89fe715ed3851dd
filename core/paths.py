"""Path options: each declares what the verb reads or writes there, and is checked before the verb begins. And the completion of
options in a shell.

    sheet: Annotated[Path, typer.Option(help="…"), IN_FILE]
    out: Annotated[Path, typer.Option(help="…"), OUT_FOLDER]

If an option wants a file and gets a run folder, the program (`core.verbs`) takes the right file in it. It refuses a missing
input, an output that cannot be written, and an output that would replace an input or be read as one next time.
"""

import fnmatch
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, get_type_hints

import typer
from pydantic import BaseModel

from core.endpoints import SPEC_FILES, named_part
from core.errors import UserError
from core.files import CONFIGS
from core.specs import model_names

# Endings that make a value a file, not the name of something bundled.
SUFFIXES = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv", ".xlsx")


@dataclass(frozen=True)
class Reads:
    """The option names an input of the verb.

    `kind`: a file, a folder, either of them (place), the name or path of something bundled (name), or of a model, possibly with
    an address (model). `files` are patterns of the files that are read in a folder; by default, everything below it. It is
    written NAME=PATH if `labelled`, may lie `beside` what the verb writes, and is `made` by this command. Everything but
    labelled places and names must exist.
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
        """Why a path cannot be read, or None."""
        if self.kind in ("name", "model"):
            return IN_FILE.problem(path) if path.suffix in SUFFIXES else None
        if self.kind == "place" and self.labelled:
            return None
        if not path.exists():
            if path.is_symlink():
                return f"a link to {path.readlink()}, which does not exist"
            if path.parts[:1] == ("configs",) and (bundled := CONFIGS.parent / path).exists():
                return f"no such {self.kind} here; the bundled one is {bundled}"
            made = f": {self.made.format(path=quote(str(path)))}" if self.made else ""
            return f"no such {'file or folder' if self.kind == 'place' else self.kind}{made}"
        if self.kind != "place" and path.is_dir() != (self.kind == "folder"):
            return f"not a {self.kind}"
        return None if os.access(path, os.R_OK) else "no permission to read it"


@dataclass(frozen=True)
class Writes:
    """The option names an output of the verb: a file or, with `files`, a folder and files of these patterns in it."""

    files: tuple[str, ...] = ()

    def path(self, value: str) -> Path:
        """The path that a value of the option names."""
        return Path(value)

    def problem(self, path: Path) -> str | None:
        """Why a path cannot be written, or None."""
        if "\0" in str(path):
            return "no name can contain a NUL"
        if path.is_symlink() and not path.exists():
            return f"a link to {path.readlink()}, which does not exist"
        if path.exists() and path.is_dir() != bool(self.files):
            return "not a folder" if self.files else "not a file"
        above = next(folder for folder in path.absolute().parents if folder.exists())
        return None if above.is_dir() else f"{above} is a file"


IN_FILE, IN_FOLDER, IN_NAME, IN_SPEC = Reads(), Reads("folder"), Reads("name"), Reads("model")
IN_MODEL = Reads("folder", ("*",))  # a checkpoint or an adapter: its files, not its subfolders
IN_PLACES = Reads("place", ("*",), labelled=True)  # corpora: outputs in subfolders are not read again
OUT_FILE, OUT_FOLDER = Writes(), Writes(("*",))
# The same as types of a verb's parameters; Maybe: for an option that may be left out.
InFile = Annotated[Path, IN_FILE]
InFiles = Annotated[list[Path], IN_FILE]
MaybeFile = Annotated[Path | None, IN_FILE]
MaybeFiles = Annotated[list[Path] | None, IN_FILE]
InName = Annotated[str, IN_NAME]
MaybeName = Annotated[str | None, IN_NAME]
InModel = Annotated[str, IN_SPEC]
MaybeModel = Annotated[str | None, IN_SPEC]
MaybeModels = Annotated[list[str] | None, IN_SPEC]
MaybeOutFile = Annotated[Path | None, OUT_FILE]
# The file that is meant if an option gets a run folder (judgements only if the run has one judge).
IN_RUNS = {
    "--dialogues": "dialogues.jsonl",
    "--judgements": "judgements.jsonl",
    "--gold": "gold_scores.jsonl",
    "--cards": "cards.jsonl",
    "--profiles": "profiles.jsonl",
    "--people": "scores.jsonl",  # of a study's export
}
SHEET = Reads(beside=True)  # people fill it in where it was written


@dataclass(frozen=True)
class PathOption:
    """An option, argument or config field that names paths: the verb's parameter, its name for users, its values."""

    parameter: str
    name: str
    role: Reads | Writes
    values: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        return [path for value in self.values if (path := self.role.path(value)) is not None]


RUNNING: ContextVar[tuple[PathOption, ...]] = ContextVar("path options of the running verb", default=())


Complete = Callable[[str], list[str]]


def _models(incomplete: str) -> list[str]:
    return _matching(incomplete, [*model_names(), *_files(incomplete, "*.yaml")])


def _configs(incomplete: str) -> list[str]:
    """Bundled run configs (as relative paths below the current folder), and the user's own files."""
    bundled = CONFIGS / "eval"
    below = bundled.is_relative_to(Path.cwd())
    paths = [path.relative_to(Path.cwd()) if below else path for path in bundled.glob("*.yaml")]
    return _matching(incomplete, [*map(str, paths), *_files(incomplete, "*.yaml")])


def _runs(incomplete: str) -> list[str]:
    """Folders with a call store, in runs/ and in the folder typed so far."""
    stores = [*Path("runs").glob("*/*/calls.sqlite"), *Path("runs").glob("*/calls.sqlite")]
    below = (place.removesuffix("/calls.sqlite") for place in _files(incomplete, "*/calls.sqlite"))
    return _matching(incomplete, [*(str(path.parent) for path in stores), *below])


def _bundled(folder: str) -> Complete:
    return lambda incomplete: _matching(incomplete, [path.stem for path in (CONFIGS / folder).iterdir()])


def _files(incomplete: str, pattern: str) -> list[str]:
    typed = incomplete[: incomplete.rfind("/") + 1]
    return [typed + path.relative_to(typed or ".").as_posix() for path in Path(typed or ".").glob(pattern)]


def _matching(incomplete: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(incomplete)})


# Options whose values name something bundled, or a file.
NAMED: dict[str, Complete] = {
    **dict.fromkeys(("--judge", "--supporter", "--seeker", "--model", "--base", "SPEC"), _models),
    "--prompts": _bundled("prompts"),
    "--rubric": _bundled("rubrics"),
    "--paper": _bundled("reported"),
}
# Options that mean the same in every verb.
EVERYWHERE: dict[str, Complete] = {
    "--config": _configs,
    "RUN": _runs,
    "--language": _bundled("languages"),
    "--mode": lambda incomplete: _matching(incomplete, ("native", "paper")),
}


def prepare(verb: Callable[..., Any]) -> None:
    """Add shell completion to a verb's options that have none."""
    hints = verb.__annotations__ = get_type_hints(verb, include_extras=True)  # else typer evaluates them anew, without these
    for parameter, hint in hints.items():
        metadata = getattr(hint, "__metadata__", ())
        for info in (item for item in metadata if isinstance(item, typer.models.ParameterInfo)):
            name = _name(parameter, metadata)
            named = any(isinstance(role, Reads) and role.kind in ("name", "model") for role in metadata)
            info.autocompletion = info.autocompletion or EVERYWHERE.get(name) or (NAMED.get(name) if named else None)


def begin(verb: Callable[..., Any], arguments: dict[str, Any]) -> Token[tuple[PathOption, ...]]:
    """Check the path options of a verb that is about to run, with run folders replaced by the files in them that are meant."""
    for option in path_options(verb, arguments):
        name, value = IN_RUNS.get(option.name), arguments.get(option.parameter)
        if name and value and isinstance(option.role, Reads) and option.role.kind == "file":
            several = isinstance(value, list | tuple)
            arguments[option.parameter] = [_in_run(path, name) for path in value] if several else _in_run(value, name)
    options = path_options(verb, arguments)
    check(options)
    return RUNNING.set(options)


def _in_run(place: Path, name: str) -> Path:
    with suppress(OSError, ValueError):  # an impossible path, which `check` reports
        if (place / name).is_file() and not (name == IN_RUNS["--judgements"] and (place / "judges").is_dir()):
            return place / name
    return place


def path_options(verb: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[PathOption, ...]:
    """The path options of a verb, with their values."""
    options = []
    for parameter, hint in get_type_hints(verb, include_extras=True).items():
        metadata = getattr(hint, "__metadata__", ())
        for role in metadata:
            if isinstance(role, Reads | Writes):
                options.append(PathOption(parameter, _name(parameter, metadata), role, _texts(arguments.get(parameter))))
    return tuple(options)


def _name(parameter: str, metadata: Sequence[Any]) -> str:
    """`--out`, or `FILE` for an argument that the help calls `FILE...`."""
    info = next(item for item in metadata if isinstance(item, typer.models.ParameterInfo))
    if isinstance(info, typer.models.ArgumentInfo):
        return (info.metavar or parameter.upper()).split()[-1].rstrip("….")
    declared = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    return declared[0] if declared else "--" + parameter.replace("_", "-")


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
    """Raise `UserError` if the running verb would replace an input named in its config: a field with a `Reads`. A field of the
    config for an output of the verb is the output."""
    options = [
        replace(option, values=_texts(getattr(config, option.parameter)))
        if isinstance(option.role, Writes) and hasattr(config, option.parameter)
        else option
        for option in RUNNING.get()
    ]
    _check_apart([*options, *_settings(config)])


def _settings(config: BaseModel, above: str = "") -> Iterator[PathOption]:
    for field, info in type(config).model_fields.items():
        value, name = getattr(config, field), f"{above}{field}"
        if isinstance(value, BaseModel):
            yield from _settings(value, f"{name}.")
        yield from (PathOption(name, name, role, _texts(value)) for role in info.metadata if isinstance(role, Reads))


def _check_apart(options: Sequence[PathOption]) -> None:
    """Raise `UserError` if an output would replace an input, or be read with it next time."""
    for output, source in itertools.product(options, options):
        if isinstance(output.role, Writes) and isinstance(source.role, Reads) and output.parameter != source.parameter:
            for target, path in itertools.product(output.paths, source.paths):
                try:
                    problem = _clash(target, output.role, path, source.role)
                except (OSError, RuntimeError, ValueError):  # an impossible path, reported when it is looked up
                    continue
                if problem:
                    what = "folder" if output.role.files else "name"
                    raise UserError(f"{output.name} {target}: {source.name} {problem}: choose another {what}")


def _clash(target: Path, writes: Writes, path: Path, reads: Reads) -> str | None:
    """How an output would damage an input, or None."""
    if path.is_dir() and not reads.files:
        folder, output = path.resolve(), target.resolve()
        inside = any(place.is_relative_to(folder) for place in _places(target))
        below = f"{folder.relative_to(output)}/" if folder.is_relative_to(output) else None
        if inside or (below and any(pattern.startswith(below) for pattern in writes.files)):
            return f"{path} is read whole, with what is written there"
        return None
    for file in [path / pattern for pattern in reads.files] if path.is_dir() else [path]:
        if _replaces(target, writes, file) and not (reads.beside and writes.files):
            return f"{file} is read from there and would be replaced"
    return None


def _replaces(target: Path, writes: Writes, file: Path) -> bool:
    """Whether an output is this file, or may write a file of its name into its folder."""
    if not writes.files:
        same = target.exists() and file.exists() and target.samefile(file)  # by a hard link
        pairs = itertools.product(_places(target), _places(file))
        return same or any(a.parent == b.parent and alike(a.name, b.name) for a, b in pairs)
    folder = target.resolve()
    names = [place.relative_to(folder).as_posix() for place in _places(file) if place.is_relative_to(folder)]
    return any(alike(name, pattern) for name, pattern in itertools.product(names, writes.files))


def alike(a: str, b: str) -> bool:
    """Whether two names, or patterns of names, can stand for the same file."""
    either = fnmatch.fnmatch(a, b) or fnmatch.fnmatch(b, a)
    return a == b or (either and a.count("/") == b.count("/"))


def _places(path: Path) -> set[Path]:
    """A path's absolute places: by its own name, and by the target of its link."""
    return {path.parent.resolve() / path.name, path.resolve()}
