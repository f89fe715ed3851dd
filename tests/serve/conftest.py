"""Machines with and without GPUs, specs and tiny checkpoints, for plans."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from core import machine
from core.specs import ModelSpec
from tests.conftest import ONE_THREAD

# The environment of a program that runs vLLM's engine on a tiny model: in its own process, since each further one imports vLLM.
SMALL_VLLM = {
    **os.environ,
    **ONE_THREAD,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def spec(name: str = "m", checkpoint: str | None = "org/base", **more: Any) -> ModelSpec:
    return ModelSpec.model_validate(
        {"name": name, "about": "", "roles": ["seeker"], "languages": ["en"], "checkpoint": checkpoint, "context_length": 4096}
        | more
    )


def tensors(path: Path, cut: int = 0) -> None:
    """A safetensors file with one number, `cut` bytes short."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    path.write_bytes(data[: len(data) - cut])


def checkpoint(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    tensors(folder / "model.safetensors")
    return str(folder)


def adapter(folder: Path, rank: int = 8, **more: object) -> str:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, **more}))
    tensors(folder / "adapter_model.safetensors")
    return str(folder)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with GPUs of unknown memory (the list may be changed)."""
    found = ["0", "1"]
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    monkeypatch.setattr(machine, "visible_gpus", lambda: found)
    monkeypatch.setattr(machine, "listed_gpus", list)
    monkeypatch.setattr(machine, "gpu_problem", lambda: None)
    return found


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    monkeypatch.setattr(machine, "gpu_problem", lambda: None)  # of a vLLM that may be built for CUDA
    vllm = ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_KVCACHE_SPACE", "VLLM_USE_AOT_COMPILE")
    for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", *vllm, "THP_MEM_ALLOC_ENABLE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
