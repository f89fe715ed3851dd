"""configs/constraints-gpu.txt: nothing but pins, which satisfy the extras, and which a resolver still finds."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.files import CONFIGS
from tests.launch.resolving import PYTHONS, resolve

ROOT = CONFIGS.parent
FILE = CONFIGS / "constraints-gpu.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("gpu", "data", "metrics", "tasks", "ray", "kernels", "qlora")


def pins() -> dict[str, Version]:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.+!]+", line) for line in lines), "a name and a version, no address"
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def test_every_requirement_is_pinned_to_a_version_that_it_takes() -> None:
    wanted = [*PROJECT["dependencies"], *(line for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra])]
    pinned = pins()
    for requirement in map(Requirement, wanted):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.slow
@pytest.mark.parametrize("python", [PYTHONS[0], pytest.param(PYTHONS[1], marks=pytest.mark.full), PYTHONS[2]])
def test_a_resolver_finds_the_whole_set(python: str, index: None) -> None:
    """With nothing but these pins, on every Python: none contradicts another, and none is missing."""
    assert resolve(python, EXTRAS, FILE) == pins(), "`make constraints-gpu`"
