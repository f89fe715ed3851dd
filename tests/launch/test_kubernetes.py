"""The Kubernetes Jobs of configs/launch: by the Python client's own models, and as what they start."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.files import CONFIGS
from core.settings import load_yaml
from serve.guard import GRACE

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
