"""Which servers a set of specs needs: specs on one base share a server, with the adapters on it. And what can be said against
one before anything is downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from core.errors import UserError
from core.files import digest
from core.specs import EMBEDDED_PREFIX, ModelSpec, ServeOptions
from serve.checkpoints.places import local_path

CONTEXT = 8192  # tokens that a dialogue is given where a spec has room for more and nothing says that it needs them


@dataclass(frozen=True)
class Workload:
    """What a model is asked in a run, or in a phase of it. Means are of a dialogue."""

    context: int
    """Tokens of its longest request and reply together, at most."""
    length: int = 0
    """The same of a dialogue at the 95th percentile; 0: not known."""
    dialogues: float = 0
    """In how many it has a part."""
    of: float = 0
    """How many there are at the same time in all; 0: as many."""
    read: float = 0
    """Tokens of its prompts that its cache does not hold from the request before."""
    written: float = 0
    """Tokens that it answers."""
    kept: bool = True
    """Whether it is asked again in the same dialogue, and so should keep what it has read."""

    def __add__(self, other: Workload) -> Workload:
        """Both, of one server."""
        of, both = max(self.of, other.of), (self, other)
        dialogues = min(self.dialogues + other.dialogues, of or float("inf"))  # more have both of them
        read, written = (
            sum(getattr(one, name) * one.dialogues for one in both) / max(dialogues, 1) for name in ("read", "written")
        )
        longest = max(one.context for one in both), max(one.length for one in both)
        return Workload(*longest, dialogues, of, read, written, any(one.kept for one in both))


Needs = Mapping[str, Workload]  # by model


@dataclass
class ServerUnit:
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
    def grows(self) -> bool:
        """Whether the planner chooses how many equal servers there are: where the spec does not."""
        return self.serve.engine == "vllm" and not self.serve.model_fields_set & {"replicas", "data_parallel"}

    def work(self, needs: Needs | None) -> Workload | None:
        """What it is asked by all its specs; None where that is not known of each."""
        works = [needs[spec.name] for spec in self.specs if needs and spec.name in needs]
        return reduce(add, works) if len(works) == len(self.specs) else None

    def context(self, needs: Needs | None) -> int:
        """Tokens of a request at most: what its specs ask for, or less (but `CONTEXT`) where their dialogues need less."""
        longest = max(spec.context_length or 0 for spec in self.specs)
        work = self.work(needs)
        return min(longest, max(CONTEXT, work.context)) if work else longest

    def merges(self, gpu: bool) -> bool:
        """Whether its adapter is merged into a copy of the base: always on CPU and for transformers, on GPUs where nothing else
        is served."""
        lone = len(self.adapters) == 1 and not self.base_names
        return lone and (not gpu or self.serve.engine == "transformers" or all(spec.serve.merge_adapter for spec in self.specs))


def units_of(specs: Sequence[ModelSpec], split_adapters: bool) -> list[ServerUnit]:
    """The servers that the specs without an endpoint of their own need, one a base; `split_adapters`: one a base or adapter.

    Two specs share a server when checkpoint, revision, chat template and serve options agree. `transformers serve` holds one.
    """
    units: dict[str, ServerUnit] = {}
    for spec in {digest(s.model_dump(mode="json")): s for s in specs if s.checkpoint and s.endpoint.base_url is None}.values():
        alone = spec.serve.engine == "transformers"
        shared = [spec.checkpoint, spec.revision, spec.chat_template, spec.serve.model_dump(mode="json")]
        key = digest([*shared, spec.served_name() if alone else None])
        adapters = [(spec.served_name(), spec, spec.adapter)] if spec.adapter else []
        for language, by_dimension in (spec.adapters or {}).items():
            adapters += [(spec.served_name(language, dimension), spec, place) for dimension, place in by_dimension.items()]
        if not adapters:
            unit = units.setdefault(key, ServerUnit())
            unit.specs.append(spec)
            unit.base_names += [name for name in [spec.served_name()] if name not in unit.base_names]
        for adapter in adapters:
            unit = units.setdefault(f"{key} {adapter[0]}" if split_adapters or alone else key, ServerUnit())
            if spec not in unit.specs:
                unit.specs.append(spec)
            if adapter[0] not in [name for name, *_ in unit.adapters]:  # a variant is its model's adapter
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


def check_gpus(unit: ServerUnit, visible: int, resolve: bool, notes: list[str]) -> None:
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


def check_places(units: Sequence[ServerUnit]) -> None:
    """Raise `UserError` for what nothing here can serve, and for a folder that is not there, before anything is downloaded."""
    if problems := [problem for unit in units if (problem := unservable(unit))]:
        raise UserError("\n".join(problems))
    for unit in units:
        where = unit.specs[0].checkpoint or ""
        if not where.startswith(EMBEDDED_PREFIX):
            local_path(where, f"model {unit.specs[0].name}: checkpoint")
        for _, owner, adapter in unit.adapters:
            local_path(adapter, f"model {owner.name}: adapter")


def unservable(unit: ServerUnit) -> str | None:
    """Why nothing here can serve a unit, and what to do."""
    spec, why = unit.specs[0], unit.specs[0].serve.unservable
    return why and (
        f"model {spec.name} cannot be served here: {why}. Serve it elsewhere and give its address: "
        f"--set endpoints.{spec.name}=http://HOST:PORT/v1"
    )
