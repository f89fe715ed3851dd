"""A cluster for the session's tests, and the folder that jobs are submitted from."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.files import CONFIGS
from tests.launch.cluster import Cluster, missing

ROOT = CONFIGS.parent
LAUNCH_ENVIRONMENT = ROOT / ".venv-launch"


def needed(problem: str | None) -> None:
    """Skip loudly where something is not installed; on CI that is a failure."""
    if problem and os.environ.get("CI") == "true":
        pytest.fail(f"{problem}: `make setup-slurm` installs it")
    if problem:
        pytest.skip(f"THE LAUNCH FILES WERE NOT RUN BY REAL SCHEDULERS: {problem}; `make setup-slurm` (root, Debian)")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needed(missing())
    with Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def launch_program() -> Callable[[str], Path]:
    """A program of the environment that holds Ray and SkyPilot."""

    def program(name: str) -> Path:
        path = LAUNCH_ENVIRONMENT / "bin" / name
        needed(None if path.exists() else f"no {path}")
        return path

    return program


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout as a user has it: the real scripts and configs, and an environment .venv, whose own programs (in .venv/bin)
    come before this one's. Python takes the tests' own project, not an installed one, and notes what it was started as."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copytree(CONFIGS, folder / "configs")
    (folder / "train").symlink_to(ROOT / "train")
    (folder / "runs").mkdir()
    own = folder / ".venv" / "bin"
    own.mkdir(parents=True)
    real = Path(sys.executable).parent
    settings = f"export PATH={own}:$PATH PYTHONPATH={folder}/.venv:{ROOT} HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1"
    (own / "activate").write_text(f"source {real}/activate\n{settings}\n")
    (own / "esc-eval").write_text(f'#!/bin/bash\n{settings}\nexec {real}/esc-eval "$@"\n')  # the merge line names it
    (own / "esc-eval").chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def index() -> None:
    """A package index that answers."""
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), "pip", "compile", "--quiet", "--no-deps", "--no-config", "-"]
    asked = subprocess.run(command, input="certifi", capture_output=True, text=True, timeout=120, check=False)
    if asked.returncode:
        pytest.skip(f"NOTHING WAS RESOLVED FOR GPUS: no package index answers ({asked.stderr.strip().splitlines()[-1:]})")
