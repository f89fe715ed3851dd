"""The wheel as somebody installs it: beside other packages that are called `train` and `serve`, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from hatch_build import PROGRAMS, ROOMS, moved

ROOT = Path(__file__).parents[1]
OTHERS = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "somebodys-own"
version = "1"
[tool.hatch.build.targets.wheel]
packages = ["train", "serve"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: ours, and those of a project that has `train` and `serve`."""
    site, others = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("others")
    for name in ("train", "serve"):
        (others / name).mkdir()
        (others / name / "__init__.py").write_text("mine = True\n")
    (others / "pyproject.toml").write_text(OTHERS)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    done = subprocess.run([*pip, "--target", site, others, ROOT], capture_output=True, text=True, timeout=200, check=False)
    assert not done.returncode and "already exists" not in done.stderr, done.stderr
    return site


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs Python with these packages and this environment's others, but without the checkout, which a .pth file names (-S)."""

    def call(*arguments: str | Path) -> str:
        path = os.pathsep.join([str(site), sysconfig.get_path("purelib")])
        run = subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert not run.returncode, run.stderr
        return run.stdout

    return call


@pytest.mark.slow
def test_a_wheel_has_one_name_and_leaves_others_theirs(site: Path, python: Callable[..., str]) -> None:
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"bin", "esc_eval", "train", "serve"}
    assert {path.name for path in (site / "esc_eval").iterdir()} == {"__init__.py", *ROOMS}
    for program in ("esc-eval", *PROGRAMS.values()):
        assert f"Usage: {program} " in python(site / "bin" / program, "--help")


# A server is any program that answers /health: here one that serves a file of that name, below the guard.
USE = """
import json, sys, train, serve
from pathlib import Path
from esc_eval import load_run
from esc_eval.evalsuite.runs.framework import entries, framework_of
from esc_eval.serve.command import PORT, ServerPlan
from esc_eval.serve.launch import Servers

Path("health").touch()
with Servers([ServerPlan("s", "x", ["s"], [sys.executable, "-m", "http.server", PORT], {}, Path("server.log"))]) as servers:
    up = list(servers.endpoints)
frameworks = [framework_of(name).name for name in entries()]
print(json.dumps([train.mine, serve.mine, len(load_run("run").dialogues), up, frameworks, sorted(sys.modules)]))
"""


@pytest.mark.slow
def test_programs_servers_and_python_work_from_it(site: Path, python: Callable[..., str]) -> None:
    config = site / "esc_eval" / "configs" / "eval" / "demo.yaml"
    told = python(site / "bin" / "esc-eval", "run", "--config", config, "--set", "replay=demo", "--out", "run")
    assert "A replay of demo" in told
    mine, theirs, dialogues, up, frameworks, modules = json.loads(python("-c", USE).splitlines()[-1])
    assert (mine, theirs, dialogues, up) == (True, True, 24, ["s"])
    assert {"esc_eval", "emoharbor", "feel"} <= set(frameworks)
    assert [name for name in modules if name.partition(".")[0] in ROOMS] == ["serve", "train"]


def test_imports_move_and_nothing_else() -> None:
    text = '''"""From core: `python -m serve up`, `python -m serve.guard`."""
from core.files import (
    digest,
)
from corex import core
if True:
    from serve import guard  # from core
told = "from core.files import digest"
'''
    assert moved(text, "m.py") == text.replace("python -m serve up", "esc-serve up").replace(
        "from core.files import (", "from esc_eval.core.files import ("
    ).replace("from serve import", "from esc_eval.serve import")


@pytest.mark.parametrize(
    "line", ["import core.files", "import os, train", "if True: from core import files", "x = 1; from core import y"]
)
def test_an_import_that_cannot_be_moved_ends_the_build(line: str) -> None:
    with pytest.raises(ValueError, match=r"m\.py:2: write "):
        moved(f"\n{line}\n", "m.py")
