"""Which GPU holds what: servers of known sizes on GPUs of known memory, all at the same time or in phases.

Of all that fits, the fastest is taken (`serve.roofline`): over how many GPUs a model is split, how many equal servers of it
there are (until no GPU is left, or none helps), whether the judge comes with the others or after them, and supporters all
together or some at a time. What is left of a GPU is shared so that its servers hold equally many dialogues.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from core.errors import UserError
from core.machine import Gpu, Machine
from core.specs import ModelSpec, place_of
from serve.checkpoints.lora import adapter_rank
from serve.roofline import Demand, Pace, Place, pace
from serve.sizes import GIB, overhead, size_of
from serve.units import Needs, ServerUnit, units_of

USABLE = 0.9  # of a GPU's memory, for all servers on it together
ASSUMED_RANK = 16  # of an adapter that is not on this machine yet
LEAST = (1, 4, 16, 64)  # dialogues that every server should hold at once: it is split over as many GPUs as that takes
GAIN = 1.02  # how much faster another equal server has to make a phase


@dataclass(frozen=True)
class Arrangement:
    """The servers of a phase: of each model, where they run; and how fast that is."""

    places: list[list[Place]]
    pace: Pace


def demands_of(units: Sequence[ServerUnit], machine: Machine, needs: Needs | None = None) -> list[Demand] | None:
    """What the servers of each unit take; None where the memory of a GPU or the size of a model is not known."""
    demands: list[Demand] = []
    for unit in units:
        folders = [place_of(where) for _, _, where in unit.adapters]
        ranks = [adapter_rank(folder, f"model {unit.name}: adapter") for folder in folders if folder.is_dir()]
        adapters = 0 if unit.merges(True) else len(unit.adapters)
        size = size_of(unit.specs[0], adapters, max(ranks, default=ASSUMED_RANK))
        if size is None:
            return None
        options, work = unit.serve, unit.work(needs)
        servers = (options.tensor_parallel, unit.copies, options.replicas, unit.grows and work is not None)
        demands.append(Demand(unit.name, size, unit.context(needs), *servers, work))
    return demands if machine.gpus and all(gpu.memory for gpu in machine.gpus) else None


def usable(gpu: Gpu) -> int:
    """Bytes of a GPU that servers may divide."""
    memory = gpu.memory or 0
    return min(int(memory * USABLE), memory - gpu.used)


def place(
    demands: Sequence[Demand], gpus: Sequence[Gpu], least: int = 1, counts: Sequence[int] = ()
) -> list[list[Place]] | None:
    """Places for every server, `counts` of each demand, with cache for `least` long dialogues; None where they do not fit.

    The largest comes first, split over as few GPUs as will do, on those with most room.
    """
    known, room = {gpu.name: gpu for gpu in gpus}, {gpu.name: usable(gpu) for gpu in gpus}
    bytes_of = {gpu.name: gpu.memory or 0 for gpu in gpus}
    servers = [n for n, demand in enumerate(demands) for _ in range(counts[n] if counts else demand.replicas)]
    chosen: list[tuple[int, tuple[str, ...], int]] = []
    for number in sorted(servers, key=lambda n: -demands[n].size.weights()):
        demand = demands[number]
        for split in demand.splits(len(gpus)):
            names = tuple(sorted(room, key=lambda name: -room[name])[: split * demand.copies])
            taken = {name: demand.least(bytes_of[name], split, least) for name in names}
            if len(names) == split * demand.copies and all(room[name] >= size for name, size in taken.items()):
                room = {name: left - taken.get(name, 0) for name, left in room.items()}
                chosen.append((number, tuple(sorted(names, key=[*bytes_of].index)), split))
                break
        else:
            return None
    together, each = Counter(name for _, names, _ in chosen for name in names), Counter[str]()
    for number, names, split in chosen:
        each.update({name: demands[number].dialogue(bytes_of[name], split) for name in names})
    places: list[list[Place]] = [[] for _ in demands]
    for number, names, split in chosen:
        demand, first, smallest = demands[number], bytes_of[names[0]], min(bytes_of[name] for name in names)
        dialogue, more = demand.dialogue(first, split), min(room[name] / max(each[name], 1) for name in names)
        share = math.ceil((demand.least(first, split, least) + int(more * dialogue)) / smallest * 10_000) / 10_000
        weights, rest = demand.size.weights(split), overhead(first)
        cache, sharing = int(share * smallest) - weights - rest, max(together[name] for name in names)
        card = min((known[name].card for name in names), key=lambda card: card.bandwidth)
        held = cache // dialogue * demand.copies
        places[number].append(Place(names, split, share, weights, rest, cache, held, sharing, card))
    return places


def arrange(demands: Sequence[Demand], gpus: Sequence[Gpu]) -> Arrangement | None:
    """The fastest places for these servers, and for as many more equal ones as help; None where they do not fit together."""

    def layout(counts: Sequence[int], least: int) -> Arrangement | None:
        found = place(demands, gpus, least, counts)
        return Arrangement(found, pace([*zip(demands, found, strict=True)])) if found is not None else None

    def grown(now: Arrangement, counts: Sequence[int], least: int) -> tuple[Arrangement, list[int]] | None:
        """With one more server on GPUs that nobody uses: of the bottleneck, or of the first that gains."""
        if len(_used(now)) == len(gpus) or not now.pace.dialogues:
            return None
        for number in sorted(range(len(demands)), key=lambda n: demands[n].name != now.pace.bottleneck):
            more = [count + (n == number) for n, count in enumerate(counts)]
            found = layout(more, least) if demands[number].grows else None
            if found and found.places[number][-1].sharing == 1 and found.pace.hours * GAIN < now.pace.hours:
                return found, more
        return None

    best: Arrangement | None = None
    for least in LEAST:
        counts = [demand.replicas for demand in demands]
        now = layout(counts, least)
        while now and (more := grown(now, counts, least)):
            now, counts = more
        if now and (best is None or now.pace.hours * GAIN < best.pace.hours):
            best = now
    return best


def _used(layout: Arrangement) -> set[str]:
    return {name for places in layout.places for found in places for name in found.gpus}


def reasons(demands: Sequence[Demand], gpus: Sequence[Gpu], chosen: Arrangement) -> Iterator[str]:
    """Why the servers of a phase are as they are, a line each; and what 8 bits would change where they double what is held."""
    pace, memory = chosen.pace, gpus[0].memory or 0
    for demand, places in zip(demands, chosen.places, strict=True):
        if (split := places[0].split) > 1 and demand.tensor_parallel is None:
            alone = demand.least(memory, 1) <= usable(gpus[0])
            yield f"{demand.name} over {split} GPUs: {'faster than on one' if alone else 'no GPU holds it alone'}"
        if len(places) > demand.replicas:
            yield f"{demand.name} × {len(places)}, behind a router: each makes the phase faster by {GAIN - 1:.0%} or more"
    if not pace.dialogues:
        return
    idle = len(gpus) - len(_used(chosen))
    rest = f"{idle} left over: no further server makes it {GAIN - 1:.0%} faster" if idle else "none left over"
    yield f"{pace.bottleneck} is the bottleneck, {pace.why}, with {pace.at_once} dialogues at once; GPUs: {rest}"
    wide = [demand for demand in demands if not demand.size.fp8 and not demand.size.shape.stored]
    narrow = [replace(d, size=replace(d.size, fp8=("weights", "cache"))) if d in wide else d for d in demands]
    other = arrange(narrow, gpus) if wide and all(gpu.card.fp8 for gpu in gpus) else None
    if other and other.pace.at_once >= 2 * pace.at_once:
        yield (
            f"serve: {{fp8: [weights, cache]}} in the specs of {', '.join(demand.name for demand in wide)} doubles that "
            f"({other.pace.at_once}): {other.pace.hours:.2f} hours, not {pace.hours:.2f}; answers are others then"
        )


def refusal(demands: Sequence[Demand], machine: Machine, purpose: str) -> UserError:
    """Why servers do not fit, with the arithmetic and what would: 8 bits, more GPUs like the largest here, another machine.
    `purpose` ends in the word before their names."""
    gpu, names = max(machine.gpus, key=usable), [demand.name for demand in demands]
    memory, count = gpu.memory or 0, len(machine.gpus)
    lines = [f"not enough memory on {machine} {purpose} {' and '.join(names)}:"]
    lines += [f"  {d.sum(memory, (d.splits(count) or [d.tensor_parallel or 1])[-1])}" for d in demands]
    held = f"; {gpu.used / GIB:.1f} GiB of it are in use by something else" if gpu.used > memory * (1 - USABLE) else ""
    lines.append(f"  a GPU offers {usable(gpu) / GIB:.1f} GiB ({USABLE:.0%} of {memory / GIB:.1f}{held})")
    options: list[str] = []
    for kinds in (("weights",), ("weights", "cache")):
        smaller = [replace(d, size=replace(d.size, fp8=tuple({*d.size.fp8, *kinds}))) for d in demands]
        if not options and place(smaller, machine.gpus):
            options.append(f"serve: {{fp8: [{', '.join(kinds)}]}} in the spec of {', '.join(names)}")
    if wider := fewest(demands, machine):
        options.append(f"{wider} GPUs instead of {count}")
    options.append(f"serve {names[0]} elsewhere and give its address: --set endpoints.{names[0]}=http://HOST:PORT/v1")
    return UserError("\n".join([*lines, f"Next best: {'; or '.join(options)}"]))


def fewest(demands: Sequence[Demand], machine: Machine) -> int | None:
    """How many GPUs, these and more like the largest of them, servers fit on; None where 16 are not enough."""
    gpu, count = max(machine.gpus, key=usable), len(machine.gpus)
    more = ([*machine.gpus, *(replace(gpu, name=f"+{n}", used=0) for n in range(extra))] for extra in range(1, 17 - count))
    return next((len(gpus) for gpus in more if place(demands, gpus)), None)


# ---- phases


class PhaseModels(NamedTuple):
    """A phase: the models that are up, what they are asked in it, and why it is one."""

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

    The fastest of: all at once; `last` (the judge) after the others; and before it `by_turns` (the supporters) some at a time,
    each time beside those of `always` (the seeker). `split`: whether `last` has a phase of its own in any case (True), or never
    (None: where that is faster). Raises `UserError`, with the arithmetic, for what fits in no way.
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
    planned = [[_part(models, not n, by_turns, last, needs or {}) for n, models in enumerate(option)] for option in options]
    demands = [[demands_of(units_of(p.specs, split_adapters=False), machine, p.needs) for p in parts] for parts in planned]
    if len(options) == 1 or demands[0][0] is None:
        return planned[0]
    layouts = [[arrange(some or [], machine.gpus) for some in of_one] for of_one in demands]
    fitting = sorted((sum(one.pace.hours for one in found if one), n) for n, found in enumerate(layouts) if None not in found)
    if not fitting:
        lacking = {n: demands[-1][n] or [] for n, layout in enumerate(layouts[-1]) if layout is None}
        part = max(lacking, key=lambda n: fewest(lacking[n], machine) or math.inf)  # what it takes, the others have, too
        purpose = "to judge with" if part == len(layouts[-1]) - 1 else "to hold the dialogues with"
        raise refusal(lacking[part], machine, purpose)
    hours = [
        f"{hours:.2f} hours {f'in {len(options[n])} phases' if n else 'with all at once'}" for hours, n in fitting if hours
    ]
    parts = planned[fitting[0][1]]
    return [parts[0]._replace(why=", ".join(hours[:4])), *parts[1:]]


def _part(
    models: Sequence[ModelSpec], first: bool, by_turns: Sequence[ModelSpec], last: Sequence[ModelSpec], needs: Needs
) -> PhaseModels:
    """A phase with what its models are asked: the dialogues of its supporters. Those with models elsewhere are in the first."""
    specs = {spec.name: spec for spec in models}
    own = {spec.name: needs[spec.name].dialogues for spec in by_turns if spec.name in needs}
    held = sum(count for name, count in own.items() if name in specs)
    if first or not own:
        held += max((work.dialogues for work in needs.values()), default=0) - sum(own.values())
    if [*models] == [*last]:
        held = max((needs[spec.name].dialogues for spec in last if spec.name in needs), default=0)
    works = {name: needs[name] for name in specs if name in needs}
    asked = {n: replace(w, of=held, dialogues=w.dialogues if n in own else min(w.dialogues, held)) for n, w in works.items()}
    return PhaseModels([*specs.values()], asked)
