"""Every Slurm script of configs/launch by its own header's line, submitted to a real Slurm; what it starts is real and tiny."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import yaml

from core.files import CONFIGS, write_jsonl
from evalsuite.report.report import PLUMBING
from tests.demo import demo_config
from tests.endpoint import Endpoint
from tests.launch.cluster import Cluster, until
from tests.train.conftest import per_dimension, rank_examples, tiny_checkpoint, write_data, write_recipe

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]

# Imported by every Python of a job. What a training script finds in its environment is noted. A ranker goes on when all have
# come, and only those train that are named.
NOTES = """\
import os, sys, time
from pathlib import Path
script, folder = Path(sys.argv[0] if sys.argv else "").name, Path({notes!r})
if script in ("esc_rank.py", "esc_role.py"):
    task = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ["RANK"]
    names = ("CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR")
    note = "\\n".join(name + "=" + os.environ.get(name, "") for name in names)
    (folder / f"{{script}}-{{task}}.part").write_text(note)
    (folder / f"{{script}}-{{task}}.part").rename(folder / f"{{script}}-{{task}}")
    if script == "esc_rank.py":
        while len(list(folder.glob("esc_rank.py-*[0-9]"))) < 14:
            time.sleep(0.1)
        if task not in {training!r}:
            os._exit(0)
"""


def header_lines(script: Path) -> list[str]:
    """The lines with sbatch in a script's header, as they are typed."""
    text = "\n".join(line[1:].strip() for line in script.read_text().splitlines() if line.startswith("# "))
    return re.findall(r"(?:mkdir -p runs && )?sbatch .*", text.replace("\\\n", " "), re.M)


def note_environments(project: Path, training: tuple[str, ...] = ()) -> Path:
    """Have every training script note its environment; the folder of the notes."""
    notes = project / "notes"
    notes.mkdir()
    (project / ".venv" / "sitecustomize.py").write_text(NOTES.format(notes=str(notes), training=training))
    return notes


def environment_of(note: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in note.read_text().splitlines())


def logs(project: Path) -> str:
    return "\n".join(
        f"{path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted((project / "runs").glob("*.log"))
    )


@pytest.mark.full
def test_training_on_two_nodes_is_requeued_and_goes_on(slurm: Cluster, project: Path) -> None:
    accelerate = project / "configs" / "accelerate" / "multi_node.yaml"
    accelerate.write_text(accelerate.read_text().replace("num_processes: 16", "num_processes: 2"))
    recipe = project / "configs" / "train" / "esc_role_qwen1.5_14b.yaml"
    data = write_data(project / "runs", "role", train=16, valid=4)
    base = tiny_checkpoint(project / "runs" / "base", "qwen2")
    out = project / "runs" / "esc-role"
    write_recipe(recipe, "role", base, data, out, max_steps=40, save_steps=4, save_total_limit=2, per_device_train_batch_size=1)
    notes = note_environments(project)
    (line,) = header_lines(project / "configs" / "launch" / "slurm_train_role.sh")
    job = slurm.submit(line, project, ACCELERATE_USE_CPU="true")  # no GPU: the processes meet over gloo
    until(lambda: (out / "checkpoint-8" / "trainer_state.json").exists(), 240, "no checkpoint came")
    slurm.run("scontrol", "requeue", str(job))
    assert slurm.ended(job) == {"COMPLETED"}, logs(project)
    (log,) = (project / "runs").glob("esc-role-*.log")
    text = log.read_text(errors="replace")
    assert text.count("2 process(es); trainable parameters") == 2, "two tries in one log"
    (step,) = re.findall(r"resuming from .*/checkpoint-(\d+)", text)
    assert 4 <= int(step) < 40
    state = orjson.loads((out / "checkpoint-40" / "trainer_state.json").read_bytes())
    assert [entry["step"] for entry in state["log_history"] if "loss" in entry] == list(range(1, 41))
    assert (out / "adapter" / "adapter_model.safetensors").is_file()
    seen = {name: environment_of(notes / f"esc_role.py-{name}") for name in ("0", "1")}
    assert {found["SLURMD_NODENAME"] for found in seen.values()} == {"127.0.0.1", "127.0.0.2"}
    for found in seen.values():
        assert found["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
        assert found["HF_HOME"].endswith("/huggingface") and found["TRITON_CACHE_DIR"].endswith("/triton")


@pytest.mark.full
def test_fourteen_rankers_train_on_the_gpus_that_they_were_given(slurm: Cluster, project: Path) -> None:
    """All at the same time, each on a GPU of its own; fluency and empathy in English train to the end."""
    notes = note_environments(project, training=("0", "2"))
    recipe = project / "configs" / "train" / "esc_rank_internlm2_7b_paper.yaml"
    data = write_data(project / "runs", "rank")
    for name, count, first in (("train", 16, 0), ("valid", 6, 1000)):
        write_jsonl(project / "runs" / f"{name}.jsonl", per_dimension(rank_examples(count, first)))
    base = tiny_checkpoint(project / "runs" / "base", "llama")
    write_recipe(recipe, "rank", base, data, project / "runs" / "unused", max_steps=2)
    line = header_lines(project / "configs" / "launch" / "slurm_train_rank_paper.sh")[0]
    cache = project / "node-local"
    job = slurm.submit(line, project, ESC_EVAL_CACHE=str(cache))
    assert slurm.ended(job) == {"COMPLETED"}, logs(project)
    seen = [environment_of(path) for path in notes.glob("esc_rank.py-*")]
    assert len(seen) == 14
    given = {(found["SLURMD_NODENAME"], found["CUDA_VISIBLE_DEVICES"]) for found in seen}
    assert len(given) == 14 and all(gpu in list("01234567") for _, gpu in given), given
    for found in seen:
        caches = [found[name] for name in ("HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR")]
        assert caches == [str(cache / name) for name in ("huggingface", "vllm", "triton")]
    for name in ("fluency-en", "empathy-en"):
        assert (project / "runs" / "esc-rank-paper" / name / "adapter" / "adapter_model.safetensors").is_file(), logs(project)


def write_spec(path: Path, name: str, url: str, roles: list[str]) -> str:
    """A model that is served elsewhere; the file's path."""
    endpoint = {"base_url": url, "constraint": "structured_outputs"}
    spec = {"name": name, "about": "scripted", "roles": roles, "languages": ["en", "zh"], "context_length": 8192}
    path.write_text(yaml.safe_dump(spec | {"licence": "none", "endpoint": endpoint | {"model": "embedded"}}))
    return str(path)


def test_shards_are_merged_into_one_run(slurm: Cluster, project: Path) -> None:
    """Three shards and the merge that waits for them, as the header has both, against a scripted endpoint."""
    with Endpoint(models=("embedded",)) as endpoint:
        models = [write_spec(project / f"{name}.yaml", name, endpoint.url, ["seeker", "supporter", "judge"]) for name in "abc"]
        config = demo_config(languages=["en"], limit=7, exchanges=1, seeker=models[0], supporters=models[1:], judge=models[0])
        config["out"] = "runs/full"
        (project / "configs" / "eval" / "esc_eval_full.yaml").write_text(yaml.safe_dump(config))
        script = project / "configs" / "launch" / "slurm_run.sh"
        lines = header_lines(script)
        (parts,) = re.findall(r"^#SBATCH --array=1-(\d+)", script.read_text(), re.M)
        assert f"full-%g {parts})" in lines[1], "as many are merged as are made"
        job = slurm.submit(lines[0].replace("sbatch", "sbatch --array=1-3"), project)
        merge = slurm.submit(lines[1].replace("JOB", str(job)).replace(f"full-%g {parts}", "full-%g 3"), project)
        assert slurm.ended(job) == slurm.ended(merge) == {"COMPLETED"}, logs(project)
    run = json.loads((project / "runs" / "full" / "config.json").read_bytes())
    assert run.get("shard") is None
    dialogues = (project / "runs" / "full" / "dialogues.jsonl").read_text().splitlines()
    assert len(dialogues) == 14 and (project / "runs" / "full" / "report.html").is_file()
    assert len(list((project / "runs").glob("full-*"))) == 3


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.timeout(900)
def test_shards_on_the_embedded_model(slurm: Cluster, project: Path) -> None:
    """Two shards at the same time, each with a server of its own, and their merge."""
    config = demo_config(languages=["en"], limit=4, exchanges=1, supporters=["embedded"], cards=["bundled"])
    (project / "mine.yaml").write_text(yaml.safe_dump(config))
    lines = header_lines(project / "configs" / "launch" / "slurm_run.sh")
    own = next(line for line in lines if "CONFIG=my.yaml" in line)
    job = slurm.submit(own.replace("1-4", "1-2").replace("my.yaml", "mine.yaml"), project, VLLM_CPU_KVCACHE_SPACE="1")
    merge = slurm.submit(
        lines[1].replace("JOB", str(job)).replace("full-%g 7", "mine-%g 2").replace("runs/full", "runs/mine"), project
    )
    assert slurm.ended(job, 600) == slurm.ended(merge) == {"COMPLETED"}, logs(project)
    assert len((project / "runs" / "mine" / "dialogues.jsonl").read_text().splitlines()) == 4
    assert PLUMBING in (project / "runs" / "mine" / "report.html").read_text()


@pytest.fixture
def ray(project: Path, launch_program: Callable[[str], Path]) -> Path:
    """The environment's `ray`, a link to the real one."""
    place = project / ".venv" / "bin" / "ray"
    place.symlink_to(launch_program("ray"))
    return place


def submit_ray(slurm: Cluster, project: Path, url: str, **variables: str) -> int:
    supporter = write_spec(project / "mine.yaml", "mine", url, ["supporter"])
    config = demo_config(
        languages=["en"], limit=2, exchanges=1, seeker="esc-role", supporters=[], judge="esc-rank", prompts=None
    )
    imported = project / "runs" / "esc_eval_clone" / "prompts"  # in place of the published ones
    shutil.copytree(CONFIGS / "prompts" / "esc_eval", imported, dirs_exist_ok=True)
    (project / "configs" / "eval" / "esc_eval.yaml").write_text(yaml.safe_dump(config))
    (line,) = header_lines(project / "configs" / "launch" / "slurm_ray.sh")
    line = re.sub(r"http://HOST:800\d/v1", url, line).replace("mine.yaml", supporter)
    return slurm.submit(line, project, **variables)


def rays() -> list[str]:
    """Ray's processes on this machine."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if Path(words[0]).name in ("raylet", "gcs_server"):
            found.append(words[0])
    return found


@pytest.mark.full
def test_ray_joins_two_nodes_and_is_stopped_at_the_end(slurm: Cluster, project: Path, ray: Path) -> None:
    with Endpoint(models=("embedded", "esc-role", "esc-rank")) as endpoint:
        job = submit_ray(slurm, project, endpoint.url)
        assert slurm.ended(job) == {"COMPLETED"}, logs(project)
    assert len((project / "runs" / "ray" / "dialogues.jsonl").read_text().splitlines()) == 2
    (log,) = (project / "runs").glob("esc-eval-ray-*.log")
    assert log.read_text(errors="replace").count("Ray runtime started") == 2
    assert rays() == []


@pytest.mark.parametrize(
    ("second", "first", "complaint"),
    [
        ("exit 3", ":", "ended before it joined"),  # what Ray does on the first node is seen in the other
        pytest.param("sleep 1000", 'exec {real} "$@"', "did not join Ray at .* within 5 s", marks=pytest.mark.full),
    ],
)
def test_ray_fails_when_the_second_node_does_not_come(
    slurm: Cluster, project: Path, ray: Path, second: str, first: str, complaint: str
) -> None:
    real = ray.readlink()
    ray.unlink()
    ray.write_text(f'#!/bin/bash\nif [[ "$2" == --address ]]; then {second}; fi\n{first.format(real=real)}\n')
    ray.chmod(0o755)
    job = submit_ray(slurm, project, "http://127.0.0.1:9/v1", RAY_WAIT="5")
    assert slurm.ended(job, 90) == {"FAILED"}, logs(project)
    (log,) = (project / "runs").glob("esc-eval-ray-*.log")
    assert re.search(f"error: .*{complaint}", log.read_text(errors="replace")), log.read_text(errors="replace")
    assert not (project / "runs" / "ray").exists(), "the run did not begin"
    assert rays() == []


def test_every_script_is_submitted_here() -> None:
    here = Path(__file__).read_text()
    for script in (CONFIGS / "launch").glob("slurm_*.sh"):
        assert f'"{script.name}"' in here, script.name
