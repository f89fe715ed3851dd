"""The Kubernetes Jobs of configs/launch by the Python client's own models, and as what they start; the SkyPilot tasks by
SkyPilot's own parser, and the setup that they share by a real uv."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.files import CONFIGS
from core.settings import load_yaml
from serve.guard import GRACE

ROOT = CONFIGS.parent
JOBS = sorted((CONFIGS / "launch").glob("k8s_*.yaml"))
# The models leave out a field that they do not know, so what the client would send lacks it.
CHECK = """
import json, sys
from kubernetes import client
for job in json.loads(sys.argv[1]):
    try:
        sent = client.ApiClient().sanitize_for_serialization(client.V1Job.from_dict(job))
        print(json.dumps("as it is" if sent == job else "changed"))
    except ValueError as error:
        print(json.dumps(str(error)))
"""


def job_of(path: Path) -> dict[str, Any]:
    job: dict[str, Any] = load_yaml(path, "Kubernetes job")
    return job


@pytest.mark.slurm
@pytest.mark.slow
def test_the_clients_models_take_the_jobs_and_nothing_else(launch_program: Callable[[str], Path]) -> None:
    jobs = [job_of(path) for path in JOBS]
    unknown, mistyped, lacking = (json.loads(json.dumps(jobs[0])) for _ in range(3))
    unknown["spec"]["template"]["spec"]["containers"][0]["gpu"] = 1
    mistyped["spec"]["backoffLimit"] = "2"
    del lacking["spec"]["template"]["spec"]["containers"]
    command = [str(launch_program("python")), "-c", CHECK, json.dumps([*jobs, unknown, mistyped, lacking])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    *told, first, second, third = map(json.loads, done.stdout.splitlines())
    assert [*told, first] == ["as it is"] * len(JOBS) + ["changed"]
    assert "backoffLimit\n  Input should be a valid integer" in second and "containers\n  Input should be a valid list" in third


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_is_replaced_when_its_node_goes_and_resumes_on_its_claim(path: Path) -> None:
    job = job_of(path)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert {"type": "DisruptionTarget", "status": "True"} in [
        condition for rule in spec["podFailurePolicy"]["rules"] for condition in rule.get("onPodConditions", ())
    ]
    assert pod["restartPolicy"] == "Never", "what podFailurePolicy needs"
    assert spec["podReplacementPolicy"] == "Failed", "two pods would meet at the folder's lock"
    assert pod["terminationGracePeriodSeconds"] > 2 * (GRACE + 5), "servers are given that long to end"
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts.values()) == volumes.keys()
    image = (CONFIGS / "containers" / "gpu.Containerfile").read_text()
    assert "WORKDIR /app\n" in image and f"--uid {pod['securityContext']['runAsUser']} --create-home evaluator" in image
    for place in ("/app/runs", "/home/evaluator/.cache"):
        assert volumes[mounts[place]]["persistentVolumeClaim"], "answers, checkpoints and downloads outlive a pod"
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) >= 1
    header = path.read_text().split("\napiVersion:")[0]
    assert f"kubectl create -f configs/launch/{path.name}" in header and "generateName" in job["metadata"]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_no_key_is_in_a_job(path: Path) -> None:
    (container,) = job_of(path)["spec"]["template"]["spec"]["containers"]
    assert "env" not in container and [given.keys() for given in container["envFrom"]] == [{"secretRef"}]
    assert not re.search(r"sk-|hf_|(?i:key|token|secret)\w*=(?![\"']?\$)", path.read_text())


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
@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_the_setup_makes_a_python_311_and_installs_the_pinned_set(path: Path, tmp_path: Path, index: None) -> None:
    """By uv, whatever python3 the image has: here one that only fails."""
    (project := tmp_path / "project").mkdir()
    for name in ("configs", "core", "data_prep", "evalsuite", "serve", "train", "pyproject.toml", "README.md", "LICENSE"):
        (project / name).symlink_to(ROOT / name)
    (bin := tmp_path / ".local" / "bin").mkdir(parents=True)
    (tmp_path / "certifi.txt").write_text("certifi\n")  # as configs/constraints-gpu.txt says
    uv = UV.format(notes=tmp_path / "notes", override=tmp_path / "certifi.txt", real=Path(sys.executable).parent / "uv")
    fails = "#!/bin/sh\nexit 9\n"
    for name, text in {"uv": uv, "python3": fails, "python": fails, "gcc": "#!/bin/sh\n"}.items():
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
