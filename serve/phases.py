"""Which models are up at the same time, and where each of their servers runs.

All models of a run at once where that fits; else the judge after the others; and where not even these fit, the supporters some
at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from core.errors import UserError
from core.machine import Machine
from core.specs import ModelSpec, place_of
from serve.checkpoints.lora import adapter_rank
from serve.command import ServerPlan
from serve.placement import COMFORT, USABLE, Demand, Place, place, refusal
from serve.sizes import size_of
from serve.units import Unit, units_of

ASSUMED_RANK = 16  # of an adapter that is not on this machine yet
CONTEXT = 8192  # tokens that a dialogue is given where a spec has room for more and nothing says that it needs them


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
    if not _planned(together, machine):
        return [together]

    def fits(specs: Sequence[ModelSpec], least: int) -> bool:
        return place(_demands(_servers(specs), needs), machine.gpus, least) is not None

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
    for part, purpose in [(_distinct([*always, *by_turns[:1]]), "to hold the dialogues with"), (list(last), "to judge with")]:
        if not fits(part, 1):
            raise _refused(part, machine, needs, purpose)
    wide = next(spec for spec in by_turns if not fits(_distinct([*always, spec]), 1))
    raise _refused(_distinct([*always, wide]), machine, needs, "to hold the dialogues with")


def _refused(specs: Sequence[ModelSpec], machine: Machine, needs: Mapping[str, int] | None, purpose: str) -> UserError:
    demands = [*_demands(_servers(specs), needs).values()]
    return refusal(demands, machine.gpus, str(machine), purpose)


def _distinct(specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    return [*{spec.name: spec for spec in specs}.values()]


def _servers(specs: Sequence[ModelSpec]) -> list[Unit]:
    return [unit for unit in units_of(specs, split_adapters=False) for _ in range(unit.replicas)]


def _planned(specs: Sequence[ModelSpec], machine: Machine) -> bool:
    """Whether enough is known to plan: the memory of the GPUs and the sizes of the models."""
    known = machine.has_gpu and machine.gpus and all(gpu.memory for gpu in machine.gpus)
    return bool(known) and len(_demands(units := _servers(specs), None)) == len(units)


def _demands(servers: Sequence[Unit], needs: Mapping[str, int] | None) -> dict[int, Demand]:
    """What each server takes, by its number; those of unknown size are left out."""
    demands: dict[int, Demand] = {}
    for number, unit in enumerate(servers):
        size = size_of(unit.specs[0], 0 if unit.merges(True) else len(unit.adapters), _rank(unit))
        if size is not None:
            options = unit.specs[0].serve
            demands[number] = Demand(unit.name, size, context_of(unit, needs), options.tensor_parallel, unit.copies)
    return demands


def context_of(unit: Unit, needs: Mapping[str, int] | None) -> int:
    """Tokens of a request at most: what the specs ask for, or less where their dialogues need less (`CONTEXT` at least)."""
    if needs is None or not all(spec.name in needs for spec in unit.specs):
        return unit.context
    return min(unit.context, max(CONTEXT, *(needs[spec.name] for spec in unit.specs)))


def _rank(unit: Unit) -> int:
    """The largest rank of its adapters, as far as they are here."""
    folders = [place_of(where) for _, _, where in unit.adapters]
    ranks = [adapter_rank(folder, f"model {unit.name}: adapter") for folder in folders if folder.is_dir()]
    return max(ranks, default=ASSUMED_RANK)


def without(machine: Machine, held: Sequence[ServerPlan]) -> Machine:
    """The machine without what running servers hold of it."""
    taken = Counter[str]()
    for plan in held:
        for name in plan.place.gpus if plan.place else ():
            taken[name] += int(10_000 * plan.place.share) if plan.place else 0
    gpus = [
        replace(gpu, used=gpu.memory - int(gpu.memory * USABLE) + gpu.memory * taken[gpu.name] // 10_000)
        if gpu.memory and taken[gpu.name]
        else gpu
        for gpu in machine.gpus
    ]
    return replace(machine, gpus=tuple(gpus))


def places(servers: Sequence[Unit], machine: Machine, needs: Mapping[str, int] | None, where: str) -> dict[int, Place]:
    """The place of each server by its number; none where sizes are not known. Raises `UserError` where they do not fit."""
    demands = _demands(servers, needs)
    if len(demands) < len(servers) or not machine.gpus or not all(gpu.memory for gpu in machine.gpus):
        return {}
    for least in (COMFORT, 1):
        if places := place(demands, machine.gpus, least):
            return places
    wanted = [*demands.values()]
    raise refusal(wanted, machine.gpus, where, "for")
