"""Which servers a set of specs needs: specs on one base share a server. And problems that can be found before a download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from core.errors import UserError
from core.files import digest
from core.machine import Machine
from core.specs import EMBEDDED_PREFIX, ModelSpec, ServeOptions
from serve.checkpoints.places import local_path

CONTEXT = 8192  # tokens that a dialogue gets at least where its spec allows them


@dataclass(frozen=True)
class Workload:
    """What a model is asked in a run, or in a phase of it.

    It takes part in `dialogues` of the `of` that the phase holds (0: as many). `context` is the most tokens of a request and
    its reply, `length` the same of a dialogue at the 95th percentile (0: unknown). Means per dialogue: `read` tokens of prompts
    that its cache does not hold from the request before, and `written` tokens. `kept`: whether it is asked again in the same
    dialogue, and so should keep what it has read.
    """

    context: int
    length: int = 0
    dialogues: float = 0
    of: float = 0
    read: float = 0
    written: float = 0
    kept: bool = True

    def __add__(self, other: Workload) -> Workload:
        of, both = max(self.of, other.of), (self, other)
        dialogues = min(self.dialogues + other.dialogues, of or float("inf"))  # above that, both are in the same dialogues
        read, written = (sum(getattr(w, name) * w.dialogues for w in both) / max(dialogues, 1) for name in ("read", "written"))
        longest = max(self.context, other.context), max(self.length, other.length)
        return Workload(*longest, dialogues, of, read, written, self.kept or other.kept)


Needs = Mapping[str, Workload]  # by model


@dataclass
class ServerUnit:
    """What one server holds: specs on one base, the names that the base itself serves, and (served name, spec, adapter)."""

    specs: list[ModelSpec] = field(default_factory=list)
    base_names: list[str] = field(default_factory=list)
    adapters: list[tuple[str, ModelSpec, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For errors and tables."""
        return " + ".join(spec.name for spec in self.specs)

    @property
    def serve(self) -> ServeOptions:
        """The serve options that its specs share."""
        return self.specs[0].serve

    @property
    def copies(self) -> int:
        """Copies of the model that one server holds on this machine."""
        return self.serve.data_parallel_local or self.serve.data_parallel

    @property
    def gpus(self) -> int:
        """How many GPUs one server needs on this machine, at least."""
        return (self.serve.tensor_parallel or 1) * self.copies

    @property
    def grows(self) -> bool:
        """Whether the planner chooses the number of equal servers: where the spec does not."""
        return not self.serve.model_fields_set & {"replicas", "data_parallel"}

    def work(self, needs: Needs | None) -> Workload | None:
        """What all its specs are asked together; None unless that is known for each of them."""
        works = [needs[spec.name] for spec in self.specs if needs and spec.name in needs]
        return reduce(add, works) if len(works) == len(self.specs) else None

    def context(self, needs: Needs | None) -> int:
        """Tokens of a request at most: what its specs ask for, or what their dialogues need (`CONTEXT` at least) if less."""
        longest = max(spec.context_length or 0 for spec in self.specs)
        work = self.work(needs)
        return min(longest, max(CONTEXT, work.context)) if work else longest

    def merges(self, gpu: bool) -> bool:
        """Whether its adapter is merged into a copy of the base: a lone one, on GPUs unless a spec forbids it."""
        lone = len(self.adapters) == 1 and not self.base_names
        return lone and (not gpu or all(spec.serve.merge_adapter for spec in self.specs))


def units_of(specs: Sequence[ModelSpec], split_adapters: bool) -> list[ServerUnit]:
    """The servers that specs without an endpoint of their own need: one per base; `split_adapters`: one per base or adapter.

    Two specs share a server when checkpoint, revision, chat template and serve options agree.
    """
    units: dict[str, ServerUnit] = {}
    for spec in {digest(s.model_dump(mode="json")): s for s in specs if s.checkpoint and s.endpoint.base_url is None}.values():
        key = digest([spec.checkpoint, spec.revision, spec.chat_template, spec.serve.model_dump(mode="json")])
        adapters = [(spec.served_name(), spec, spec.adapter)] if spec.adapter else []
        for language, by_dimension in (spec.adapters or {}).items():
            adapters += [(spec.served_name(language, dimension), spec, place) for dimension, place in by_dimension.items()]
        if not adapters:
            unit = units.setdefault(key, ServerUnit())
            unit.specs.append(spec)
            unit.base_names += [name for name in [spec.served_name()] if name not in unit.base_names]
        for adapter in adapters:
            unit = units.setdefault(f"{key} {adapter[0]}" if split_adapters else key, ServerUnit())
            if spec not in unit.specs:
                unit.specs.append(spec)
            if adapter[0] not in [name for name, *_ in unit.adapters]:  # a variant is its model's adapter
                unit.adapters.append(adapter)
    return list(units.values())


def check_machine(unit: ServerUnit, machine: Machine) -> None:
    """Raise `UserError` for more GPUs than a machine has, and on a CPU for sampling with a seed: vLLM's CPU build dies when it
    reads such a prompt in parts."""
    options, gpus = unit.serve, len(machine.gpus)
    needed = unit.gpus * (options.replicas if gpus else 1)  # on a CPU replicas share the cores
    if needed > max(gpus, 1) and (gpus or not machine.has_gpu):  # where GPUs cannot be listed, vLLM finds them
        raise UserError(
            f"model {unit.specs[0].name}: serve.tensor_parallel {options.tensor_parallel or 1} × serve.data_parallel"
            f"{'_local' if options.data_parallel_local else ''} {unit.copies} × serve.replicas {options.replicas} needs "
            f"{needed} GPUs, this machine shows {gpus}: lower them in the spec, or plan for another machine (--gpus)"
        )
    for spec in unit.specs if not machine.has_gpu else ():
        if spec.sampling.seed is not None and spec.sampling.temperature != 0:
            raise UserError(
                f"model {spec.name}: sampling.seed with a temperature above 0 can kill vLLM's CPU server: leave it out"
            )


def check_places(units: Sequence[ServerUnit]) -> None:
    """Raise `UserError` for models that nothing here can serve, and for missing folders, before anything is downloaded."""
    if problems := [problem for unit in units if (problem := unservable(unit.specs[0]))]:
        raise UserError("\n".join(problems))
    for unit in units:
        where = unit.specs[0].checkpoint or ""
        if not where.startswith(EMBEDDED_PREFIX):
            local_path(where, f"model {unit.specs[0].name}: checkpoint")
        for _, owner, adapter in unit.adapters:
            local_path(adapter, f"model {owner.name}: adapter")


def unservable(spec: ModelSpec) -> str | None:
    """Why nothing here can serve a model, and what to do."""
    why = spec.serve.unservable
    return why and (
        f"model {spec.name} cannot be served here: {why}. Serve it elsewhere and give its address: "
        f"--set endpoints.{spec.name}=http://HOST:PORT/v1"
    )
