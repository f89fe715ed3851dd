"""Which GPU holds what: servers of known sizes on GPUs of known memory, together where that goes, else one phase after another.

Servers get shares of a GPU by need. One that no GPU holds alone is split over several; what is left goes to the caches, so that
the servers of a GPU hold equally many dialogues. Models that do not fit together come in phases: the judge after the others,
and where not even these fit, the supporters some at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from core.errors import UserError
from core.machine import Gpu, Machine
from core.specs import ModelSpec, place_of
from serve.checkpoints.lora import adapter_rank
from serve.sizes import GIB, Size, batched_tokens, size_of
from serve.units import ServerUnit, units_of

K = TypeVar("K")
USABLE = 0.9  # of a GPU's memory, for all servers on it together
COMFORT = 4  # dialogues of full length that every server should hold at once; real ones are shorter, so about ten are in flight
ASSUMED_RANK = 16  # of an adapter that is not on this machine yet
_STEPS = 20_000  # placements tried before giving up
_SPLITS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Demand:
    """One server to place."""

    name: str
    size: Size
    context: int
    """Tokens of a dialogue of full length."""
    tensor_parallel: int | None = None
    """GPUs that a copy is split over; None: as few as will do."""
    copies: int = 1
    """Copies in this server, on GPUs of their own."""

    def splits(self, gpus: int) -> list[int]:
        """Over how many GPUs a copy can be split, fewest first."""
        if self.tensor_parallel is not None:
            return [self.tensor_parallel]
        return [n for n in _SPLITS if n * self.copies <= gpus and self.size.shape.splits(n)]

    def fixed(self, gpu: int, split: int) -> int:
        """Bytes on each GPU before there is any cache."""
        return self.size.weights(split) + self.size.overhead(gpu, split)

    def dialogue(self, gpu: int, split: int) -> int:
        """Bytes of cache that a dialogue of full length takes on each GPU."""
        return self.size.cache(self.context, split, batched_tokens(gpu))

    def sum(self, gpu: int, split: int, dialogues: int = 1) -> str:
        """The arithmetic in words."""
        weights, overhead = self.size.weights(split), self.size.overhead(gpu, split)
        cache = self.dialogue(gpu, split) * dialogues
        split_over = f" on each of {split} GPUs" if split > 1 else ""
        return (
            f"{self.name}{split_over}: weights {gib(weights)} + overhead {gib(overhead)} + cache of {dialogues} × "
            f"{self.context:,} tokens {gib(cache)} = {gib(weights + overhead + cache)} GiB"
        )


@dataclass(frozen=True)
class Place:
    """Where a server runs and what it gets there."""

    gpus: tuple[str, ...]
    split: int
    """GPUs a copy."""
    share: float
    """Of the memory of each of its GPUs."""
    alone: bool
    """Whether it has them for itself."""
    weights: int
    overhead: int
    cache: int
    dialogues: int
    """Dialogues of full length that its cache holds, over all copies."""


def gib(count: float) -> str:
    """Bytes as GiB with one decimal."""
    return f"{count / GIB:.1f}"


def place(demands: Mapping[K, Demand], gpus: Sequence[Gpu], least: int = 1) -> dict[K, Place] | None:
    """A place for every server, each with cache for `least` dialogues at least; None where they do not fit together.

    The largest comes first, on the GPUs with most room.
    """
    room = {gpu.name: usable(gpu) for gpu in gpus}
    memory = {gpu.name: gpu.memory or 0 for gpu in gpus}
    order = sorted(demands, key=lambda key: -demands[key].fixed(max(memory.values()), 1))
    chosen: dict[K, tuple[tuple[str, ...], int]] = {}
    steps = 0

    def need(demand: Demand, gpu: str, split: int) -> int:
        return demand.fixed(memory[gpu], split) + least * demand.dialogue(memory[gpu], split)

    def settle(number: int) -> bool:
        nonlocal steps
        if number == len(order):
            return True
        key = order[number]
        demand = demands[key]
        for split in demand.splits(len(gpus)):
            steps += 1
            if steps > _STEPS:
                return False
            names = sorted(room, key=lambda name: -room[name])[: split * demand.copies]
            if len(names) < split * demand.copies or any(room[name] < need(demand, name, split) for name in names):
                continue
            for name in names:
                room[name] -= need(demand, name, split)
            chosen[key] = tuple(sorted(names, key=[*memory].index)), split
            if settle(number + 1):
                return True
            for name in names:
                room[name] += need(demand, name, split)
        return False

    if not settle(0):
        return None
    together = Counter(name for names, _ in chosen.values() for name in names)
    per_dialogue = Counter[str]()
    for key, (names, split) in chosen.items():
        for name in names:
            per_dialogue[name] += demands[key].dialogue(memory[name], split)
    places: dict[K, Place] = {}
    for key in demands:  # in the order in which they were asked for
        (names, split), demand = chosen[key], demands[key]
        first, smallest = memory[names[0]], min(memory[name] for name in names)
        more = min(room[name] / max(per_dialogue[name], 1) for name in names)  # dialogues
        wanted = need(demand, names[0], split) + int(more * demand.dialogue(first, split))
        share = math.ceil(wanted / smallest * 10_000) / 10_000
        fixed = demand.fixed(first, split)
        cache = int(share * smallest) - fixed
        dialogues = cache // demand.dialogue(first, split) * demand.copies
        alone = all(together[name] == 1 for name in names)
        weights = demand.size.weights(split)
        places[key] = Place(names, split, share, alone, weights, fixed - weights, cache, dialogues)
    return places


def usable(gpu: Gpu) -> int:
    """Bytes of a GPU that servers may divide."""
    memory = gpu.memory or 0
    return min(int(memory * USABLE), memory - gpu.used)


def refusal(demands: Sequence[Demand], machine: Machine, purpose: str, name: str = "") -> UserError:
    """Why servers do not fit, with the arithmetic and the next best option. `purpose` ends in the word before their names."""
    gpus = machine.gpus
    gpu = max(gpus, key=usable)
    lines = [f"not enough memory on {name or machine} {purpose} {' and '.join(demand.name for demand in demands)}:"]
    for demand in demands:
        split = (demand.splits(len(gpus)) or [demand.tensor_parallel or 1])[-1]
        lines.append(f"  {demand.sum(gpu.memory or 0, split)}")
    held = f"; {gib(gpu.used)} GiB of it are in use by something else" if gpu.used > (gpu.memory or 0) * (1 - USABLE) else ""
    lines.append(f"  a GPU offers {gib(usable(gpu))} GiB ({USABLE:.0%} of {gib(gpu.memory or 0)}{held})")
    lines.append(f"Next best: {next_best(demands, gpus)}")
    return UserError("\n".join(lines))


def next_best(demands: Sequence[Demand], gpus: Sequence[Gpu]) -> str:
    """What would make servers fit: 8 bits, or more GPUs like the largest here; and what always does."""
    numbered = dict(enumerate(demands))
    options: list[str] = []
    for kinds in (("weights",), ("weights", "cache")):
        smaller = {n: replace(d, size=replace(d.size, fp8=tuple({*d.size.fp8, *kinds}))) for n, d in numbered.items()}
        if place(smaller, gpus):
            options.append(f"serve: {{fp8: [{', '.join(kinds)}]}} in the spec of {', '.join(d.name for d in demands)}")
            break
    largest = max(gpus, key=usable)
    for count in range(len(gpus) + 1, 17):
        more = [*gpus, *(replace(largest, name=f"+{n}", used=0) for n in range(count - len(gpus)))]
        if place(numbered, more):
            options.append(f"{count} GPUs instead of {len(gpus)}")
            break
    options.append(
        f"serve {demands[0].name} elsewhere and give its address: --set endpoints.{demands[0].name}=http://HOST:PORT/v1"
    )
    return "; or ".join(options)


# ---- for specs


def demands_of(
    servers: Sequence[ServerUnit], machine: Machine, needs: Mapping[str, int] | None = None
) -> dict[int, Demand] | None:
    """What each server takes, by its number; None where the memory of a GPU or the size of a model is not known."""
    demands: dict[int, Demand] = {}
    for number, unit in enumerate(servers):
        folders = [place_of(where) for _, _, where in unit.adapters]
        ranks = [adapter_rank(folder, f"model {unit.name}: adapter") for folder in folders if folder.is_dir()]
        adapters = 0 if unit.merges(True) else len(unit.adapters)
        size = size_of(unit.specs[0], adapters, max(ranks, default=ASSUMED_RANK))
        if size is None:
            return None
        demands[number] = Demand(unit.name, size, unit.context(needs), unit.serve.tensor_parallel, unit.copies)
    return demands if machine.gpus and all(gpu.memory for gpu in machine.gpus) else None


def places(demands: Mapping[int, Demand], machine: Machine, free: Machine) -> dict[int, Place]:
    """The place of each server by its number, on what is `free` of a machine. Raises `UserError` where they do not fit."""
    for least in (COMFORT, 1):
        if places := place(demands, free.gpus, least):
            return places
    raise refusal([*demands.values()], free, "for", str(machine))


def phases(
    always: Sequence[ModelSpec],
    by_turns: Sequence[ModelSpec],
    last: Sequence[ModelSpec],
    machine: Machine | None = None,
    needs: Mapping[str, int] | None = None,
    split: bool | None = None,
) -> list[list[ModelSpec]]:
    """Which models are up at the same time, phase by phase.

    All at once where that fits. Else `last` (the judge) comes after the others; and where not even these fit, `by_turns` (the
    supporters) come some at a time, each time beside those of `always` (the seeker). `split`: whether `last` has a phase of its
    own in any case (True), or never (None: where it must). Raises `UserError`, with the arithmetic, for what fits in no way.
    """
    machine = machine or Machine.here()
    together = _distinct([*always, *by_turns, *last])
    before = _distinct([*always, *by_turns])
    if not before or not last or split is False:
        return [together]
    if split:
        return [before, list(last)]
    servers = _servers(together)
    if demands_of(servers, machine, needs) is None:
        return [together]

    def fits(specs: Sequence[ModelSpec], least: int) -> bool:
        return place(demands_of(_servers(specs), machine, needs) or {}, machine.gpus, least) is not None

    if fits(together, COMFORT):
        return [together]
    for least in (COMFORT, 1):
        if not fits(last, least):
            continue
        turns = list[list[ModelSpec]]()
        for beside in [[spec] for spec in by_turns] or [[]]:
            if turns and fits(_distinct([*turns[-1], *beside]), least):
                turns[-1] = _distinct([*turns[-1], *beside])
            elif fits(_distinct([*always, *beside]), least):
                turns.append(_distinct([*always, *beside]))
            else:
                break
        else:
            return [*turns, list(last)]
    if fits(together, 1):
        return [together]
    held = "to hold the dialogues with"
    parts = [(_distinct([*always, *by_turns[:1]]), held), (list(last), "to judge with")]
    parts += [(_distinct([*always, spec]), held) for spec in by_turns]
    part, purpose = next((part, purpose) for part, purpose in parts if not fits(part, 1))
    raise refusal([*(demands_of(_servers(part), machine, needs) or {}).values()], machine, purpose)


def _distinct(specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    return [*{spec.name: spec for spec in specs}.values()]


def _servers(specs: Sequence[ModelSpec]) -> list[ServerUnit]:
    return [unit for unit in units_of(specs, split_adapters=False) for _ in range(unit.serve.replicas)]
