"""The project's API and its console scripts: `from esc_eval import load_run`, `esc-eval run`.

The wheel has the same packages at its top as the checkout, so an import is spelled one way everywhere
(docs/decisions/one-import-name.md says what that costs).
"""

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite import Results, UserError, load_run, score, score_async, simulate, simulate_async

ROOMS = ("core", "data_prep", "evalsuite", "serve", "train")
__all__ = ["Results", "UserError", "load_run", "score", "score_async", "simulate", "simulate_async"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for, as in `evalsuite`: a console script loads this module first."""
    if name == "load_environment":  # of verifiers.load_environment("esc-eval")
        from evalsuite.verifiers_env import load_environment

        return load_environment
    return getattr(import_module("evalsuite"), name)  # which raises for other names


def _run(module: str) -> None:
    """Run this module's program. Exits if a package of somebody else has the name of one of ours and would be loaded."""
    for room in ROOMS:
        place = getattr(find_spec(room), "origin", None)
        if place and Path(place).parents[1] != Path(__file__).parent:
            raise SystemExit(
                f"error: {place} belongs to another package called {room}, which hides ours: install esc-eval in an "
                "environment of its own (uv tool install, pipx or a new venv)"
            )
    from core.starting import interrupted  # noqa: F401 - before what takes long to load

    import_module(module).main()


# The console scripts, by the names of their programs.
esc_eval = partial(_run, "evalsuite.cli")
esc_data, esc_train, esc_serve = (partial(_run, f"{room}.__main__") for room in ("data_prep", "train", "serve"))
