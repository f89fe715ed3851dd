"""The project's one name where it is installed as a package: `from esc_eval import load_run`, and its console scripts.

In a checkout this module stands beside the rooms. The wheel has it as `esc_eval/__init__.py`, with the rooms below it
(`hatch_build.py`): no name of ours then meets somebody's own `train` or `serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite import Results, UserError, load_run, score, score_async, simulate, simulate_async

__all__ = ["Results", "UserError", "load_run", "score", "score_async", "simulate", "simulate_async"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for, as in `evalsuite`: whatever is started from the wheel loads this module first."""
    if name == "load_environment":  # of verifiers.load_environment("esc-eval")
        from evalsuite.verifiers_env import load_environment

        return load_environment
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evalsuite import __getattr__ as of_harness

    return of_harness(name)


def esc_eval() -> None:
    """The program of that name."""
    from core.starting import interrupted  # noqa: F401 - before what takes long to load

    from evalsuite.cli import main

    main()


def esc_data() -> None:
    """The program of that name."""
    from core.starting import interrupted  # noqa: F401 - before what takes long to load

    from data_prep.__main__ import main

    main()


def esc_train() -> None:
    """The program of that name."""
    from core.starting import interrupted  # noqa: F401 - before what takes long to load

    from train.__main__ import main

    main()


def esc_serve() -> None:
    """The program of that name."""
    from core.starting import interrupted  # noqa: F401 - before what takes long to load

    from serve.__main__ import main

    main()
