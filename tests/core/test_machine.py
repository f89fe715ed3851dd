"""What is computed in where a spec says `auto`: by this machine's instructions, and part of what a model is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core import machine
from core.machine import Gpu, Machine, bf16_instructions, card_of, precision
from core.specs import ModelSpec, ServeOptions, load_spec
from evalsuite.runs.run_config import identity
from serve.plan import plan_servers

EMBEDDED = ["embedded", "embedded-short", "embedded-ranker"]


def on_cpu(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    monkeypatch.setattr(machine, "_processor_flags", lambda: frozenset(flags))


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        (("avx2", "fma"), False),
        (("avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq"), False),  # torch calls this one supported
        (("avx512f", "avx512_bf16"), True),
        (("amx_tile", "amx_bf16"), True),
        (("asimd", "bf16"), True),
        (("asimd",), False),
        ((), False),
    ],
)
def test_a_cpu_without_instructions_for_bf16_computes_in_fp32(
    flags: tuple[str, ...], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu(monkeypatch, *flags)
    assert bf16_instructions() is has
    dtype, why = precision()
    assert dtype == ("bfloat16" if has else "float32") and "this CPU has" in why


@pytest.mark.parametrize(("told", "has"), [("AVX2", False), ("avx512_core", False), ("AVX512_CORE_BF16", True), ("ALL", True)])
def test_a_cpu_that_is_told_to_behave_like_a_lesser_one_does(told: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu(monkeypatch, "avx512_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", told)
    assert bf16_instructions() is has


@pytest.mark.parametrize(("capability", "dtype"), [(None, "bfloat16"), (9.0, "bfloat16"), (8.0, "bfloat16"), (7.5, "float16")])
def test_a_gpu_computes_in_bf16_since_ampere(capability: float | None, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_capability", lambda: capability)
    assert precision(gpu=True)[0] == dtype


def test_the_lowest_capability_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for printed, found in (("9.0\n7.5\n", 7.5), ("[N/A]\n", None), (None, None)):
        machine._capability.cache_clear()
        monkeypatch.setattr(machine, "smi", lambda *_, printed=printed: printed)
        assert machine._capability() == found
    machine._capability.cache_clear()


@pytest.mark.parametrize("name", EMBEDDED)
def test_answers_in_another_precision_are_another_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, known = load_spec(name), {}
    assert spec.serve.dtype == "auto"
    for flags in ((), ("avx512_bf16",)):
        on_cpu(monkeypatch, *flags)
        known[identity(spec)["dtype"]] = spec.fingerprint()
    assert known.keys() == {"float32", "bfloat16"} and len({*known.values()}) == 2
    for dtype, fingerprint in known.items():  # no third kind: as if the spec had named it
        named = spec.model_copy(update={"serve": spec.serve.model_copy(update={"dtype": dtype})})
        assert named.fingerprint() == fingerprint


def test_a_precision_that_is_named_holds_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu(monkeypatch)
    spec = ModelSpec(name="m", checkpoint="a/b", context_length=2048, serve=ServeOptions(dtype="bfloat16"))
    assert spec.dtype == "bfloat16"


@pytest.mark.parametrize(("flags", "dtype"), [((), "float32"), (("avx512_bf16",), "bfloat16")])
def test_the_server_is_told_and_the_plan_says_so(
    flags: tuple[str, ...], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu(monkeypatch, *flags)
    (plan,) = plan_servers([load_spec("embedded")], tmp_path, resolve=False)
    assert plan.argv[plan.argv.index("--dtype") + 1] == dtype
    assert any(f"embedded is served in {dtype}: this CPU has " in note for note in plan.notes)
    (plan,) = plan_servers([load_spec("embedded")], tmp_path, resolve=False, machine=Machine.parse("80"))
    assert plan.argv[plan.argv.index("--dtype") + 1] == "bfloat16", "a machine that is only planned for has its own GPUs"


@pytest.mark.slow
@pytest.mark.parametrize("told", ["DEFAULT", "AVX2"])
def test_torch_sees_bf16_wherever_it_is_seen_here(told: str) -> None:
    """The other way round does not hold: torch says yes of any AVX-512."""
    ask = "import torch, core.machine as m; print(torch.ops.mkldnn._is_mkldnn_bf16_supported(), m.bf16_instructions())"
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": told}
    asked = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    torchs, ours = asked.stdout.split()
    assert (torchs, ours) != ("False", "True")
    if told == "AVX2":
        assert (torchs, ours) == ("False", "False")


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine.memory()
    limits = {"max\n": whole, f"{2**30}\n": 2**30, f"{2**60}\n": whole}
    for text, expected in limits.items():
        monkeypatch.setattr(Path, "read_text", lambda self, text=text: text)
        assert machine.memory() == expected


def test_a_devices_peak_is_known_by_the_drivers_name() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": 989.0,
        "NVIDIA H200": 989.0,
        "NVIDIA A100-SXM4-40GB": 312.0,
        "NVIDIA GeForce RTX 4090": 165.2,
        "NVIDIA L40S": 362.0,
        "NVIDIA L4": 121.0,
        "NVIDIA H100 PCIe": None,
        "NVIDIA GeForce RTX 3090": None,
    }
    assert {name: (card := card_of(name)) and card.peak for name in names} == names
    forty, eighty = (Gpu("0", size * 10**9, model="NVIDIA A100").card.gigabytes for size in (40, 80))
    assert (forty, eighty, Gpu("0", 141 * 10**9).card.label) == (40, 80, "H200")
