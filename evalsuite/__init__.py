"""The harness: dialogues, judgements, statistics, reports. Importing it never imports torch, vllm or deepspeed.

The Python API: `load_run`, `simulate` and `score` with their async versions, and `UserError`, which they raise.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.errors import UserError
    from evalsuite.api import Results, load_run, score, score_async, simulate, simulate_async

__all__ = ["Results", "UserError", "load_run", "score", "score_async", "simulate", "simulate_async"]


def __getattr__(name: str) -> Any:
    """Import the API on first use, so that commands that do not need it start faster."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evalsuite import api

    return getattr(api, name)
