"""`make gpu-check` without a GPU: its arithmetic, its failures, and all of it once at tiny size."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_object
from serve.checkpoints.places import materialise
from serve.sizes import GIB
from tests.bench import gpu_check
from tests.bench.full_shape import layers_that_fit
from tests.bench.gpu_check import Check, Failed, Part, large, run_part, speed


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return Check(tmp_path / "out", None)


def test_as_many_layers_as_fit() -> None:
    def total(layers: int) -> int:
        return 10 + 3 * layers

    assert [layers_that_fit(total, room, 40) for room in (12, 13, 15, 16, 10**6)] == [0, 1, 1, 2, 40]


def test_a_part_that_fails_says_why(check: Check) -> None:
    def ends(check: Check, part: Part) -> None:
        check.command("role", "bash", "-c", "echo begun; echo 'torch.OutOfMemoryError: CUDA out of memory' >&2; exit 3")

    def breaks(check: Check, part: Part) -> None:
        raise KeyError("seconds")

    part = run_part("role", ends, check)
    assert part.ok is False and "begun" in part.problem and part.line.startswith("failed  role")
    assert "out of memory" in check.log("role").read_text()
    assert run_part("dialogues", breaks, check).problem == "KeyError: 'seconds'"
    notice = Part("dialogues", ok=False, problem="begun\nerror: no such file\nat most 16 are played")
    assert notice.line.endswith("error: no such file")


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_ended(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "LIMIT", 1)
    with pytest.raises(Failed, match="waiting\n.*took longer than 1 s"):
        check.command("role", "bash", "-c", "echo waiting >&2; sleep 60")


@pytest.mark.slow
def test_a_training_that_takes_more_than_planned_fails(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures that only a GPU gives, put into a training's timing."""

    def command(self: Check, log: str, *words: Any) -> str:
        if "plan" in words:
            return '{"memory_bytes": {"ddp": {"total": 2147483648}}, "tokens_at_most": 3600, "hours_at_most": 0.5, "mfu": 0.4}'
        gpu_check.write_json(
            check.out / "role" / "out" / "timing.json", {"step_seconds": [9.0, 2.0], "peak_memory_bytes": peak}
        )
        return ""

    monkeypatch.setattr(Check, "command", command)
    on_gpu = Check(check.out, None, "NVIDIA L40S")
    work = gpu_check.parts_of(tiny=True)["role"]
    peak = GIB
    part = run_part("role", work, on_gpu)
    assert part.ok and part.figures["seconds_per_step"] == 2 and part.plan["tokens_per_second"] == 2
    assert part.figures["tokens_per_second"] == 2 * 256 / 2 and part.figures["share_of_peak"] == pytest.approx(0.4 * 256 / 2)
    peak = 3 * GIB
    part = run_part("role", work, on_gpu)
    assert part.ok is False and "took 3.0 GiB where the plan says 2.0" in part.problem


def test_what_cannot_be_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "visible_gpus", list)
    with pytest.raises(UserError, match="no GPU here"):
        gpu_check.main()
    with pytest.raises(UserError, match="no part colour; there are doctor"):
        gpu_check.main(tiny=True, only=["colour"])


@pytest.mark.vllm
@pytest.mark.full
def test_steps_are_timed_by_vllm(tmp_path: Path) -> None:
    shutil.copy(materialise(name="smollm2-135m-instruct-lower9") / "config.json", tmp_path)
    offline = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}  # else it waits for the hub
    subprocess.run(
        [sys.executable, "-m", "tests.bench.step_times", str(tmp_path), "1"], check=True, cwd=gpu_check.ROOT, env=offline
    )
    found = read_object(tmp_path / "steps.json", "vLLM's steps")
    assert found["read"] > 0 and found["cache"] > 2000 and 0 < found["steps"]["1"] < 10


@pytest.mark.parametrize(("name", "work"), [("speed", speed), ("7b", large)])
def test_what_needs_a_gpu_is_skipped_without_one(name: str, work: Callable[[Check, Part], None], check: Check) -> None:
    part = run_part(name, work, check)
    assert part.ok is None and part.line.startswith(f"skipped {name}") and "needs a GPU" in part.line


@pytest.mark.full
@pytest.mark.timeout(600)
def test_all_parts_on_the_cpu(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(gpu_check.main)
    result = CliRunner().invoke(app, ["--tiny", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    report = read_object(tmp_path / "report.json", "a report")
    parts = {part["name"]: part for part in report["parts"]}
    ran = dict.fromkeys(("doctor", "role", "rank", "dialogues", "scoring"), True)
    assert {name: part["ok"] for name, part in parts.items()} == ran | {"speed": None, "7b": None}
    assert parts["role"]["figures"]["row_tokens"] == 256 and parts["role"]["plan"]["memory_bytes"]["total"] > 0
    assert parts["rank"]["figures"]["tokens_per_second"] > 0
    assert parts["dialogues"]["figures"]["calls"] == 10 and parts["scoring"]["figures"]["unreadable"] == 0
    assert not [*tmp_path.glob("*/base/*.safetensors")], "gigabytes are left on a GPU node"
    assert report["gpu"] is None and report["versions"]["torch"] and report["finished"]
