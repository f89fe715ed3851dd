"""`make bench`: client and engine, with validation, retries, accounting and call store, against a local endpoint."""

from __future__ import annotations

import asyncio
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from data_prep.cards import bundled_cards, load_cards
from data_prep.records import RoleCard
from data_prep.tables import Table, to_console
from evalsuite.config import EvalConfig, Resolved
from evalsuite.dialogue import Failures, Plan, hold
from evalsuite.frameworks import esc_eval
from evalsuite.judge import Judge
from serve.batch import in_flight
from serve.client import ChatClient
from serve.files import write_json
from serve.store import Store

CALLS_A_DIALOGUE = 11  # 5 exchanges and one joint judgement


@contextmanager
def endpoint(latency: float) -> Iterator[str]:
    """The endpoint process; yields its base URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.endpoint_process", str(latency)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.communicate()


def resolved(url: str, cards: list[RoleCard], concurrency: int) -> Resolved:
    """A run of the embedded spec in all three roles over these cards."""
    config = EvalConfig(
        seeker="embedded", supporters=["embedded"], judge="embedded", concurrency=concurrency, languages=["en"], out="bench"
    )
    config.endpoints["embedded"] = url
    run = Resolved(config)
    run.__dict__["cards"] = cards  # the cached property, filled by hand: as many cards as the benchmark wants
    return run


async def dialogues(run: Resolved, folder: Path) -> tuple[float, float]:
    """Hold and score every dialogue; (wall seconds, CPU seconds of this process)."""
    store = Store(folder / "calls.sqlite")
    concurrency = run.config.concurrency
    async with ChatClient(store, run.config.endpoints, concurrency) as client:
        judge = Judge(client, run.judge, run.rubric, run.judge_prompts, "joint")
        failures = Failures()

        async def one(plan: Plan) -> None:
            await judge.score(await hold(plan, failures))

        plans = list(esc_eval.plans(run, client))
        wall, cpu = time.perf_counter(), time.process_time()
        await in_flight(plans, one, concurrency)
        spent = time.perf_counter() - wall, time.process_time() - cpu
    assert not failures.reasons and len(store) == CALLS_A_DIALOGUE * len(plans)
    store.close()
    return spent


def main(
    runs: Annotated[int, typer.Option(help="Counted runs of each figure.")] = 3,
    count: Annotated[int, typer.Option(help="Dialogues a run.")] = 300,
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("runs/bench"),
) -> None:
    """Throughput of client and engine: calls/s and CPU a call at once, time ÷ ideal at 200 ms."""
    cards = [
        card.model_copy(update={"id": f"{card.id}-{n}"})
        for n in range(math.ceil(count / 18))
        for card in load_cards(bundled_cards("en"))
    ][:count]
    figures: dict[str, list[float]] = {"calls/s": [], "client CPU ms a call": [], "200 ms endpoint: time ÷ ideal": []}
    calls = CALLS_A_DIALOGUE * count
    for latency, concurrency in ((0.0, 64), (0.2, 256)):
        with endpoint(latency) as url:
            for number in range(runs + 1):  # the first is a warm-up
                with tempfile.TemporaryDirectory() as folder:
                    wall, cpu = asyncio.run(dialogues(resolved(url, cards, concurrency), Path(folder)))
                if number == 0:
                    continue
                if latency:
                    waves = math.ceil(count / concurrency)
                    ideal = max(calls * latency / concurrency, CALLS_A_DIALOGUE * latency * waves)
                    figures["200 ms endpoint: time ÷ ideal"].append(wall / ideal)
                else:
                    figures["calls/s"].append(calls / wall)
                    figures["client CPU ms a call"].append(1000 * cpu / calls)
    targets = {"calls/s": "≥ 2000", "client CPU ms a call": "≤ 0.5", "200 ms endpoint: time ÷ ideal": "≤ 1.3"}
    rows = [(name, statistics.median(v), min(v), max(v), targets[name]) for name, v in figures.items()]
    table = Table(
        key="client",
        title=f"Client and engine, {count} dialogues of 5 exchanges + joint judgement, {runs} runs",
        columns=("figure", "median", "min", "max", "target"),
        rows=tuple(rows),
    )
    to_console(table, Console())
    write_json(out / "client.json", {"dialogues": count, "runs": runs, "figures": figures})


if __name__ == "__main__":
    typer.run(main)
