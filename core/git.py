"""The commit of a checkout."""

import subprocess
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[1]


@cache
def git_revision(root: Path = _ROOT) -> str | None:
    """The commit of a checkout (default: of this package), with `+changes` if tracked files differ; None if it is not one."""
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return f"{head}+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *command: str) -> str:
    # Run no program that somebody else's clone names: `status` would start its fsmonitor.
    line = ["git", "-C", str(root), "-c", "core.fsmonitor=false", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
