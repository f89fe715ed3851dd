"""A plan as a table: which server runs where, what it takes, how many dialogues its cache holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.machine import Machine
from core.tables import Cell, Table
from serve.command import ServerPlan
from serve.placement import USABLE
from serve.sizes import GIB, size_of

COLUMNS = ("phase", "server", "GPU", "share", "weights", "overhead", "cache", "context", "dialogues")


def overview(
    phases: Sequence[Sequence[ServerPlan]], machine: Machine, needs: Mapping[str, int] | None = None, more: Sequence[str] = ()
) -> Table:
    """The servers of all phases with their memory in GiB on each GPU. `needs` is as for `serve.plan.plan_servers`."""
    rows: list[tuple[Cell, ...]] = []
    notes = [*more]
    for number, plans in enumerate(phases, start=1):
        for plan in plans:
            if not plan.workers:
                rows.append((f"{number} of {len(phases)}", *_row(plan, machine)))
            notes += [note for note in plan.notes if note not in notes]
            notes += [note for note in _short(plan, needs or {}) if note not in notes]
    used = {name for plans in phases for plan in plans for name in (plan.place.gpus if plan.place else ())}
    idle = [gpu.name for gpu in machine.gpus if gpu.name not in used]
    if used and idle:
        notes.append(f"GPU {', '.join(idle)} left over: serve.replicas in a spec makes several servers of a model")
    if machine.has_gpu:
        notes.append(
            f"weights, overhead (activations, logits, CUDA graphs; assumed) and cache: GiB on each GPU, {USABLE:.0%} of which "
            "are planned with; dialogues: as many of full length (context) as the cache holds; shorter ones are more"
        )
    return Table("servers", f"Servers on {machine}", COLUMNS, tuple(rows), tuple(notes))


def _row(plan: ServerPlan, machine: Machine) -> tuple[Cell, ...]:
    place = plan.place
    if place is not None:
        figures = (place.weights / GIB, place.overhead / GIB, place.cache / GIB)
        sizes = tuple(f"{figure:.1f}" for figure in figures)
        gpus = ", ".join(place.gpus) + (f" (tensor parallel {place.split})" if place.split > 1 else "")
        return (plan.name, gpus, f"{place.share:.4f}", *sizes, f"{plan.context:,}", str(place.dialogues))
    size = size_of(plan.specs[0])
    weights = f"{size.weights() / GIB:.1f}" if size else "?"
    if machine.has_gpu:
        gpus = plan.env.get("CUDA_VISIBLE_DEVICES", "all")
        return (plan.name, gpus, "?", weights, "?", "?", f"{plan.context:,}", "?")
    grows = plan.specs[0].serve.engine == "transformers"  # with each reply, and is not planned
    cache = "–" if grows else plan.env.get("VLLM_CPU_KVCACHE_SPACE", "as set")
    dialogues = str(int(cache) * GIB // size.cache(plan.context)) if size and cache.isdigit() else "?"
    return (plan.name, "CPU", "–", weights, "–", cache, f"{plan.context:,}", dialogues)


def _short(plan: ServerPlan, needs: Mapping[str, int]) -> list[str]:
    """Where dialogues may need more than a model takes."""
    return [
        f"a dialogue may need {needs[spec.name]:,} tokens of {spec.name}, which takes {plan.context:,} (context_length): one "
        "that gets so long ends there"
        for spec in plan.specs
        if needs.get(spec.name, 0) > plan.context
    ]
