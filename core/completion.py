"""Shell completion: the possible values of options and arguments, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from core.files import CONFIGS
from core.specs import model_names

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
    return _matching(incomplete, [*(str(path.parent) for path in stores), *_files(incomplete, "*/calls.sqlite", up=1)])


def _bundled(folder: str) -> Complete:
    """The names of the files in a folder of configs."""
    return lambda incomplete: _matching(incomplete, [path.stem for path in (CONFIGS / folder).iterdir()])


def _files(incomplete: str, pattern: str, up: int = 0) -> Iterator[str]:
    """Files that match a pattern in the folder typed so far, or the folders `up` levels above them."""
    typed = incomplete[: incomplete.rfind("/") + 1]
    for path in Path(typed or ".").glob(pattern):
        yield typed + (path.parents[up - 1] if up else path).relative_to(typed or ".").as_posix()


def _matching(incomplete: str, words: Iterator[str] | list[str] | tuple[str, ...]) -> list[str]:
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
