"""Places servers of known size on GPUs of known memory, all at the same time or in phases.

The planner takes the fastest of what fits. It chooses how many GPUs a model is split over, how many equal
servers it gets (until no GPU is left, or none helps), whether the judge runs beside the others or after them, and whether all
supporters run together or a few at a time. Servers that share a GPU divide its memory so that they hold equally many dialogues.

Speed is a roofline over a GPU's data sheet; shares of a peak are in `core.machine`. A step of a server that answers b dialogues
at once gives each a token. It takes the longest of

- reading: (weights + b × the cache of a dialogue) / (bandwidth × READS);
- computing: 2 × active parameters × b / (peak × COMPUTES);
- STEP_S, the floor for launches, scheduling and sampling.

Reading n tokens of a prompt takes 2 × active parameters × n / (peak × COMPUTES), and the others wait. So a dialogue takes
`written` steps of a model, and b times the reading of its prompts. Each dialogue in flight is with one of the models, which has
as many as its share of that time is (Little's law); the rate is dialogues in flight / that time. As many are in flight as the
caches of all models hold to the end. Servers on one GPU take turns. Left out: operations of attention, and models elsewhere.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from core.errors import UserError
from core.machine import COMPUTES, DOUBLED, LOADS, READS, START_S, STEP_S, Card, Gpu, Machine
from core.specs import ModelSpec, place_of
from serve.checkpoints.lora import adapter_rank
from serve.limits import MOST
from serve.sizes import GIB, Size, batched_tokens, overhead, size_of
from serve.units import Needs, ServerUnit, Workload, units_of

USABLE = 0.9  # of a GPU's memory, for all servers on it together
ASSUMED_RANK = 16  # of an adapter that is not on this machine yet
LEAST = (1, 4, 16, 64)  # dialogues that every server should hold at once: it is split over as many GPUs as that takes
GAIN = 1.02  # how much faster another equal server has to make a phase


@dataclass(frozen=True)
class Place:
    """Where a server runs, on `split` GPUs per copy, and its share of each GPU's memory with bytes of weights and cache there.

    `dialogues` are the long ones (`Demand.length`) that its cache holds, over all copies; `sharing` counts the servers on the
    fullest of its GPUs, and `card` is the slowest of these.
    """

    gpus: tuple[str, ...]
    split: int
    share: float
    weights: int
    cache: int
    dialogues: int
    sharing: int
    card: Card


@dataclass(frozen=True)
class Demand:
    """The needs of each of the equal servers of a unit."""

    unit: ServerUnit
    size: Size
    context: int
    """Tokens of a request at most: vLLM starts only with cache for one."""
    work: Workload | None = None
    """Of all of them together; None: unknown."""

    @property
    def length(self) -> int:
        """Tokens of a long dialogue: of the 95th percentile, or of full length where that is unknown."""
        return min(self.work.length, self.context) if self.work and self.work.length else self.context

    def splits(self, gpus: int) -> list[int]:
        """The numbers of GPUs that a copy can be split over, fewest first."""
        if self.unit.serve.tensor_parallel is not None:
            return [self.unit.serve.tensor_parallel]
        return [n for n in (1, 2, 4, 8, 16) if n * self.unit.copies <= gpus and self.size.splits(n)]

    def dialogue(self, gpu: int, split: int) -> int:
        """Bytes of cache that a long dialogue takes on each GPU of so many bytes."""
        return self.size.cache(self.length, split, batched_tokens(gpu))

    def least(self, gpu: int, split: int, dialogues: int = 1) -> int:
        """Bytes on each GPU with cache for so many long dialogues, and for one request of full length."""
        request = self.size.cache(self.context, split, batched_tokens(gpu))
        return self.size.weights(split) + overhead(gpu) + max(request, dialogues * self.dialogue(gpu, split))

    def seconds(self, place: Place, dialogues: float) -> tuple[float, str]:
        """Seconds of its time per dialogue, with so many of them in a copy, and what takes most of these seconds."""
        assert self.work is not None
        faster = place.split * DOUBLED ** math.log2(place.split)
        eight = 2 if place.card.fp8 and "weights" in self.size.fp8 else 1
        bandwidth, peak = place.card.bandwidth * 1e12 * READS * faster, place.card.peak * 1e12 * COMPUTES * faster * eight
        weights, cache = self.size.weights() / bandwidth, dialogues * self.size.cache(self.length) / bandwidth
        token = 2 * self.size.active / peak
        reading = weights + cache, "reading weights" if weights > cache else "reading the cache"
        step, why = max(reading, (dialogues * token, "computing"), (STEP_S, "launching steps"))
        writes, reads = self.work.written * step, dialogues * self.work.read * token
        return (writes + reads) * place.sharing, why if writes >= reads else "reading prompts"


@dataclass(frozen=True)
class Pace:
    """How fast a phase is: its dialogues, how many at once and per second, and the tokens that its servers write per second.

    `start` is the seconds until all servers are up, `bottleneck` the unit that the others wait for, and `why` what that does
    most of the time.
    """

    dialogues: float = 0
    at_once: int = 0
    per_second: float = math.inf
    tokens_per_second: float = 0
    start: float = 0
    bottleneck: str = ""
    why: str = ""

    @property
    def hours(self) -> float:
        """With the start. The last dialogues count as no faster than the others, though the servers are no longer full."""
        return (self.start + (self.dialogues + self.at_once) / self.per_second) / 3600


def pace(servers: Sequence[tuple[Demand, Sequence[Place]]]) -> Pace:
    """The pace of a phase in which each model has servers at these places; an empty one where the work is unknown."""
    works = [demand.work for demand, _ in servers if demand.work and demand.work.dialogues]
    if not works or len(works) < len(servers):
        return Pace()
    dialogues = max(work.of or work.dialogues for work in works)
    parts = [work.dialogues / dialogues for work in works]
    copies = [len(places) * demand.unit.copies for demand, places in servers]
    holds = [max(places[0].dialogues // demand.unit.copies, 1) for demand, places in servers]
    kept = [n * most / part for n, most, part, work in zip(copies, holds, parts, works, strict=True) if work.kept]
    flight = max(min(dialogues, MOST, *kept), 1)
    inside, spent, full = [flight / len(works)] * len(works), [0.0], [1.0]

    def times(full: Sequence[float]) -> list[float]:
        return [part * d.seconds(p[0], n)[0] for part, (d, p), n in zip(parts, servers, full, strict=True)]

    for _ in range(40):
        full = [min(max(n / c, 1), most) for n, c, most in zip(inside, copies, holds, strict=True)]
        spent = times(full)
        inside = [(n + flight * time / sum(spent)) / 2 for n, time in zip(inside, spent, strict=True)]
    # A model that keeps no dialogue takes in no more at a time than its cache holds: the others wait.
    rates = [n * most / time for n, most, time in zip(copies, holds, times(holds), strict=True)]
    rate = min(flight / sum(spent), *rates)
    slowest = rates.index(rate) if rate in rates else spent.index(max(spent))
    demand, places = servers[slowest]
    written = rate * sum(part * work.written for part, work in zip(parts, works, strict=True))
    # Servers that share a GPU start one after the other.
    start = max((START_S + demand.size.weights() / LOADS) * places[0].sharing for demand, places in servers)
    return Pace(dialogues, int(flight), rate, written, start, demand.unit.name, demand.seconds(places[0], full[slowest])[1])


@dataclass(frozen=True)
class Arrangement:
    """The servers of a phase: where those of each model run, and how fast that is."""

    places: list[list[Place]]
    pace: Pace

    @property
    def gpus(self) -> set[str]:
        """Names of the GPUs in use."""
        return {name for places in self.places for place in places for name in place.gpus}


def demands_of(units: Sequence[ServerUnit], machine: Machine, needs: Needs | None = None) -> list[Demand] | None:
    """The size and the work of the servers of each unit; None where that or the memory of a GPU is unknown."""
    demands: list[Demand] = []
    for unit in units:
        folders = [place_of(where) for _, _, where in unit.adapters]
        ranks = [adapter_rank(folder, f"model {unit.name}: adapter") for folder in folders if folder.is_dir()]
        adapters = 0 if unit.merges(True) else len(unit.adapters)
        size = size_of(unit.specs[0], adapters, max(ranks, default=ASSUMED_RANK))
        if size is None:
            return None
        demands.append(Demand(unit, size, unit.context(needs), unit.work(needs)))
    return demands if machine.gpus and all(gpu.memory for gpu in machine.gpus) else None


def usable(gpu: Gpu) -> int:
    """Bytes of a GPU that servers may share."""
    memory = gpu.memory or 0
    return min(int(memory * USABLE), memory - gpu.used)


def place(
    demands: Sequence[Demand], gpus: Sequence[Gpu], least: int = 1, counts: Sequence[int] = ()
) -> list[list[Place]] | None:
    """Places for every server, `counts` of each demand, with cache for `least` long dialogues; None where they do not fit.

    The largest model comes first, split over as few GPUs as will do, on those with most room.
    """
    by_name, room = {gpu.name: gpu for gpu in gpus}, {gpu.name: usable(gpu) for gpu in gpus}
    largest = max(gpu.memory or 0 for gpu in gpus)
    chosen: list[tuple[int, list[str], int]] = []
    servers = [n for n, demand in enumerate(demands) for _ in range(counts[n] if counts else demand.unit.serve.replicas)]
    for number in sorted(servers, key=lambda number: -demands[number].size.weights()):
        demand = demands[number]
        for split in demand.splits(len(gpus)):
            names = sorted(room, key=lambda name: -room[name])[: split * demand.unit.copies]
            taken = demand.least(largest, split, least)
            if len(names) == split * demand.unit.copies and room[names[-1]] >= taken:
                room |= {name: room[name] - taken for name in names}
                chosen.append((number, sorted(names, key=[*by_name].index), split))
                break
        else:
            return None
    together, each = Counter(name for _, names, _ in chosen for name in names), Counter[str]()  # servers, bytes of a dialogue
    for number, names, split in chosen:
        each.update(dict.fromkeys(names, demands[number].dialogue(largest, split)))
    places: list[list[Place]] = [[] for _ in demands]
    for number, names, split in chosen:
        demand, smallest = demands[number], min(by_name[name].memory or 0 for name in names)
        dialogue, more = demand.dialogue(largest, split), min(room[name] / max(each[name], 1) for name in names)
        share = math.ceil((demand.least(largest, split, least) + int(more * dialogue)) / smallest * 10_000) / 10_000
        weights = demand.size.weights(split)
        cache = int(share * smallest) - weights - overhead(largest)
        card = min((by_name[name].card for name in names), key=lambda card: card.bandwidth)
        dialogues, sharing = cache // dialogue * demand.unit.copies, max(together[name] for name in names)
        places[number].append(Place(tuple(names), split, share, weights, cache, dialogues, sharing, card))
    return places


def arrange(demands: Sequence[Demand], gpus: Sequence[Gpu]) -> Arrangement | None:
    """The fastest places for these servers, and for as many more equal ones as help; None where they do not fit together."""

    def layout(counts: Sequence[int], least: int) -> Arrangement | None:
        places = place(demands, gpus, least, counts)
        return Arrangement(places, pace([*zip(demands, places, strict=True)])) if places is not None else None

    def grown(now: Arrangement, counts: Sequence[int], least: int) -> tuple[Arrangement, list[int]] | None:
        """With one more server on idle GPUs: of the bottleneck, or of the first model that gains."""
        if len(now.gpus) == len(gpus) or not now.pace.dialogues:
            return None
        for number in sorted(range(len(demands)), key=lambda number: demands[number].unit.name != now.pace.bottleneck):
            more = [count + (n == number) for n, count in enumerate(counts)]
            larger = layout(more, least) if demands[number].unit.grows else None
            if larger and larger.places[number][-1].sharing == 1 and larger.pace.hours * GAIN < now.pace.hours:
                return larger, more
        return None

    best: Arrangement | None = None
    for least in LEAST:
        counts = [demand.unit.serve.replicas for demand in demands]
        now = layout(counts, least)
        while now and (more := grown(now, counts, least)):
            now, counts = more
        if now and (best is None or now.pace.hours * GAIN < best.pace.hours):
            best = now
    return best


def refusal(demands: Sequence[Demand], machine: Machine, purpose: str) -> UserError:
    """Why servers do not fit, with the arithmetic and what would help: 8 bits, more GPUs like the largest, another machine.
    `purpose` ends in the word before their names."""
    gpu, names = max(machine.gpus, key=usable), [demand.unit.name for demand in demands]
    memory, count = gpu.memory or 0, len(machine.gpus)
    lines = [f"not enough memory on {machine} {purpose} {' and '.join(names)}:"]
    for demand in demands:
        split = (demand.splits(count) or [1])[-1]
        weights, rest, least = (n / GIB for n in (demand.size.weights(split), overhead(memory), demand.least(memory, split)))
        parts = f"weights {weights:.1f} + overhead {rest:.1f} + cache of {demand.context:,} tokens {least - weights - rest:.1f}"
        lines.append(f"  {demand.unit.name}{f' on each of {split} GPUs' if split > 1 else ''}: {parts} = {least:.1f} GiB")
    used = f"; other programs use {gpu.used / GIB:.1f} GiB of it" if gpu.used > memory * (1 - USABLE) else ""
    lines.append(f"  a GPU offers {usable(gpu) / GIB:.1f} GiB ({USABLE:.0%} of {memory / GIB:.1f}{used})")
    options = [f"serve {names[0]} elsewhere and give its address: --set endpoints.{names[0]}=http://HOST:PORT/v1"]
    if wider := fewest(demands, machine):
        options.insert(0, f"{wider} GPUs instead of {count}")
    if place([replace(d, size=replace(d.size, fp8=("weights", "cache"))) for d in demands], machine.gpus):
        options.insert(0, f"serve: {{fp8: [weights, cache]}} in the spec of {', '.join(names)}")
    return UserError("\n".join([*lines, f"Next best: {'; or '.join(options)}"]))


def fewest(demands: Sequence[Demand], machine: Machine) -> int | None:
    """How many GPUs, these and more like the largest of them, servers fit on; None where 16 are not enough."""
    gpu, count = max(machine.gpus, key=usable), len(machine.gpus)
    more = ([*machine.gpus, *(replace(gpu, name=f"+{n}", used=0) for n in range(extra))] for extra in range(1, 17 - count))
    return next((len(gpus) for gpus in more if place(demands, gpus)), None)


# ---- phases


class PhaseModels(NamedTuple):
    """A phase: the models that are up, what they are asked in it, and (the first phase) the hours of the best options."""

    specs: list[ModelSpec]
    needs: Needs
    why: str = ""


def phases(
    always: Sequence[ModelSpec],
    by_turns: Sequence[ModelSpec],
    last: Sequence[ModelSpec],
    machine: Machine | None = None,
    needs: Needs | None = None,
    split: bool | None = None,
) -> list[PhaseModels]:
    """Which models are up at the same time, phase by phase.

    The fastest of: all at once; `last` (the judge) after the others; and before it `by_turns` (the supporters) a few at a time,
    each time beside those of `always` (the seeker). `split`: whether `last` has a phase of its own in any case (True), or never
    (False; None: where that is faster). Raises `UserError`, with the arithmetic, where nothing fits.
    """
    machine, number = machine or Machine.here(), len(by_turns)
    before, options = [*always, *by_turns], list[list[list[ModelSpec]]]()
    if split is not True or not last or not before:
        options.append([[*before, *last]])
    if last and before and split is not False:
        options.append([before, [*last]])
        for size in dict.fromkeys(-(-number // turns) for turns in range(2, number + 1)) if split is None else ():
            turns = [[*always, *by_turns[start : start + size]] for start in range(0, number, size)]
            options.append([*turns, [*last]])
    planned = [[_part(models, not n, by_turns, needs or {}) for n, models in enumerate(option)] for option in options]
    demands = [[demands_of(units_of(p.specs, split_adapters=False), machine, p.needs) for p in parts] for parts in planned]
    if len(options) == 1 or demands[0][0] is None:
        return planned[0]
    layouts = [[arrange(demand or [], machine.gpus) for demand in option] for option in demands]
    fitting = sorted((sum(x.pace.hours for x in layout if x), n) for n, layout in enumerate(layouts) if None not in layout)
    if not fitting:
        lacking = {n: demands[-1][n] or [] for n, layout in enumerate(layouts[-1]) if layout is None}
        # Enough GPUs for this phase are enough for the others.
        part = max(lacking, key=lambda n: fewest(lacking[n], machine) or math.inf)
        purpose = "to judge with" if part == len(layouts[-1]) - 1 else "to hold the dialogues with"
        raise refusal(lacking[part], machine, purpose)
    ways = [f"{hours:.2f} hours {f'in {len(options[n])} phases' if n else 'with all at once'}" for hours, n in fitting[:4]]
    first, *later = planned[fitting[0][1]]
    return [first._replace(why=", ".join(ways) if fitting[0][0] else ""), *later]


def _part(models: Sequence[ModelSpec], first: bool, by_turns: Sequence[ModelSpec], needs: Needs) -> PhaseModels:
    """A phase with the work of its models: the first also has the dialogues of supporters that are served elsewhere."""
    specs = {spec.name: spec for spec in models}
    works = {name: needs[name] for name in specs if name in needs}
    own = {spec.name: needs[spec.name].dialogues for spec in by_turns if spec.name in needs}
    dialogues = max((work.dialogues for work in works.values()), default=0)
    if own.keys() & specs.keys():
        elsewhere = max(work.dialogues for work in needs.values()) - sum(own.values()) if first else 0
        dialogues = elsewhere + sum(count for name, count in own.items() if name in specs)
    works = {name: replace(w, of=dialogues, dialogues=min(w.dialogues, dialogues)) for name, w in works.items()}
    return PhaseModels([*specs.values()], works)
