"""The version of a run folder's form, which its config.json states as `format`. A folder that states none is 1.0.

The form is that of all files that a run writes: records, config, usage, timing, failures and store. The minor number grows
where something was added that earlier folders lack: both are read. The major number grows where a reader of the one would
misread the other: it is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from core.errors import UserError

FIELD = "format"
FIRST = "1.0"  # of folders that were made before there were versions
CURRENT = "1.1"


def take_version(content: dict[str, Any], path: Path) -> str:
    """Take the stated version out of the content of a config.json.

    Raises `UserError` for what is no version, and for a form of another major version than this program reads.
    """
    version = content.pop(FIELD, FIRST)
    if not (isinstance(version, str) and re.fullmatch(r"[1-9][0-9]{0,5}\.[0-9]{1,6}", version)):
        raise UserError(f'{path}: {FIELD}: a version is expected, as "{CURRENT}" (got {str(version)[:60]!r})')
    if version.partition(".")[0] != CURRENT.partition(".")[0]:
        raise UserError(
            f"{path}: {FIELD}: the run has form {version}, and this esc-eval reads {CURRENT.partition('.')[0]}.x: install the "
            "esc-eval that made it (versions.json says which)"
        )
    return version
