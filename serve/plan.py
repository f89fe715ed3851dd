"""Which servers a set of model specs needs, where each runs, and the command line of each.

On GPUs one server holds a base and all its LoRA adapters (a lone one is merged); on CPU, where vLLM runs adapters several times
slower, each adapter is merged into its own copy of the base. Where a spec asks for replicas, so many equal servers stand behind
a router. Neither torch nor vllm is imported here: the servers are other processes, started by `serve.launch`.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from core.errors import UserError
from core.files import cache_dir
from core.machine import COMPUTES, READS, STEP_S, Gpu, Machine, precision
from core.specs import EMBEDDED_PREFIX, ModelSpec, place_of
from core.tables import Cell, Table
from serve import command
from serve.checkpoints.lora import adapter_rank
from serve.checkpoints.merge import merged, merged_folder
from serve.checkpoints.model_card import TRAINING
from serve.checkpoints.places import base_folder, download, embedded_folder, local_path, on_hub, resolve_checkpoint, unpinned
from serve.command import ServerPlan
from serve.placement import ASSUMED_RANK, GAIN, USABLE, Demand, PhaseModels, Place, arrange, demands_of, refusal, usable
from serve.sizes import GIB, size_of
from serve.units import Needs, ServerUnit, check_machine, check_places, units_of, unservable

_Files = tuple[str, list[str], dict[str, str], int, list[str]]


def plan_servers(
    specs: Sequence[ModelSpec],
    log_dir: Path,
    port: int | None = None,
    resolve: bool = True,
    machine: Machine | None = None,
    needs: Needs | None = None,
) -> list[ServerPlan]:
    """The servers that specs need (see `units_of`); with replicas, a router and after it the equal servers. Where `needs` (what
    each model is asked) is known, idle GPUs get further replicas.

    A server's context is the longest asked for, or less where `needs` says that less will do. The first server gets `port`, the
    next ones those after it; None: free ones. With `resolve` checkpoints are downloaded, made and merged as needed, once it is
    known that they fit; without it nothing is touched, and `notes` say what was assumed.

    Raises `UserError` for anything a server could not start with: too little memory, missing or half-written folders,
    unsupported ranks, names used twice, more GPUs wanted than visible.
    """
    machine = machine or Machine.here()
    gpu = machine.has_gpu
    units = units_of(specs, split_adapters=not gpu)
    for unit in units:
        check_machine(unit, machine)
    if resolve:  # before anything is placed or downloaded
        check_places(units)
        learn_shapes(specs if gpu else [])
    demands = demands_of(units, machine, needs) if gpu else None
    layout = arrange(demands, machine.gpus) if demands else None
    if demands and layout is None:
        raise refusal(demands, machine, "for")
    copies = [len(layout.places[n]) if layout else unit.serve.replicas for n, unit in enumerate(units)]
    servers = sum(copies)
    processes = servers + sum(count > 1 for count in copies)
    if port is not None and port + processes > 65536:
        raise UserError(f"{processes} servers need as many ports from {port} on, and 65535 is the last")
    if resolve and units:  # before the download
        models = [spec.name for unit in units for spec in unit.specs]
        command.check_installed(models, router=processes > servers)
    # Servers of unknown size take the GPUs in turn, and equal shares of them.
    following = itertools.cycle([gpu.name for gpu in machine.gpus])
    sharing = math.ceil(sum(n * unit.gpus for n, unit in zip(copies, units, strict=True)) / max(len(machine.gpus), 1))

    def server(unit: ServerUnit, files: _Files, place: Place | None, demand: Demand | None) -> ServerPlan:
        spec, context = unit.specs[0], unit.context(needs)
        checkpoint, served, adapters, rank, notes = files
        if place:
            gpus = [*place.gpus] if len(place.gpus) < len(machine.gpus) else []  # all there are: as the scheduler gave them
        else:
            gpus = [*itertools.islice(following, unit.gpus)] if servers > 1 else []
        local = all(Path(folder).is_absolute() for folder in (checkpoint, *adapters.values()))
        share = place.share if place else USABLE / sharing if sharing > 1 else None
        split = place.split if place else spec.serve.tensor_parallel or 1
        left = any(spec.sampling.temperature is None for spec in unit.specs)  # to the checkpoint (paper mode)
        words = command.argv(spec, checkpoint, served, adapters, rank, context, split, gpu, share, left)
        added = command.environment(gpu, local, gpus, servers if not gpu else 1)
        name = served[0] if unit.base_names or not adapters else spec.name
        log = log_dir / f"server-{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:200]}.log"
        plan = ServerPlan(name, checkpoint, served, words, added, log, adapters, unit.specs, hub=not local, place=place)
        plan.notes, plan.context, plan.demand = [*notes, *_notes(unit, machine, place)], context, demand
        plan.shares_gpu = gpu and (place.sharing if place else sharing) > 1
        return plan

    plans = list[ServerPlan]()
    for number, unit in enumerate(units):
        files, demand = _files(unit, gpu, resolve), demands[number] if demands else None
        places = layout.places[number] if layout else [None] * copies[number]
        equal = [server(unit, files, place, demand) for place in places]
        plans += [command.router(equal), *equal] if len(equal) > 1 else equal
    if layout:
        plans[0].pace = layout.pace
    for number, plan in enumerate(plans if port is not None else ()):
        plan.port = (port or 0) + number
    names = Counter(name for plan in plans if not plan.replica for name in (*plan.served_names, *plan.adapters))
    if doubled := [name for name, count in names.items() if count > 1]:
        raise UserError(f"two models would be served as {doubled[0]!r}: give one another name or endpoint.model")
    return plans


def _notes(unit: ServerUnit, machine: Machine, place: Place | None) -> Iterator[str]:
    for repository in dict.fromkeys(name for owner in unit.specs for name in unpinned(owner)):
        yield f"{repository} is not pinned: the hub's newest is taken; name its commit in the spec (revision, adapter_revision)"
    if unit.serve.dtype == "auto":
        yield "{} is served in {}: {} (serve.dtype: auto)".format(unit.name, *precision(machine.has_gpu))
    if machine.has_gpu and place is None:
        yield (
            "the size of a model or the memory of a GPU is unknown: servers on one GPU get equal shares; serve.architecture "
            "names a model of the same shape (a key of configs/serve/architectures.yaml, or a folder with its config.json)"
        )
    if problem := unservable(unit.specs[0]):
        yield problem


def prepare(specs: Sequence[ModelSpec]) -> None:
    """Download, make and merge what servers of these specs need, as `plan_servers` does with `resolve`."""
    gpu = Machine.here().has_gpu
    units = units_of(specs, split_adapters=not gpu)
    check_places(units)
    for unit in units:
        _files(unit, gpu, True)


def _files(unit: ServerUnit, gpu: bool, resolve: bool) -> _Files:
    """The checkpoint of a unit's server, its served names, adapters by name, their largest rank, and notes on what is missing.

    With `resolve` all of it is downloaded, made and merged first, outside the time that a server may take to start; without,
    nothing is made, read or downloaded.
    """
    spec, adapters, rank, notes = unit.specs[0], dict[str, Path](), 1, list[str]()
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
        adapters[served] = folder
        rank = max(rank, adapter_rank(folder, what) if folder.is_dir() else ASSUMED_RANK)
    if lacking:
        more = f", and {len(lacking) - 1} more of {spec.name}" if len(lacking) > 1 else ""
        notes.append(f"{lacking[0]}{more}{'' if unit.merges(gpu) else f'; rank {ASSUMED_RANK} is assumed'}")
    if not unit.merges(gpu):
        # The base must have a name, and it may not be an adapter's.
        folders = {name: str(path) for name, path in adapters.items()}
        return (checkpoint, unit.base_names or [f"{spec.name}.base"], folders, rank, notes)
    ((served, adapter),) = adapters.items()
    if resolve:
        base = base_folder(checkpoint, spec.revision, f"model {spec.name}: checkpoint")
        return (str(merged(spec, base, adapter)), [served], {}, rank, notes)
    here = Path(checkpoint).is_dir() and adapter.is_dir()
    folder = merged_folder(Path(checkpoint), adapter)[0] if here else cache_dir() / "merged-CONTENT-HASH"
    if not folder.exists():
        notes.append(f"{folder} will be {checkpoint} with {adapter} merged in, made by starting without --print")
    return (str(folder), [served], {}, rank, notes)


def learn_shapes(specs: Sequence[ModelSpec]) -> None:
    """Fetch the config.json, a few kB, of hub checkpoints of unknown size; without a network they stay unknown."""
    for spec in specs:
        if spec.checkpoint and spec.endpoint.base_url is None and on_hub(spec.checkpoint) and size_of(spec) is None:
            with suppress(UserError):
                download(spec.checkpoint, spec.revision, ["config.json"], f"model {spec.name}")


def _folder(place: str, what: str, notes: list[str]) -> Path | None:
    """The folder that a place names; `notes` say so if it does not exist. None for a name on the hub."""
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
    """The servers of all phases with their memory in GiB on each GPU, and the speed of each phase where it is known."""
    rows, timed, notes, hours = list[tuple[Cell, ...]](), list[tuple[Cell, ...]](), [*more], 0.0
    count, why = len(machine.gpus), [part.why for part in parts if part.why]
    for number, (part, plans) in enumerate(zip(parts, phases, strict=True), start=1):
        phase, pace = f"{number} of {len(phases)}", plans[0].pace
        rows += [(phase, *_row(plan, plans, machine)) for plan in plans if not plan.replica]
        if pace.dialogues:
            rates = (f"{pace.per_second:.2f}", f"{pace.tokens_per_second:,.0f}", f"{pace.start / 60:.1f}", f"{pace.hours:.2f}")
            cause = f"{pace.bottleneck}: {pace.why}"
            timed.append((phase, f"{pace.dialogues:,.0f}", pace.at_once, *rates, f"{pace.hours * count:.2f}", cause))
            hours += pace.hours
            why += [f"phase {number}: {line}" if len(phases) > 1 else line for line in _reasons(plans, machine.gpus)]
        for plan in plans:
            short = [
                f"a dialogue may need {part.needs[spec.name].context:,} tokens of {spec.name}, which takes {plan.context:,} "
                "(context_length): it ends there"
                for spec in plan.specs
                if spec.name in part.needs and part.needs[spec.name].context > plan.context
            ]
            notes += [note for note in dict.fromkeys([*plan.notes, *short]) if note not in notes]
    if machine.has_gpu:
        notes.append("weights and cache: GiB on each GPU; dialogues: long ones (the 95th percentile) that the cache holds")
    if machine.nodes > 1:
        every = f"the plan is for one of {machine.nodes} machines: --shard I/{machine.nodes} divides a run"
        notes.append(f"{every}; Ray serves one model over all of them (configs/launch/slurm_ray.sh)")
    yield Table("servers", f"Servers on {machine}", COLUMNS, tuple(rows), tuple(notes))
    if timed:
        timed.append(("total", *[None] * 5, f"{hours:.2f}", f"{hours * count:.2f}", None))
        card = machine.gpus[0].card
        how = (
            f"A roofline: {READS:.0%} of the bandwidth, {COMPUTES:.0%} of the bf16 peak, a step takes {STEP_S * 1000:g} ms or "
            "more; without models elsewhere and the gold set"
        )
        title = f"Hours on {count} × {card.label} ({card.bandwidth:g} TB/s, {card.peak:g} TFLOP/s)"
        yield Table("hours", title, PHASES, tuple(timed), (*why, how))


def _reasons(plans: Sequence[ServerPlan], gpus: Sequence[Gpu]) -> Iterator[str]:
    """Why the servers of a phase are as they are, a line each, and 8 bits where they double the dialogues in flight."""
    pace, places = plans[0].pace, [(p.demand, p.place) for p in plans if p.demand and p.place and not p.workers]
    demands = {demand.unit.name: demand for demand, _ in places}
    for name, demand in demands.items():
        splits = [place.split for owner, place in places if owner is demand]
        if splits[0] > 1 and demand.unit.serve.tensor_parallel is None:
            alone = demand.least(gpus[0].memory or 0, 1) <= usable(gpus[0])
            yield f"{name} over {splits[0]} GPUs: {'faster than on one' if alone else 'it does not fit on one'}"
        if len(splits) > demand.unit.serve.replicas:
            yield f"{name} × {len(splits)}, behind a router: each makes the phase {GAIN - 1:.0%} faster or more"
    if idle := len(gpus) - len({name for _, place in places for name in place.gpus}):
        yield f"{idle} GPUs are idle: another server would not make it {GAIN - 1:.0%} faster"
    wide = [name for name, demand in demands.items() if not demand.size.fp8 and not demand.size.stored]
    narrow = [replace(d, size=replace(d.size, fp8=("weights", "cache"))) if n in wide else d for n, d in demands.items()]
    other = arrange(narrow, gpus) if wide and all(gpu.card.fp8 for gpu in gpus) else None
    if other and other.pace.at_once >= 2 * pace.at_once:
        yield (
            f"serve: {{fp8: [weights, cache]}} in the specs of {', '.join(wide)} changes the answers, doubles the dialogues in "
            f"flight ({other.pace.at_once}, not {pace.at_once}) and takes {other.pace.hours:.2f} hours, not {pace.hours:.2f}"
        )


def _row(plan: ServerPlan, plans: Sequence[ServerPlan], machine: Machine) -> tuple[Cell, ...]:
    equal = [replica for replica in plans if replica.name in plan.workers] or [plan]
    place, options, size = plan.place, plan.specs[0].serve, size_of(plan.specs[0])
    name = f"{plan.name} × {len(equal)}" if plan.workers else plan.name
    precision = equal[0].argv[equal[0].argv.index("--dtype") + 1] if not options.fp8 else f"fp8: {', '.join(options.fp8)}"
    weights = place.weights if place else size.weights() if size else None
    gpus, cache, dialogues = plan.env.get("CUDA_VISIBLE_DEVICES", "all" if machine.has_gpu else "CPU"), "?", "?"
    if place is not None:
        gpus = "; ".join(", ".join(server.place.gpus) for server in equal if server.place)
        gpus += f" (tensor parallel {place.split})" if place.split > 1 else ""
        cache, dialogues = f"{place.cache / GIB:.1f}", f"{place.dialogues * len(equal):,}"
    elif (room := equal[0].env.get("VLLM_CPU_KVCACHE_SPACE")) and size:
        cache, dialogues = room, str(int(room) * GIB // size.cache(plan.context))
    return (name, gpus, precision, f"{weights / GIB:.1f}" if weights else "?", cache, f"{plan.context:,}", dialogues)
