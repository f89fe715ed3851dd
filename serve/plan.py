"""Which servers a set of model specs needs, where each runs, and the command line of each.

On GPUs one server holds a base and all its LoRA adapters (a lone one is merged); on CPU, where vLLM runs adapters several times
slower, each adapter is merged into its own copy of the base. Where a spec asks for replicas, so many equal servers stand behind
a router. Neither torch nor vllm is imported here: the servers are other processes, started by `serve.launch`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from core.errors import UserError
from core.files import cache_dir
from core.machine import COMPUTES, READS, STEP_S, Machine, precision
from core.specs import EMBEDDED_PREFIX, ModelSpec, place_of
from core.tables import Cell, Table
from serve.checkpoints.embedded import embedded_folder
from serve.checkpoints.lora import adapter_rank
from serve.checkpoints.merge import merged, merged_folder
from serve.checkpoints.model_card import TRAINING
from serve.checkpoints.places import base_folder, download, local_path, on_hub, resolve_checkpoint, unpinned
from serve.command import (
    MODULE,
    ROUTER,
    TRANSFORMERS,
    ServerPlan,
    argv,
    check_installed,
    environment,
    hub_of,
    make_hub,
    router,
    transformers_argv,
    transformers_environment,
)
from serve.placement import ASSUMED_RANK, USABLE, PhaseModels, arrange, demands_of, reasons, refusal
from serve.roofline import Place
from serve.sizes import GIB, size_of
from serve.units import Needs, ServerUnit, check_gpus, check_places, check_seeds, units_of, unservable

MOST_PORT = 65535


def plan_servers(
    specs: Sequence[ModelSpec],
    log_dir: Path,
    port: int | None = None,
    resolve: bool = True,
    machine: Machine | None = None,
    needs: Needs | None = None,
) -> list[ServerPlan]:
    """The servers that the specs without an endpoint of their own need: one a base, or on CPU one a base or adapter; with
    replicas, a router and so many equal ones after it. Where `needs` (what each model is asked) is known, GPUs that would be
    idle get further replicas.

    Two specs share a server when checkpoint, revision, chat template and serve options agree; its context is the longest asked
    for, less where `needs` says that less will do. The first server gets `port`, the next ones those after it; None: free ones.
    With `resolve` checkpoints are downloaded, made and merged as needed, after it is known that they fit; without it nothing is
    touched, and `notes` say what was assumed.

    Raises `UserError` for anything a server could not start with: too little memory, missing or half-written folders,
    unsupported ranks, names used twice, more GPUs wanted than visible.
    """
    machine = machine or Machine.here()
    gpu = machine.has_gpu
    units = units_of(specs, split_adapters=not gpu)
    if not gpu:
        check_seeds(specs)
    notes = {id(unit): list[str]() for unit in units}
    for unit in units:
        if machine.gpus or not gpu:  # a driver whose GPUs cannot be listed: vLLM will know
            check_gpus(unit, len(machine.gpus), resolve, notes[id(unit)])
    if resolve and units:  # what is not there, before anything is placed or downloaded
        check_places(units)
        learn_shapes([spec for unit in units for spec in unit.specs] if gpu else [])
    demands = demands_of(units, machine, needs) if gpu and units else None
    layout = arrange(demands, machine.gpus) if demands else None
    if demands and layout is None:
        raise refusal(demands, machine, "for")
    copies = [len(layout.places[n]) if layout else unit.serve.replicas for n, unit in enumerate(units)]
    processes = sum(copies) + sum(count > 1 for count in copies)
    if port is not None and port + processes > MOST_PORT + 1:
        raise UserError(f"{processes} servers need as many ports from {port} on, and {MOST_PORT} is the last")
    if resolve and units:  # not after the download
        engines = {MODULE if unit.serve.engine == "vllm" else TRANSFORMERS for unit in units}
        models = [spec.name for unit in units for spec in unit.specs]
        check_installed(models, *engines, *([ROUTER] if processes > sum(copies) else []))
    servers = [unit for unit, count in zip(units, copies, strict=True) for _ in range(count)]
    spread = iter(_spread(servers, [gpu.name for gpu in machine.gpus]))
    plans = list[ServerPlan]()
    for number, unit in enumerate(units):
        equal = list[ServerPlan]()
        for copy in range(copies[number]):
            found, said = layout.places[number][copy] if layout else None, notes[id(unit)] if not copy else []
            equal.append(_plan(unit, machine, found, next(spread), sum(copies), log_dir, resolve, needs, said))
            equal[-1].demand = demands[number] if demands else None
        plans += [router(equal), *equal] if len(equal) > 1 else equal
    if layout and demands:
        plans[0].pace, plans[0].why = layout.pace, [*reasons(demands, machine.gpus, layout)] if not resolve else []
    for number, plan in enumerate(plans if port is not None else ()):
        plan.port = (port or 0) + number
    addressed = [plan for plan in plans if not plan.replica]
    doubled = [name for name, n in Counter(n for p in addressed for n in (*p.served_names, *p.adapters)).items() if n > 1]
    if doubled:
        raise UserError(f"two models would be served as {doubled[0]!r}: give one another name or endpoint.model")
    return plans


def _spread(servers: Sequence[ServerUnit], gpus: Sequence[str]) -> list[tuple[list[str], int]]:
    """For each server, where its size is not known, the GPUs it gets and how many servers share the fullest of them: in order,
    starting over at the end. One server alone is not told which to take."""
    if len(servers) < 2 or not gpus:
        return [([], 1)] * len(servers)
    following = itertools.cycle(gpus)
    chosen = [[*itertools.islice(following, unit.gpus)] for unit in servers]
    users = Counter(gpu for names in chosen for gpu in names)
    return [(names, max(users[gpu] for gpu in names)) for names in chosen]


def _plan(
    unit: ServerUnit,
    machine: Machine,
    found: Place | None,
    spread: tuple[list[str], int],
    servers: int,
    log_dir: Path,
    resolve: bool,
    needs: Needs | None,
    notes: list[str],
) -> ServerPlan:
    spec, gpu = unit.specs[0], machine.has_gpu
    gpus, sharing = ([*found.gpus], found.sharing) if found else spread
    if found and len(machine.gpus) == len(gpus):
        gpus = []  # all there are: as the scheduler gave them
    checkpoint, served_names, adapters, rank = _files(unit, gpu, resolve, notes)
    for repository in dict.fromkeys(name for owner in unit.specs for name in unpinned(owner)):
        notes.append(
            f"{repository} is not pinned: the hub's newest is taken; name its commit in the spec (revision, adapter_revision)"
        )
    if spec.serve.dtype == "auto":
        notes.append("{} served in {}: {} (serve.dtype: auto)".format(unit.name, *precision(gpu)))
    context = unit.context(needs)
    if gpu and found is None:
        unknown = f"the size of {spec.checkpoint} is" if size_of(spec) is None else "not all sizes are"
        if not machine.gpus or not all(gpu.memory for gpu in machine.gpus):
            unknown = "the GPUs' memory is"
        notes.append(
            f"{unknown} not known: servers on one GPU get equal shares; serve.architecture names a model of the same shape "
            "(a key of configs/serve/architectures.yaml, or a folder with its config.json)"
        )
    if problem := unservable(unit):
        notes.append(problem)
    local = Path(checkpoint).is_absolute() and all(Path(folder).is_absolute() for folder in adapters.values())
    name = served_names[0] if unit.base_names or not adapters else spec.name
    if unit.serve.engine == "transformers":
        hub = make_hub(spec, Path(checkpoint)) if resolve else hub_of(spec, checkpoint)
        command, added = transformers_argv(spec, gpu), transformers_environment(hub, gpus)
    else:
        share = found.share if found else USABLE / sharing if sharing > 1 else None
        split = found.split if found else spec.serve.tensor_parallel or 1
        left = any(spec.sampling.temperature is None for spec in unit.specs)  # to the checkpoint (paper mode)
        command = argv(spec, checkpoint, served_names, adapters, rank, context, split, gpu, share, left)
        added = environment(gpu, local, gpus, servers if not gpu else 1)
    return ServerPlan(
        name=name,
        checkpoint=checkpoint,
        served_names=served_names,
        adapters=adapters,
        argv=command,
        env=added,
        log=log_dir / f"server-{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:200]}.log",
        specs=unit.specs,
        notes=notes,
        shares_gpu=gpu and sharing > 1,
        hub=not local,
        place=found,
        context=context,
    )


def prepare(specs: Sequence[ModelSpec]) -> None:
    """Download, make and merge what servers of these specs need, as `plan_servers` does with `resolve`."""
    gpu = Machine.here().has_gpu
    units = units_of(specs, split_adapters=not gpu)
    check_places(units)
    for unit in units:
        _files(unit, gpu, True, [])


def _files(unit: ServerUnit, gpu: bool, resolve: bool, notes: list[str]) -> tuple[str, list[str], dict[str, str], int]:
    """What the server of a unit reads: checkpoint, names that it has, adapters by name, and the largest rank of these.

    With `resolve` all is downloaded, made and merged before a server starts, so that its start takes no longer for it; without,
    nothing is made, read or downloaded.
    """
    spec, adapters, rank = unit.specs[0], dict[str, Path](), 1
    where, what = spec.checkpoint or "", f"model {spec.name}: checkpoint"
    if resolve and spec.serve.data_parallel_local is not None:  # each machine downloads for itself
        checkpoint = resolve_checkpoint(where, what)
    elif resolve:
        checkpoint = str(base_folder(where, spec.revision, what))
    elif where.startswith(EMBEDDED_PREFIX):
        checkpoint = str(embedded := embedded_folder(where.removeprefix(EMBEDDED_PREFIX)))
        if not embedded.exists():
            notes.append(f"{embedded} does not exist yet: `python -m serve convert embedded` makes it")
    else:
        checkpoint = str(_folder(where, what, notes) or where)
    lacking = list[str]()
    for served, owner, place in unit.adapters:
        what = f"model {owner.name}: adapter"
        if resolve:  # vLLM takes no revision for an adapter, and its rank has to be known
            folder = local_path(place, what) or download(place, owner.adapter_revision, ["adapter_*", TRAINING], what)
        else:
            folder = _folder(place, what, lacking) or Path(place)
        if folder.is_dir():
            rank = max(rank, adapter_rank(folder, what))
        elif gpu and not unit.merges(gpu):
            rank = max(rank, ASSUMED_RANK)
        adapters[served] = folder
    if lacking:
        more = f", and {len(lacking) - 1} more of {spec.name}" if len(lacking) > 1 else ""
        assumed = "" if unit.merges(gpu) else f"; rank {ASSUMED_RANK} is assumed"
        notes.append(f"{lacking[0]}{more}{assumed}")
    if not unit.merges(gpu):
        # The base must have a name, and it may not be an adapter's.
        return checkpoint, unit.base_names or [f"{spec.name}.base"], {name: str(path) for name, path in adapters.items()}, rank
    ((served, adapter),) = adapters.items()
    if resolve:
        base = base_folder(checkpoint, spec.revision, f"model {spec.name}: checkpoint")
        return str(merged(spec, base, adapter)), [served], {}, rank
    here = Path(checkpoint).is_dir() and adapter.is_dir()
    folder = merged_folder(Path(checkpoint), adapter)[0] if here else cache_dir() / "merged-CONTENT-HASH"
    if not folder.exists():
        notes.append(f"{folder} will be {checkpoint} with {adapter} merged in, made by starting without --print")
    return str(folder), [served], {}, rank


def learn_shapes(specs: Sequence[ModelSpec]) -> None:
    """Fetch the config.json, a few kB, of hub checkpoints whose size is not known yet; without a network that stays so."""
    for spec in specs:
        if spec.checkpoint and spec.endpoint.base_url is None and on_hub(spec.checkpoint) and size_of(spec) is None:
            with suppress(UserError):
                download(spec.checkpoint, spec.revision, ["config.json"], f"model {spec.name}")


def _folder(place: str, what: str, notes: list[str]) -> Path | None:
    """The folder that a place names, even where there is none, which `notes` then say; None for a name on the hub."""
    try:
        return local_path(place, what)
    except UserError as error:
        notes.append(str(error))
        return place_of(place).absolute()


# ---- a plan as tables

COLUMNS = ("phase", "server", "GPU", "precision", "weights", "cache", "context", "dialogues")
PHASES = ("phase", "dialogues", "at once", "a second", "tokens/s", "start, min", "hours", "GPU hours", "bottleneck")


def overview(
    parts: Sequence[PhaseModels], phases: Sequence[Sequence[ServerPlan]], machine: Machine, more: Sequence[str] = ()
) -> Iterator[Table]:
    """The servers of all phases with their memory in GiB on each GPU; and how fast each phase is, where that is known."""
    rows, timed, notes, hours = list[tuple[Cell, ...]](), list[tuple[Cell, ...]](), [*more], 0.0
    count, why = len(machine.gpus), [part.why for part in parts if part.why]
    for number, (part, plans) in enumerate(zip(parts, phases, strict=True), start=1):
        phase, found = f"{number} of {len(phases)}", plans[0].pace
        rows += [(phase, *_row(plan, plans, machine)) for plan in plans if not plan.replica]
        if found.dialogues:
            figures = (f"{found.per_second:.2f}", f"{found.tokens_per_second:,.0f}", f"{found.start / 60:.1f}")
            took = (f"{found.hours:.2f}", f"{found.hours * count:.2f}", f"{found.bottleneck}: {found.why}")
            timed.append((phase, f"{found.dialogues:,.0f}", found.at_once, *figures, *took))
            hours += found.hours
        for plan in plans:
            short = [
                f"a dialogue may need {work.context:,} tokens of {spec.name}, which takes {plan.context:,} (context_length): "
                "it ends there"
                for spec in plan.specs
                if (work := part.needs.get(spec.name)) and work.context > plan.context
            ]
            notes += [note for note in dict.fromkeys([*plan.notes, *short]) if note not in notes]
            why += [f"phase {number}: {line}" if len(phases) > 1 else line for line in plan.why]
    used = {name for plans in phases for plan in plans for name in (plan.place.gpus if plan.place else ())}
    if used and not timed and (idle := [gpu.name for gpu in machine.gpus if gpu.name not in used]):
        notes.append(f"GPU {', '.join(idle)} left over: serve.replicas in a spec makes several servers of a model")
    if machine.has_gpu:
        notes.append(
            f"weights and cache: GiB on each GPU, of which {USABLE:.0%} are planned with; dialogues: long ones (the 95th "
            "percentile; full length where that is not known) that the cache holds"
        )
    if machine.nodes > 1:
        every = f"serve: {{data_parallel: {machine.nodes * count}, data_parallel_local: {count}}}"
        notes.append(
            f"one of {machine.nodes} machines is planned: --shard I/{machine.nodes} divides a run; Ray serves a model over all "
            f"of them (configs/launch/slurm_ray.sh, with {every})"
        )
    yield Table("servers", f"Servers on {machine}", COLUMNS, tuple(rows), tuple(notes))
    if timed:
        timed.append(("total", *[None] * 5, f"{hours:.2f}", f"{hours * count:.2f}", None))
        card = machine.gpus[0].card
        how = (
            f"A roofline: {READS:.0%} of the bandwidth, {COMPUTES:.0%} of the bf16 peak, {STEP_S * 1000:g} ms "
            "a step at least; without models elsewhere and the gold set"
        )
        title = f"Hours on {count} × {card.label} ({card.bandwidth:g} TB/s, {card.peak:g} TFLOP/s)"
        yield Table("hours", title, PHASES, tuple(timed), (*why, how))


def _row(plan: ServerPlan, plans: Sequence[ServerPlan], machine: Machine) -> tuple[Cell, ...]:
    """A server, or equal ones behind a router."""
    equal = [one for one in plans if one.name in plan.workers] or [plan]
    place, options, size = plan.place, plan.specs[0].serve, size_of(plan.specs[0])
    name = f"{plan.name} × {len(equal)}" if plan.workers else plan.name
    bytes_ = place.weights if place else size.weights() if size else None
    weights = f"{bytes_ / GIB:.1f}" if bytes_ is not None else "?"
    precision = equal[0].argv[equal[0].argv.index("--dtype") + 1] if not options.fp8 else f"fp8: {', '.join(options.fp8)}"
    gpus, cache, dialogues = plan.env.get("CUDA_VISIBLE_DEVICES", "all"), "?", "?"
    if place is not None:
        gpus = "; ".join(", ".join(one.place.gpus) for one in equal if one.place)
        gpus += f" (tensor parallel {place.split})" if place.split > 1 else ""
        cache, dialogues = f"{place.cache / GIB:.1f}", f"{place.dialogues * len(equal):,}"
    elif not machine.has_gpu:
        gpus, grows = "CPU", options.engine == "transformers"  # its cache grows with each reply, and is not planned
        cache = "–" if grows else equal[0].env.get("VLLM_CPU_KVCACHE_SPACE", "as set")
        dialogues = str(int(cache) * GIB // size.cache(plan.context)) if size and cache.isdigit() else "?"
    return (name, gpus, precision, weights, cache, f"{plan.context:,}", dialogues)
