"""The version of a run folder's form: `format` in its config.json, 1.0 if there is none.

It covers all files that a run writes: records, config, usage, timing, failures and store. Additions that earlier folders lack
raise the minor number, and both forms are read. A change that would be misread raises the major number, and other major
versions are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from core.errors import UserError

FIELD = "format"
FIRST = "1.0"  # folders from before there were versions
CURRENT = "1.1"


def take_version(content: dict[str, Any], path: Path) -> str:
    """Remove the version from the content of a config.json and return it.

    Raises `UserError` for a malformed version, and for a major version that this program does not read.
    """
    version = content.pop(FIELD, FIRST)
    if not (isinstance(version, str) and re.fullmatch(r"[1-9][0-9]{0,5}\.[0-9]{1,6}", version)):
        raise UserError(f'{path}: {FIELD}: expected a version such as "{CURRENT}" (got {str(version)[:60]!r})')
    if version.partition(".")[0] != CURRENT.partition(".")[0]:
        raise UserError(
            f"{path}: {FIELD}: the run has form {version}, and this esc-eval reads {CURRENT.partition('.')[0]}.x: install the "
            "esc-eval that made it (versions.json says which)"
        )
    return version
