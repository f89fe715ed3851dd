"""configs/constraints-gpu.txt: nothing but pins, which satisfy the extras, and which a resolver still finds."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.files import CONFIGS

ROOT = CONFIGS.parent
FILE = CONFIGS / "constraints-gpu.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("gpu", "data", "metrics", "tasks", "ray")
OPEN = {"certifi"}  # the file's header says why


def pins() -> dict[str, Version]:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.+!]+", line) for line in lines), "a name and a version, no address"
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def test_every_requirement_is_pinned_to_a_version_that_it_takes() -> None:
    wanted = [*PROJECT["dependencies"], *(line for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra])]
    pinned = pins()
    for requirement in map(Requirement, wanted):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_what_is_left_open_is_said() -> None:
    header = [line for line in FILE.read_text().splitlines() if line.startswith("#")]
    assert not OPEN & pins().keys() and all(name in "\n".join(header) for name in OPEN)


@pytest.mark.slow
def test_a_resolver_finds_the_whole_set(tmp_path: Path, index: None) -> None:
    """With nothing but these pins: none contradicts another, and none is missing."""
    (tmp_path / "open.txt").write_text("\n".join(OPEN))
    command = [
        str(Path(sys.executable).parent / "uv"),
        "pip",
        "compile",
        "--quiet",
        "--no-config",
        "--no-header",
        "--no-annotate",
    ]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.11", "--constraint", str(FILE)]
    command += ["--override", str(tmp_path / "open.txt"), *(word for extra in EXTRAS for word in ("--extra", extra))]
    done = subprocess.run([*command, "pyproject.toml"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in done.stdout.split())}
    assert {name: version for name, version in found.items() if name not in OPEN} == pins(), "`make constraints-gpu`"
