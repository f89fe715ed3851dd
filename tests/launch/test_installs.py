"""Every way to install that documents name, on every Python that pyproject.toml promises, and the pinned set for GPUs, as uv
resolves them: metadata are read, nothing is installed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.files import CONFIGS

ROOT = CONFIGS.parent
UV = Path(sys.executable).parent / "uv"
PYTHONS = ("3.11.7", "3.12", "3.13")  # zensical wants 3.11.5 or newer
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS, GPU_SET = CONFIGS / "constraints-cpu.txt", CONFIGS / "constraints-gpu.txt"
GPU_EXTRAS = ("gpu", "data", "metrics", "tasks", "ray", "kernels", "qlora")
CONFLICTS = [tuple(one["extra"] for one in pair) for pair in PROJECT["tool"]["uv"]["conflicts"]]
# `pip install -c FILE '.[gpu,data]'`, as documents, Makefile, launch files and error messages have it.
NAMED = re.compile(r"(?:-c (\S+|\$\(\w+\)) )?(?:-e |--editable )?'(?:\.|esc-eval)\[([a-z,]+)\]'")


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


def named() -> set[tuple[str, str]]:
    """Every combination of extras that is named anywhere, and its file of constraints."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    files = [ROOT / name for name in listed if not name.startswith(("tests/", "configs/reported"))]
    found = set[tuple[str, str]]()
    for path in files:
        if path.suffix in (".md", ".py", ".sh", ".yaml", ".yml", ".Containerfile", "") and path.is_file():
            found |= set(NAMED.findall(path.read_text(encoding="utf-8").replace("$(GPU_SET)", "configs/constraints-gpu.txt")))
    return found


def test_pythons_are_those_of_the_metadata() -> None:
    promised = SpecifierSet(PROJECT["project"]["requires-python"])
    assert [f"3.{minor}" for minor in range(100) if f"3.{minor}" in promised] == ["3.11", "3.12", "3.13"]
    assert all(python in promised for python in PYTHONS)


def test_every_extra_that_is_named_exists() -> None:
    combinations = named()
    assert {"gpu,data", "inspect", "kernels"} <= {extras for _, extras in combinations}
    known = PROJECT["project"]["optional-dependencies"].keys()
    assert {extra for _, extras in combinations for extra in extras.split(",")} <= known
    assert all((ROOT / file).is_file() for file, _ in combinations if file)


@pytest.mark.slow
@pytest.mark.parametrize("python", [*(pytest.param(python, marks=pytest.mark.full) for python in PYTHONS[:-1]), PYTHONS[-1]])
def test_what_make_setup_installs_is_one_set_for_every_python(python: str, index: None) -> None:
    """A line with no marker is what the tools and extras without vLLM need, and each of these has one."""
    lines = [Requirement(line) for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    extras = ("data", "metrics", "people", "inspect", "hub", "tasks", "docs", "dev")
    assert resolve(python, extras, CONSTRAINTS) == {
        canonicalize_name(line.name): Version(str(line.specifier).removeprefix("==")) for line in lines if not line.marker
    }


def gpu_pins() -> dict[str, Version]:
    lines = [line for line in GPU_SET.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.+!]+", line) for line in lines), "a name and a version, no address"
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def test_the_gpu_set_pins_every_requirement_to_a_version_that_it_takes() -> None:
    wanted = [
        *PROJECT["project"]["dependencies"],
        *(line for extra in GPU_EXTRAS for line in PROJECT["project"]["optional-dependencies"][extra]),
    ]
    pinned = gpu_pins()
    for requirement in map(Requirement, wanted):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.slow
@pytest.mark.parametrize("python", [PYTHONS[0], pytest.param(PYTHONS[1], marks=pytest.mark.full), PYTHONS[2]])
def test_a_resolver_finds_the_whole_gpu_set(python: str, index: None) -> None:
    """With nothing but these pins, on every Python: none contradicts another, and none is missing."""
    assert resolve(python, GPU_EXTRAS, GPU_SET) == gpu_pins(), "`make constraints-gpu`"


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_combination_that_is_named_is_resolved(python: str, index: None) -> None:
    for file, extras in named():
        assert resolve(python, extras.split(","), ROOT / file if file else None)


@pytest.mark.full
@pytest.mark.parametrize("pair", CONFLICTS, ids=" ".join)
def test_extras_that_are_said_to_conflict_do(pair: tuple[str, str], index: None) -> None:
    with pytest.raises(NotResolvedError, match="incompatible"):
        resolve("3.12", pair)


@pytest.mark.full
def test_uv_locks_all_extras_and_runs_a_checkout(tmp_path: Path, index: None) -> None:
    """`uv run`, `uvx` and `uv tool install` as in documents. What conflicts unsaid could not be locked."""
    checkout = tmp_path / "checkout"
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    for name in ("pyproject.toml", "README.md", "LICENSE", *wheel):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (checkout / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, checkout / name)
    own = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")} | own

    def uv(*words: str) -> str:
        done = subprocess.run(
            [UV, *words], cwd=checkout, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    uv("lock")
    assert (version := uv("run", "esc-eval", "--version")) == uv("tool", "run", "--from", ".", "esc-eval", "--version")
    uv("sync", "--extra", "data")
    uv("tool", "install", ".")
    done = subprocess.run([tmp_path / "bin" / "esc-eval", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == version == f"esc-eval {PROJECT['project']['version']}\n"
