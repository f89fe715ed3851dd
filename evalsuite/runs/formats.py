"""The version of a run folder's form, which its config.json states as `format`. A folder that states none is 1.0.

The form is that of all files that a run writes: records, config, usage, timing, failures and store. The minor number grows
where something was added that earlier folders lack: both are read. The major number grows where a reader of the one would
misread the other. How a folder comes from one to the next is in `evalsuite.runs.migration`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from core.errors import UserError

FIELD = "format"
FIRST = "1.0"  # of folders that were made before there were versions
CURRENT = "1.1"


def numbers(version: str) -> tuple[int, int]:
    """MAJOR.MINOR as numbers, which compare as versions do."""
    major, minor = version.split(".")
    return int(major), int(minor)


def take_version(content: dict[str, Any], path: Path, migrating: bool = False) -> str:
    """Take the stated version out of the content of a config.json.

    Raises `UserError` for what is no version, and for a form of another major version than this program reads; an earlier one
    may be read in order to be migrated.
    """
    version = content.pop(FIELD, FIRST)
    if not (isinstance(version, str) and re.fullmatch(r"[1-9][0-9]{0,5}\.[0-9]{1,6}", version)):
        raise UserError(f'{path}: {FIELD}: a version is expected, as "{CURRENT}" (got {str(version)[:60]!r})')
    if numbers(version)[0] > numbers(CURRENT)[0]:
        raise UserError(
            f"{path}: {FIELD}: the run has form {version}, and this esc-eval reads {numbers(CURRENT)[0]}.x: install a newer "
            "esc-eval (the run's versions.json says which made it)"
        )
    if numbers(version)[0] < numbers(CURRENT)[0] and not migrating:
        raise UserError(
            f"{path}: {FIELD}: the run has form {version}: bring it to {CURRENT} by `esc-eval migrate {path.parent}`"
        )
    return version
