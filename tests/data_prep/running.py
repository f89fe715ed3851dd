"""The data program as tests run it: in an empty folder, in this process."""

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

from core.errors import UserError

Run = Callable[..., Result]
"""Runs `python -m data_prep` with these arguments (the fixture `run` of conftest.py)."""
# A model for `--model model.yaml@URL`.
SPEC = """name: m
about: scripted
roles: [judge]
languages: [en, zh]
endpoint: {base_url: "http://127.0.0.1:9/v1"}
"""


def ok(result: Result) -> str:
    """What a run printed, on one line, for the console folds lines; it must have ended well."""
    assert result.exit_code == 0, (result.output, result.exception)
    return " ".join(result.output.split())


def refused(result: Result) -> str:
    """The error of a run, which must have ended with one."""
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    return str(result.exception)


def steps(out: str | Path = "out") -> dict[str, tuple[int, int, dict[str, int]]]:
    """(in, out, drops) of every step that a manifest counts."""
    manifest = json.loads((Path(out) / "manifest.json").read_text())
    return {row["step"]: (row["in"], row["out"], row["dropped"]) for row in manifest["steps"]}
