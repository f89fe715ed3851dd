"""What a shell completes: the values of options and arguments, by how they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from core.files import CONFIGS
from core.specs import model_names

Complete = Callable[[str], list[str]]


def _models(incomplete: str) -> list[str]:
    return _matching(incomplete, [*model_names(), *_files(incomplete, "*.yaml")])


def _configs(incomplete: str) -> list[str]:
    """Bundled run configs, as paths from here where they are below it, and files of one's own."""
    bundled = CONFIGS / "eval"
    below = bundled.is_relative_to(Path.cwd())
    paths = [path.relative_to(Path.cwd()) if below else path for path in bundled.glob("*.yaml")]
    return _matching(incomplete, [*map(str, paths), *_files(incomplete, "*.yaml")])


def _runs(incomplete: str) -> list[str]:
    """Folders with a call store, in runs/ and where the word leads."""
    found = [*Path("runs").glob("*/*/calls.sqlite"), *Path("runs").glob("*/calls.sqlite")]
    return _matching(incomplete, [*(str(path.parent) for path in found), *_files(incomplete, "*/calls.sqlite", up=1)])


def _of(*parts: str) -> Complete:
    """The names of what is bundled in a folder of configs."""
    return lambda incomplete: _matching(incomplete, [path.stem for path in CONFIGS.joinpath(*parts).iterdir()])


def _one_of(*words: str) -> Complete:
    return lambda incomplete: _matching(incomplete, words)


def _files(incomplete: str, pattern: str, up: int = 0) -> Iterator[str]:
    """Files of a pattern in the folder that a word leads to, or the folders `up` of them."""
    typed = incomplete[: incomplete.rfind("/") + 1]
    for path in Path(typed or ".").glob(pattern):
        yield typed + (path.parents[up - 1] if up else path).relative_to(typed or ".").as_posix()


def _matching(incomplete: str, words: Iterator[str] | list[str] | tuple[str, ...]) -> list[str]:
    return sorted({word for word in words if word.startswith(incomplete)})


# Of options whose values are names of something bundled, or files.
NAMED: dict[str, Complete] = {
    **dict.fromkeys(("--judge", "--supporter", "--seeker", "--model", "--base", "SPEC"), _models),
    "--prompts": _of("prompts"),
    "--rubric": _of("rubrics"),
    "--paper": _of("reported"),
}
# Of options that mean the same in every verb.
EVERYWHERE: dict[str, Complete] = {
    "--config": _configs,
    "RUN": _runs,
    "--language": _of("languages"),
    "--mode": _one_of("native", "paper"),
}
