"""Client and engine as a user runs them, against an endpoint on loopback that answers at once or after 200 ms."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.bench.endpoint_process import endpoint
from tests.bench.figures import OUT, Bench, OutOption, RunsOption
from tests.bench.one_run import EXCHANGES, Spent, run_config, spend, varied
from tests.bench.rivals import DIMENSIONS, RIVALS, installed, rival

TURNS = 2 * EXCHANGES
CALLS = TURNS + DIMENSIONS
PATH = TURNS + 2  # of a dialogue, one call after the other: its turns, the first dimension, the other six together
LATENCY, IN_FLIGHT, IN_FLIGHT_AT_ONCE = 0.2, 256, 64
FEWEST = 500  # dialogues for the target at 200 ms: of fewer, starting up is too large a part


def ideal(dialogues: int, latency: float, in_flight: int) -> float:
    """The least seconds that any client needs: for all calls in slots that are never empty, or for one dialogue's critical path
    in as many waves as there have to be."""
    return max(dialogues * CALLS * latency / in_flight, PATH * latency * math.ceil(dialogues / in_flight))


def ours(url: str, dialogues: int, concurrency: int | None) -> Spent:
    """One run of ours (`concurrency` None: it finds by itself how many calls the server bears)."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"endpoints": {"embedded": url}, "concurrency": concurrency, "method": "per_dimension"}
        spent = spend(run_config(Path(folder), varied(dialogues), **settings))[1]
    assert spent.calls == CALLS * dialogues
    return spent


def main(
    runs: RunsOption = 3,
    dialogues: Annotated[int, typer.Option(help="Dialogues a run.")] = 500,
    other_dialogues: Annotated[
        int, typer.Option(help="Dialogues of other clients, answered at once. 0: no other clients.")
    ] = 100,
    out: OutOption = OUT,
) -> None:
    """(a) Client and engine: calls a second, CPU a call, time ÷ ideal at 200 ms; other clients beside them."""
    title = f"(a) Client and engine: {TURNS} alternating calls and {DIMENSIONS} of the judge a dialogue"
    bench = Bench("client", title, dialogues=dialogues, dialogues_of_others=other_dialogues, runs=runs)
    others = installed() if other_dialogues else []
    with endpoint(0) as url:
        ours(url, dialogues // 5 + 1, IN_FLIGHT_AT_ONCE)  # warm-up
        at_once = {"ours": [ours(url, dialogues, IN_FLIGHT_AT_ONCE) for _ in range(runs)]}
        for name in others:
            bench.say(f"{name}, answered at once")
            at_once[name] = [rival(name, url, other_dialogues, IN_FLIGHT_AT_ONCE) for _ in range(runs)]
    for name, spent in at_once.items():
        bench.add(f"{name}: calls/s", [s.calls / s.seconds for s in spent], at_least=2000 if name == "ours" else None)
        bench.add(f"{name}: CPU, ms a call", [1000 * s.cpu / s.calls for s in spent], at_most=0.5 if name == "ours" else None)
    with endpoint(LATENCY) as url:
        least = ideal(dialogues, LATENCY, IN_FLIGHT)
        for width, target in ((IN_FLIGHT, 1.3 if dialogues >= FEWEST else None), (None, None)):
            bench.say(f"ours, 200 ms, in flight: {width or 'as it finds'}")
            ratios = [ours(url, dialogues, width).seconds / least for _ in range(runs)]
            bench.add(f"ours, 200 ms, {width or 'adapting'} in flight: time ÷ ideal", ratios, at_most=target)
        for name in others:
            bench.say(f"{name}, 200 ms")
            bench.add(f"{name}, 200 ms: time ÷ ideal", rival(name, url, dialogues, IN_FLIGHT).seconds / least)
    bench.notes.append(
        f"Ideal, also of the adapting run: calls × latency ÷ {IN_FLIGHT}, or critical path × waves if that is more: "
        f"{least:.2f} s. Ours is all that `esc-eval run` does before the report; of other clients only the calls."
    )
    if absent := [name for name in RIVALS if name not in others]:
        bench.notes.append(f"Not measured: {', '.join(absent)}" + (" (not installed)." if other_dialogues else "."))
    bench.deliver(out)
