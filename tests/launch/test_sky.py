"""The SkyPilot tasks by SkyPilot's own parser, and the setup that they share by a real uv."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.files import CONFIGS
from core.settings import load_yaml

pytestmark = pytest.mark.slow

ROOT = CONFIGS.parent
TASKS = sorted((CONFIGS / "launch").glob("sky_*.yaml"))
GIVEN = {"INPUTS": "s3://my-inputs", "BUCKET": "s3://my-results"}
# Offline: what a cloud has and costs is not asked.
PARSE = """
import json, sys, yaml
from sky.task import Task
for path, given, secrets in json.loads(sys.argv[1]):
    try:
        task = Task.from_yaml_config(yaml.safe_load(open(path)), env_overrides=given, secrets_overrides=secrets)
    except ValueError as error:
        print(json.dumps(str(error)))
        continue
    (resources,) = task.resources
    mounts = {place: [storage.source, storage.mode.value] for place, storage in task.storage_mounts.items()}
    machine = [task.num_nodes, resources.accelerators, resources.disk_size, resources.use_spot, resources.job_recovery]
    print(json.dumps([machine, task.envs, mounts, task.file_mounts, task.setup, task.run]))
"""


@pytest.fixture(scope="module")
def parsed(launch_program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Any]:
    """What SkyPilot makes of every task file, or its complaint: with what the user has to give, and without."""
    launch_program("sky")
    asked, tasks = [], {path: load_yaml(path, "SkyPilot task") for path in TASKS}
    for path, task in tasks.items():
        secrets = [(name, "x") for name in task.get("secrets", {})]
        asked.append((str(path), [item for item in GIVEN.items() if item[0] in task["envs"]], secrets))
        asked.append((str(path), [], secrets))
    environment = os.environ | {"HOME": str(tmp_path_factory.mktemp("home")), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    environment.pop("PYTHONPATH", None)
    command = [str(launch_program("python")), "-c", PARSE, json.dumps(asked)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answers = map(json.loads, done.stdout.splitlines()[-len(asked) :])
    return {(Path(path).stem, bool(given)): answer for (path, given, _), answer in zip(asked, answers, strict=True)}


@pytest.mark.slurm
@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_skypilots_parser_reads_the_task(path: Path, parsed: dict[tuple[str, bool], Any]) -> None:
    task = load_yaml(path, "SkyPilot task")
    machine, envs, mounts, files, setup, run = parsed[path.stem, True]
    name, count = task["resources"]["accelerators"].split(":")
    spot = [True, {"strategy": "EAGER_NEXT_REGION"}]  # others are rented where one is taken away
    assert machine == [task.get("num_nodes", 1), {name: int(count)}, task["resources"]["disk_size"], *spot]
    assert envs["BUCKET"] == GIVEN["BUCKET"] and mounts["/results"] == [GIVEN["BUCKET"], "MOUNT"]
    assert mounts.get("/inputs", ["s3://my-inputs", "COPY"]) == ["s3://my-inputs", "COPY"]
    assert {*(files or {}), *mounts} == task["file_mounts"].keys()
    assert (setup, run) == (task["setup"], task["run"])
    complaint = parsed[path.stem, False]
    assert any(name in complaint for name in GIVEN), "SkyPilot asks for what the user has to give"


# What the test changes about uv: the Python that is here is taken for one that uv brings, and nothing is installed.
UV = """#!/bin/bash
args=()
for word in "$@"; do [[ $word == --managed-python ]] || args+=("$word"); done
if [[ $1 == pip ]]; then args+=(--dry-run --python-platform x86_64-manylinux_2_28); fi
echo "uv $*" >> {notes}
UV_OVERRIDE={override} exec {real} "${{args[@]}}"
"""


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_the_setup_makes_a_python_311_and_installs_the_pinned_set(path: Path, tmp_path: Path, index: None) -> None:
    """By uv, whatever python3 the image has: here one that only fails."""
    (project := tmp_path / "project").mkdir()
    for name in ("configs", "core", "data_prep", "evalsuite", "serve", "train", "pyproject.toml", "README.md", "LICENSE"):
        (project / name).symlink_to(ROOT / name)
    (bin := tmp_path / ".local" / "bin").mkdir(parents=True)
    (tmp_path / "certifi.txt").write_text("certifi\n")  # as configs/constraints-gpu.txt says
    uv = UV.format(notes=tmp_path / "notes", override=tmp_path / "certifi.txt", real=Path(sys.executable).parent / "uv")
    for name, text in {
        "uv": uv,
        "python3": "#!/bin/sh\nexit 9\n",
        "python": "#!/bin/sh\nexit 9\n",
        "gcc": "#!/bin/sh\n",
    }.items():
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    environment = os.environ | {"HOME": str(tmp_path)}
    setup = load_yaml(path, "SkyPilot task")["setup"]
    done = subprocess.run(["bash", "-c", setup], cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version = subprocess.run([project / ".venv" / "bin" / "python", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("Python 3.11.")
    venv, pip = (tmp_path / "notes").read_text().splitlines()
    assert "--managed-python" in venv and "-c configs/constraints-gpu.txt" in pip
