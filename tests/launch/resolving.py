"""What uv resolves for a machine and a Python that a test is not on: metadata are read, nothing is installed."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from core.files import CONFIGS

ROOT = CONFIGS.parent
UV = Path(sys.executable).parent / "uv"
PYTHONS = ("3.11.7", "3.12", "3.13")  # zensical wants 3.11.5 or newer


class NotResolvedError(Exception):
    """No versions satisfy all requirements."""


def resolve(python: str, extras: Iterable[str], constraints: Path | None = None) -> dict[str, Version]:
    """Name to version of all that this project with extras needs on Linux x86_64. Raises `NotResolvedError`."""
    command = [str(UV), "pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate", "pyproject.toml"]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--python-version", python]
    command += [word for extra in extras for word in ("--extra", extra)]
    command += ["--constraint", str(constraints)] if constraints else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        raise NotResolvedError(done.stderr)
    pins = (line.split(" ")[0].split("==") for line in done.stdout.splitlines())
    return {canonicalize_name(name): Version(version) for name, version in pins}
