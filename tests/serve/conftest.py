"""Machines with and without GPUs, for plans."""

import pytest

from core import machine


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
