"""What doctor finds on machines of several kinds. nvidia-smi is played by a script, a GPU build's torch and vLLM by what they
would say of themselves."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import machine
from serve import doctor
from serve.doctor import Installed, MachineFinding, findings
from tests.vllm_parser import blind

SMI = """#!{python}
import sys
rows = {rows!r}
if rows is None:
    sys.exit("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
asked = sys.argv[1]
if asked == "-L":
    print("\\n".join(f"GPU {{n}}: {{row['name']}} (UUID: {{row['uuid']}})" for n, row in enumerate(rows)))
else:
    fields = asked.partition("=")[2].split(",")
    print("\\n".join(", ".join(str(dict(row, index=n)[field]) for field in fields) for n, row in enumerate(rows)))
"""
CUDA = {"torch": "2.14.0", "cuda": "13.0", "available": True, "bf16": True, "platform": "CudaPlatform"}


def gpu(name: str = "NVIDIA H100 80GB HBM3", driver: str = "580.65.06", total: Any = 81559, used: Any = 4) -> dict[str, Any]:
    return {"name": name, "driver_version": driver, "uuid": f"GPU-{name[-4:]}", "memory.total": total, "memory.used": used}


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, MachineFinding]]:
    """The findings, by name, on a machine with these GPUs (None: nvidia-smi fails; no argument: there is none)."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def found(rows: Any = (), vllm: str | None = "0.33.0", cpu: bool = False, **told: Any) -> dict[str, MachineFinding]:
        tools = tmp_path / "tools"
        tools.mkdir(exist_ok=True)
        if rows != ():
            (tools / "nvidia-smi").write_text(SMI.format(python=sys.executable, rows=rows))
            (tools / "nvidia-smi").chmod(0o755)
        (tools / "gcc").write_text("#!/bin/sh\n")
        (tools / "gcc").chmod(0o755)
        monkeypatch.setenv("PATH", str(tools))
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(doctor, "installed", lambda: Installed(vllm, cpu, "2.14.0" if vllm else None, CUDA | told))
        return {finding.name: finding for finding in findings()}

    return found


def test_a_whole_gpu_node(on: Callable[..., dict[str, MachineFinding]]) -> None:
    found = on([gpu(), gpu()])
    assert found["GPU"].state == found["driver"].state == found["torch"].state == found["vLLM"].state == "ok"
    assert "0 NVIDIA H100 80GB HBM3 79.6 GiB" in found["GPU"].text and "; 1 NVIDIA" in found["GPU"].text
    assert found["driver"].text == "580.65.06" and found["torch"].text == "2.14.0, CUDA 13.0"
    assert not [finding for finding in found.values() if finding.state == "missing"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "told", "name", "remedy"),
    [
        ((), {}, "GPU", "install NVIDIA's driver"),
        (None, {}, "GPU", "load the driver"),
        ([gpu(driver="535.183.01")], {}, "driver", "needs driver 580 or newer"),
        ([gpu()], {"available": False}, "torch", "update the driver"),
        ([gpu()], {"torch_error": "OSError: libcudart.so.13"}, "torch", "pip install 'esc-eval[gpu]'"),
        ([gpu()], {"platform": "UnspecifiedPlatform"}, "vLLM", "see GPU, driver and torch"),
        ([gpu()], {"vllm_error": "ImportError: x"}, "vLLM", "pip install 'esc-eval[gpu]'"),
    ],
)
def test_what_a_gpu_build_lacks_is_missing(
    rows: Any, told: dict[str, Any], name: str, remedy: str, on: Callable[..., dict[str, MachineFinding]]
) -> None:
    found = on(rows, **told)
    assert found[name].state == "missing" and remedy in found[name].remedy
    assert str(found[name]).startswith(f"MISSING {name}") and "\n" not in str(found[name])


@pytest.mark.slow
def test_compiler_and_headers(
    on: Callable[..., dict[str, MachineFinding]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = on([gpu()])
    assert found["compiler"] == MachineFinding("compiler", "ok", "gcc") and found["headers"].state == "ok"
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path / "nowhere")})
    monkeypatch.setattr("serve.doctor.shutil.which", lambda name: None)
    found = on([gpu()])
    assert found["compiler"].state == found["headers"].state == "missing"
    assert "apt install gcc" in found["compiler"].remedy and "-dev" in found["headers"].remedy
    assert on([gpu()], vllm=None)["compiler"].state == "note", "nothing here compiles"


def test_the_base_install_lacks_nothing(on: Callable[..., dict[str, MachineFinding]]) -> None:
    found = on((), vllm=None)
    assert found["vLLM"].state == found["torch"].state == found["GPU"].state == "note"
    assert "needed only to serve models here" in found["vLLM"].text
    assert not [finding for finding in found.values() if finding.state == "missing"]


@pytest.mark.slow
def test_a_full_disk(on: Callable[..., dict[str, MachineFinding]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for free, state in ((10**9, "missing"), (30 * 10**9, "note"), (10**12, "ok")):
        monkeypatch.setattr("serve.doctor.shutil.disk_usage", lambda place, free=free: type("Usage", (), {"free": free})())
        found = on([gpu()])["hub cache"]
        assert found.state == state and str(tmp_path / "hf" / "hub") in found.text
        assert ("HF_HOME" in found.remedy) is (state != "ok")


def test_keys_are_said_to_be_there_and_never_shown(
    on: Callable[..., dict[str, MachineFinding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    on([gpu()])
    lines = [str(finding) for finding in findings()]
    assert any("OPENAI_API_KEY set" in line for line in lines) and any("HF_TOKEN not set" in line for line in lines)
    assert not any("secret" in line for line in lines)


def test_gpus_and_their_memory_as_a_plan_sees_them(
    on: Callable[..., dict[str, MachineFinding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on([gpu(), gpu("NVIDIA L4", total=23034, used=1024), gpu("odd", total="[N/A]", used="[N/A]")])
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    found = machine.Machine.here().gpus
    assert [(one.name, one.memory, one.used) for one in found] == [
        ("0", 81559 * 2**20, 4 * 2**20),
        ("1", 23034 * 2**20, 2**30),
        ("2", None, 0),
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-HBM3")
    assert [one.memory for one in machine.Machine.here().gpus] == [23034 * 2**20, 81559 * 2**20], "a UUID names one, too"


@pytest.mark.slow
def test_the_real_machine() -> None:
    """The program as it is: a line a finding, and exit code 0 but for a GPU node's packages where there is no GPU."""
    asked = subprocess.run([sys.executable, "-m", "evalsuite.cli", "doctor"], capture_output=True, text=True)
    missing = {line[8:20].strip() for line in asked.stdout.splitlines() if line.startswith("MISSING")}
    expected = (1, {"GPU", "torch", "vLLM"}) if blind() else (0, set())
    assert (asked.returncode, missing) == expected, asked.stdout + asked.stderr
    names = [line[8:20].strip() for line in asked.stdout.splitlines()]
    assert {"Python", "GPU", "torch", "vLLM", "compiler", "hub cache", "ports", "Slurm", "Ray", "key"} <= {*names}
