"""configs/launch: every script is run by bash with programs that only note how they were called; the notes go through the real
parsers. Nothing is submitted or started; tests/launch does that."""

import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from core.files import CONFIGS
from core.settings import load_yaml
from core.specs import load_spec
from evalsuite.runs.config import EvalConfig, load_config
from evalsuite.runs.shards import Shard
from tests.surface import parsed

ROOT = CONFIGS.parent
FILES = sorted((CONFIGS / "launch").iterdir())
SLURM = [path for path in FILES if path.name.startswith("slurm_")]
SKY = [path for path in FILES if path.name.startswith("sky_")]
FULL = CONFIGS / "eval" / "esc_eval_full.yaml"
# What a Slurm job and a SkyPilot node find in their environment, for the last of the array or nodes.
KNOWN = {
    "ENVIRONMENT": "BATCH",  # Slurm sets it in batch jobs
    "HOME": "/nonexistent",
    "SLURM_SUBMIT_DIR": str(ROOT),
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "32014",
    "SLURM_CPUS_PER_TASK": "64",
    "SLURM_ARRAY_TASK_ID": "7",
    "SLURM_ARRAY_TASK_COUNT": "7",
    "SKYPILOT_NODE_RANK": "6",
    "SKYPILOT_NUM_NODES": "7",
    "SUPPORTER": "embedded",
    "SEEKER_URL": "http://seeker:8000/v1",
    "JUDGE_URL": "http://judge:8001/v1",
    "CONFIG": str(FULL),
}
# One line per call, in one write: programs in the background note theirs at the same time.
STUB = """#!/usr/bin/env bash
line=$(printf '%s\\x1f' {name} "${{@//$'\\n'/$'\\x1e'}}")
echo "$line" >> "$NOTES"
{more}
"""
STUBS = {
    "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"',
    "scontrol": "printf 'node1\\nnode2\\n'",
    "hostname": "echo 10.0.0.1",
    "ray": '[[ $1 != status ]] || echo "0.0/16.0 GPU"',
    **dict.fromkeys(("accelerate", "esc-eval", "cp", "mkdir", "python", "sleep"), ""),
}


def script_of(path: Path) -> str:
    """What a launch file runs, in bash."""
    if path.suffix != ".yaml":
        return path.read_text()
    task = load_yaml(path, "launch file")
    if "run" in task:
        return task["run"].replace("source configs/launch/keep.sh", "keep() { :; }")  # tests/launch/test_keep.py runs it
    (container,) = task["spec"]["template"]["spec"]["containers"]
    return shlex.join([*container["command"], *container.get("args", ())])


def called(script: str, tmp_path: Path, shell: str = "bash") -> list[list[str]]:
    """The command lines that a script comes to, in order."""
    bin = tmp_path / "bin"
    bin.mkdir(exist_ok=True)
    for name, more in STUBS.items():
        (bin / name).write_text(STUB.format(name=name, more=more))
        (bin / name).chmod(0o755)
    (bin / "activate").touch()
    notes = tmp_path / "notes"
    notes.write_text("")
    path = f"{bin}:{os.environ['PATH']}"
    environment = {"PATH": path, "ESC_EVAL_VENV": str(tmp_path), "NOTES": str(notes), **KNOWN}
    script = script.replace("source .venv/bin/activate", f"source {bin}/activate")
    subprocess.run([shell, "-c", script], check=True, env=environment, timeout=60, cwd=tmp_path)
    lines = notes.read_text().removesuffix("\n").split("\n")
    return [[word.replace("\x1e", "\n") for word in line.split("\x1f")[:-1]] for line in lines]


@pytest.fixture(autouse=True)
def files_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are only parsed here: what earlier ones would have made is not there."""
    monkeypatch.setattr("core.paths.check", lambda options: None)


def shown(path: Path, program: str) -> list[list[str]]:
    """The words of every line of a program in a file's comments."""
    text = "\n".join(line[1:].strip() for line in path.read_text().splitlines() if line.startswith("# "))
    return [shlex.split(line) for line in re.findall(rf"^{program} .*", text.replace("\\\n", " "), re.M)]


each_slurm = pytest.mark.parametrize("path", SLURM, ids=lambda path: path.stem)


@each_slurm
def test_slurm_scripts_are_complete(path: Path) -> None:
    text = path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", text, re.M))
    assert {"job-name", "gpus-per-node", "cpus-per-task", "mem", "time", "output"} <= options.keys()
    assert len(options) == text.count("#SBATCH"), "one option a line, in the form --name=value"
    assert text.index("#SBATCH") < text.index("set -euo pipefail"), "Slurm stops reading options at the first command"
    assert "Prerequisite:" in text and f"configs/launch/{path.name}" in text.split("#SBATCH")[0]


@pytest.mark.parametrize("chosen", [None, "other"])
@each_slurm
def test_slurm_scripts_activate_the_users_environment(path: Path, chosen: str | None, tmp_path: Path) -> None:
    """.venv of the folder that the job was submitted from, or ESC_EVAL_VENV; never ENVIRONMENT, which Slurm sets to BATCH."""
    for name in (".venv", "other", "BATCH"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "activate").write_text(f"echo {name}; exit\n")
    (tmp_path / "configs").symlink_to(CONFIGS)
    environment = KNOWN | {"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(tmp_path)}
    environment |= {"ESC_EVAL_VENV": chosen} if chosen else {}
    ran = subprocess.run(["bash", str(path)], env=environment, cwd="/", capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"{chosen or '.venv'}\n", "")


@pytest.mark.parametrize("path", SKY, ids=lambda path: path.stem)
def test_skypilot_tasks_have_its_fields(path: Path) -> None:
    """The fields as SkyPilot 0.14 has them; tests/launch has its own parser."""
    task = load_yaml(path, "SkyPilot task")
    assert task.keys() <= {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup", "run"}
    assert re.fullmatch(r"[A-Z0-9]+:\d+", task["resources"]["accelerators"])
    assert task["resources"].keys() == {"accelerators", "disk_size", "use_spot", "job_recovery"}
    assert task["resources"]["use_spot"] and "sky jobs launch" in path.read_text(), "a managed job is what resumes"
    asked = {name for name, value in (task.get("envs", {}) | task.get("secrets", {})).items() if value is None}
    header = path.read_text().split("\nname:")[0]
    assert all(f"{name}" in header for name in asked), "who has to give a value is told so"
    for place, source in task["file_mounts"].items():
        assert place.startswith("/")
        assert isinstance(source, str) or (source.keys() == {"source", "mode"} and source["mode"] in ("MOUNT", "COPY"))
    for script in (task["setup"], task["run"]):
        assert script.startswith("set -e")
        subprocess.run(["bash", "-n", "-c", script], check=True)


@pytest.mark.parametrize("name", ["slurm_run.sh", "sky_run.yaml", "slurm_ray.sh", "k8s_run.yaml"])
def test_runs_parse_and_name_what_is_there(name: str, tmp_path: Path) -> None:
    path = CONFIGS / "launch" / name
    (words,) = (line[1:] for line in called(script_of(path), tmp_path) if line[0] == "esc-eval")
    given = parsed(["esc-eval", *words])
    assert isinstance(load_config(ROOT / given["config"], {}), EvalConfig)
    if name == "k8s_run.yaml":
        assert all(load_spec(supporter).checkpoint for supporter in given["supporter"]) and given["out"] == "runs/esc_eval"
        return
    if name == "slurm_ray.sh":
        assert given["supporter"] == ["embedded"]
        assert [pair.split("=")[0] for pair in given["settings"]] == ["endpoints.esc-role", "endpoints.esc-rank"]
        return
    assert given["shard"] == "7/7" and given["out"] == "runs/full-7"
    if path.suffix == ".yaml":
        (line,) = shown(path, "esc-eval")
    else:
        (job,) = (words[words.index("--wrap") + 1] for words in shown(path, "sbatch") if "--wrap" in words)
        (line,) = called(job, tmp_path, shutil.which("dash") or "sh")  # Slurm's shell for --wrap is /bin/sh
    merged = parsed(line)
    assert [folder.name for folder in merged["folders"]] == [f"full-{index}" for index in range(1, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["slurm_train_role.sh", "slurm_train_rank_paper.sh", "sky_train_role.yaml", "k8s_train_role.yaml"]
)
def test_trainings_parse_with_the_recipes_global_batch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.train.test_configs import launched

    path = CONFIGS / "launch" / name
    monkeypatch.setitem(KNOWN, "SLURM_ARRAY_TASK_ID", "12")
    (words,) = (line for line in called(script_of(path), tmp_path) if line[0] == "accelerate")
    monkeypatch.chdir(ROOT)
    processes, recipe = launched(words)
    given = load_yaml(recipe.file, "recipe")
    size = recipe.training.per_device_train_batch_size * recipe.training.gradient_accumulation_steps * processes
    assert size == given["per_device_train_batch_size"] * given["gradient_accumulation_steps"]
    if "paper" in name:
        assert (recipe.data.dimension, recipe.data.language) == ("skill", "zh")
        assert recipe.training.output_dir == "runs/esc-rank-paper/skill-zh"
    if name == "slurm_train_role.sh":
        assert words[words.index("--machine_rank") + 1] == "1" and words[words.index("--main_process_ip") + 1] == "node1"


def test_the_full_run_is_table_2_and_none_of_its_shards_needs_more_than_three_supporters() -> None:
    config = load_config(FULL, {})
    assert len(config.supporters) == 14
    speakers = [load_spec(name) for name in config.supporters]
    cards = {"en": 331, "zh": 324}
    jobs = [spec.name for spec in speakers for language in spec.languages for _ in range(cards.get(language, 0))]
    assert len(jobs) == 331 * 14 + 324 * 12 == 8522
    shards = [Counter(Shard(index, 7).take(jobs)) for index in range(1, 8)]
    assert {sum(counts.values()) for counts in shards} == {1217, 1218}
    served = [{name for name in counts if load_spec(name).checkpoint} | {"esc-role", "esc-rank"} for counts in shards]
    assert max(map(len, served)) == 5, "the servers that the header counts"


def test_what_jobs_take_stands_in_one_place() -> None:
    """The planner's table (tests/serve/test_hardware.py); headers name it, and no other hours, which would grow old."""
    for path in FILES:
        text = path.read_text()
        assert not re.search(r"[\d.]+ (?:GPU )?hours|\d \$", text), path.name
        place = 'docs/serve-and-scale.md, "What it would cost"' in text or "slurm_run.sh" in text
        assert place or path.stem in ("slurm_ray", "environment", "keep", "k8s_run"), path.name
    assert "## What it would cost" in (ROOT / "docs" / "serve-and-scale.md").read_text()


def test_slurm_and_skypilot_divide_the_run_alike() -> None:
    options = dict(re.findall(r"#SBATCH --([a-z-]+)=(\S+)", (CONFIGS / "launch" / "slurm_run.sh").read_text()))
    assert options["array"] == "1-7" and options["gpus-per-node"] == "4"
    task = load_yaml(CONFIGS / "launch" / "sky_run.yaml", "SkyPilot task")
    assert task["num_nodes"] == 7 and task["resources"]["accelerators"] == "H100:4"
