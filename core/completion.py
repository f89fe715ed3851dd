"""Shell completion: the possible values of options and arguments, by their names."""

from collections.abc import Callable, Iterable
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
    below = (place.removesuffix("/calls.sqlite") for place in _files(incomplete, "*/calls.sqlite"))
    return _matching(incomplete, [*(str(path.parent) for path in stores), *below])


def _bundled(folder: str) -> Complete:
    """The names of the files in a folder of configs."""
    return lambda incomplete: _matching(incomplete, [path.stem for path in (CONFIGS / folder).iterdir()])


def _files(incomplete: str, pattern: str) -> list[str]:
    """Files that match a pattern in the folder typed so far."""
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
