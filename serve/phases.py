"""Which models share a server, which are up at the same time, and where each of their servers runs.

Specs on one base share a server, with the adapters on it. All models of a run are up at once where that fits; else the judge
after the others; and where not even these fit, the supporters some at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.errors import UserError
from core.files import digest
from core.machine import Machine
from core.specs import ModelSpec, ServeOptions, place_of
from serve.checkpoints.lora import adapter_rank
from serve.command import ServerPlan
from serve.placement import COMFORT, USABLE, Demand, Place, place, refusal
from serve.sizes import size_of


@dataclass
class PhaseUnit:
    """What one server holds: specs on one base, those answered by the base itself, and (served name, spec, adapter)."""

    specs: list[ModelSpec] = field(default_factory=list)
    base_names: list[str] = field(default_factory=list)
    adapters: list[tuple[str, ModelSpec, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What errors and tables call it."""
        return " + ".join(spec.name for spec in self.specs)

    @property
    def serve(self) -> ServeOptions:
        """How it is served, on which its specs agree."""
        return self.specs[0].serve

    @property
    def copies(self) -> int:
        """Copies of the model that one server holds on this machine."""
        return self.serve.data_parallel_local or self.serve.data_parallel

    @property
    def gpus(self) -> int:
        """How many one server needs on this machine, at least."""
        return (self.serve.tensor_parallel or 1) * self.copies

    @property
    def context(self) -> int:
        """Tokens that its specs ask for."""
        return max(spec.context_length or 0 for spec in self.specs)

    @property
    def leaves_sampling(self) -> bool:
        """Whether a spec leaves how replies are drawn to the checkpoint (paper mode)."""
        return any(spec.sampling.temperature is None for spec in self.specs)

    def merges(self, gpu: bool) -> bool:
        """Whether its adapter is merged into a copy of the base: always on CPU and for transformers, on GPUs where nothing else
        is served."""
        lone = len(self.adapters) == 1 and not self.base_names
        return lone and (not gpu or self.serve.engine == "transformers" or all(spec.serve.merge_adapter for spec in self.specs))


def units_of(specs: Sequence[ModelSpec], split_adapters: bool) -> list[PhaseUnit]:
    """The servers that the specs without an endpoint of their own need, one a base; `split_adapters`: one a base or adapter.

    Two specs share a server when checkpoint, revision, chat template and serve options agree. `transformers serve` holds one.
    """
    units: dict[str, PhaseUnit] = {}
    for spec in {digest(s.model_dump(mode="json")): s for s in specs if s.checkpoint and s.endpoint.base_url is None}.values():
        alone = spec.serve.engine == "transformers"
        shared = [spec.checkpoint, spec.revision, spec.chat_template, spec.serve.model_dump(mode="json")]
        key = digest([*shared, spec.name if alone else None])
        adapters = [(spec.served_name(), spec, spec.adapter)] if spec.adapter else []
        for language, by_dimension in (spec.adapters or {}).items():
            adapters += [(spec.served_name(language, dimension), spec, place) for dimension, place in by_dimension.items()]
        if not adapters:
            unit = units.setdefault(key, PhaseUnit())
            unit.specs.append(spec)
            unit.base_names.append(spec.served_name())
        for adapter in adapters:
            unit = units.setdefault(f"{key} {adapter[0]}" if split_adapters or alone else key, PhaseUnit())
            if spec not in unit.specs:
                unit.specs.append(spec)
            unit.adapters.append(adapter)
    return list(units.values())


def check_seeds(specs: Sequence[ModelSpec]) -> None:
    """vLLM's CPU build dies, server and all, when it reads a prompt in parts that is to be sampled with a seed."""
    for spec in specs:
        launched = spec.endpoint.base_url is None and spec.serve.engine == "vllm"
        if launched and spec.sampling.seed is not None and spec.sampling.temperature != 0:
            raise UserError(
                f"model {spec.name}: sampling.seed with a temperature above 0 can kill vLLM's CPU server: leave the seed out, "
                "or serve the model yourself and name it in the config's endpoints"
            )


def check_gpus(unit: PhaseUnit, visible: int, resolve: bool, notes: list[str]) -> None:
    """Refuse a unit that needs more GPUs than there are; not resolving, `notes` say so."""
    options = unit.serve
    needed = unit.gpus * options.replicas if visible else unit.gpus  # on CPU replicas share the cores
    if needed > max(visible, 1):
        local = options.data_parallel_local
        copies = f"serve.data_parallel_local {local}" if local else f"serve.data_parallel {options.data_parallel}"
        problem = (
            f"model {unit.specs[0].name}: serve.tensor_parallel {options.tensor_parallel or 1} × {copies} × serve.replicas "
            f"{options.replicas} needs {needed} GPUs, this machine shows {visible}"
        )
        if resolve:
            raise UserError(f"{problem}: lower them in the spec")
        notes.append(problem)


# ---- which are up at the same time, and where each runs

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
    servers = _servers(together)
    if not machine.gpus or not _known(_demands(servers, None), servers, machine):
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
    held = "to hold the dialogues with"
    parts = [(_distinct([*always, *by_turns[:1]]), held), (list(last), "to judge with")]
    parts += [(_distinct([*always, spec]), held) for spec in by_turns]
    part, purpose = next((part, purpose) for part, purpose in parts if not fits(part, 1))
    raise refusal([*_demands(_servers(part), needs).values()], machine.gpus, str(machine), purpose)


def _distinct(specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    return [*{spec.name: spec for spec in specs}.values()]


def _servers(specs: Sequence[ModelSpec]) -> list[PhaseUnit]:
    return [unit for unit in units_of(specs, split_adapters=False) for _ in range(unit.serve.replicas)]


def _known(demands: Mapping[int, Demand], servers: Sequence[PhaseUnit], machine: Machine) -> bool:
    """Whether enough is known to plan: the memory of the GPUs and the sizes of the models."""
    return bool(machine.gpus) and all(gpu.memory for gpu in machine.gpus) and len(demands) == len(servers)


def _demands(servers: Sequence[PhaseUnit], needs: Mapping[str, int] | None) -> dict[int, Demand]:
    """What each server takes, by its number; those of unknown size are left out."""
    demands: dict[int, Demand] = {}
    for number, unit in enumerate(servers):
        size = size_of(unit.specs[0], 0 if unit.merges(True) else len(unit.adapters), _rank(unit))
        if size is not None:
            demands[number] = Demand(unit.name, size, context_of(unit, needs), unit.serve.tensor_parallel, unit.copies)
    return demands


def context_of(unit: PhaseUnit, needs: Mapping[str, int] | None) -> int:
    """Tokens of a request at most: what the specs ask for, or less where their dialogues need less (`CONTEXT` at least)."""
    if needs is None or not all(spec.name in needs for spec in unit.specs):
        return unit.context
    return min(unit.context, max(CONTEXT, *(needs[spec.name] for spec in unit.specs)))


def _rank(unit: PhaseUnit) -> int:
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


def places(servers: Sequence[PhaseUnit], machine: Machine, needs: Mapping[str, int] | None, where: str) -> dict[int, Place]:
    """The place of each server by its number; none where sizes are not known. Raises `UserError` where they do not fit."""
    demands = _demands(servers, needs)
    if not _known(demands, servers, machine):
        return {}
    for least in (COMFORT, 1):
        if places := place(demands, machine.gpus, least):
            return places
    raise refusal([*demands.values()], machine.gpus, where, "for")
