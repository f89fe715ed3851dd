"""The wheel as somebody installs it, without a network: programs, servers and Python work, and a hidden package is named."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from esc_eval import ROOMS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that the wheel is installed into."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    done = subprocess.run([*pip, "--target", site, ROOT], capture_output=True, text=True, timeout=200, check=False)
    assert not done.returncode, done.stderr
    return site


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python with these packages and this environment's others, but without the checkout, which a .pth file names (-S)."""

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(site), sysconfig.get_path("purelib")])
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return call


# A server is any program that answers /health: here one that serves a file of that name, below the guard.
USE = """
import json
import sys
from pathlib import Path
from esc_eval import load_run
from evalsuite.runs.framework import entries, framework_of
from serve.command import PORT, ServerPlan
from serve.launch import Servers

Path("health").touch()
with Servers([ServerPlan("s", "x", ["s"], [sys.executable, "-m", "http.server", PORT], {}, Path("server.log"))]) as servers:
    up = list(servers.endpoints)
print(json.dumps([len(load_run("run").dialogues), up, sorted(framework_of(name).name for name in entries())]))
"""


@pytest.mark.full  # CI replays a run from a wheel on each change
def test_programs_servers_and_python_work_from_it(site: Path, python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"bin", "configs", "esc_eval.py", *ROOMS}
    for program in ("esc-eval", "esc-data", "esc-train", "esc-serve"):
        assert f"Usage: {program} " in python(site / "bin" / program, "--help").stdout
    config = site / "configs" / "eval" / "demo.yaml"
    run = python(site / "bin" / "esc-eval", "run", "--config", config, "--set", "replay=demo", "--out", "run")
    assert "A replay of demo" in run.stdout, run.stderr
    used = python("-c", USE)
    dialogues, up, frameworks = json.loads(used.stdout.splitlines()[-1])
    assert (dialogues, up) == (24, ["s"]) and {"esc_eval", "emoharbor", "feel"} <= set(frameworks)


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_that_hides_one_of_ours_is_named(room: str, tmp_path: Path) -> None:
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").touch()
    command = [sys.executable, "-S", "-c", "from esc_eval import esc_eval; esc_eval()", "doctor"]
    path = os.pathsep.join([str(tmp_path), str(ROOT), sysconfig.get_path("purelib")])
    run = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1 and f"belongs to another package called {room}" in run.stderr and "Traceback" not in run.stderr
