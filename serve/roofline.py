"""The memory that a server needs, and its speed: a roofline over its GPU's data sheet. Shares of a peak are in `core.machine`.

A step of a server that answers b dialogues at once gives each a token. It takes the longest of

- reading: (weights + b × the cache of a dialogue) / (bandwidth × READS);
- computing: 2 × active parameters × b / (peak × COMPUTES);
- STEP_S, the floor for launches, scheduling and sampling.

Reading n tokens of a prompt takes 2 × active parameters × n / (peak × COMPUTES), and the others wait. So a dialogue takes
`written` steps of a model, and b times the reading of its prompts. Each dialogue in flight is with one of the models, which has
as many as its share of that time is (Little's law); the rate is dialogues in flight / that time. As many are in flight as the
caches of all models hold to the end. Servers on one GPU take turns. Left out: operations of attention, and models elsewhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from core.machine import COMPUTES, DOUBLED, LOADS, READS, START_S, STEP_S, Card
from serve.limits import MOST
from serve.sizes import Size, batched_tokens, overhead
from serve.units import ServerUnit, Workload


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
