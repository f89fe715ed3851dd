"""Client and engine as a user runs them, beside other clients, against an endpoint on loopback that answers at once or after
200 ms. All make the same calls, in turn, so that a ratio holds on any machine."""

import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import orjson
import typer

from core.files import write_jsonl
from serve.transport import Transport
from tests.bench.endpoint_process import endpoint
from tests.bench.figures import OUT, Bench, OutOption, RunsOption
from tests.bench.one_run import CALLS, DIMENSIONS, PATH, TURNS, Spent, apart, run_config, spend, varied
from tests.bench.rivals import RIVALS
from tests.peers import PEERS

LATENCY, IN_FLIGHT, IN_FLIGHT_AT_ONCE = 0.2, 256, 64
FEW, MANY, SLOW = 500, 10_000, 2.0  # dialogues under way at once, with answers after so many seconds
SHORT = {"exchanges": 1, "method": "joint"}  # three calls
FEWEST = 500  # dialogues for the target at 200 ms: of fewer, starting up is too large a part
DIFFERENT = 50  # dialogues whose calls are kept for the others
# Ratio of calls a second to this client, of CPU a call, and of time ÷ ideal.
FASTER, CPU, LATE = {"openai-python": 10.0, "openai-python on aiohttp": 10.0, "Inspect AI": 25.0}, 1.6, 1.1


def ideal(dialogues: int, latency: float, in_flight: int) -> float:
    """The least seconds that any client needs: for all calls in slots that are never empty, or for one dialogue's critical path
    in as many waves as there have to be."""
    return max(dialogues * CALLS * latency / in_flight, PATH * latency * math.ceil(dialogues / in_flight))


def ours(url: str, dialogues: int, concurrency: int | None, **settings: Any) -> Spent:
    """One run of ours in a process of its own (`concurrency` None: it finds by itself how many calls the server bears)."""
    with tempfile.TemporaryDirectory() as folder:
        write_jsonl(Path(folder) / "cards.jsonl", varied(dialogues))
        _, spent = apart(Path(folder), url, concurrency, **{"method": "per_dimension"} | settings)
    assert settings or spent.calls == CALLS * dialogues
    return spent


def calls_of(url: str, dialogues: int) -> list[list[dict[str, Any]]]:
    """The requests that ours makes for so many dialogues, each dialogue's in their order."""
    asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
    send = Transport.send

    async def kept(self: Transport, spec: Any, url: str, question: Any, body: Mapping[str, Any], doubtful: bool = False) -> Any:
        asked[question.session].append(dict(body))
        return await send(self, spec, url, question, body, doubtful)

    with tempfile.TemporaryDirectory() as folder, patch.object(Transport, "send", kept):
        spend(run_config(Path(folder), varied(dialogues), endpoints={"embedded": url}, method="per_dimension"))
    return list(asked.values())


def rival(name: str, url: str, calls: Path, concurrency: int, repeat: int) -> Spent:
    """What these calls take another client, in a process of its own."""
    python = sys.executable if name == "bare loop" else str(PEERS)
    command = [python, "-m", "tests.bench.rivals", name, url, str(calls), str(concurrency), str(repeat)]
    return Spent(**orjson.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def main(
    runs: RunsOption = 3,
    dialogues: Annotated[int, typer.Option(help="Dialogues a run, of ours and of the bare loop.")] = 500,
    other_dialogues: Annotated[int, typer.Option(help="Dialogues of the slower clients. 0: none of them.")] = 100,
    many: Annotated[int, typer.Option(help="Dialogues that are under way at once in the last figure. 0: without it.")] = MANY,
    out: OutOption = OUT,
) -> None:
    """(a) Client and engine beside a bare loop, openai-python and Inspect AI: calls/s, CPU a call, time ÷ ideal at 200 ms.

    Each of the three parts has a table of its own, written when it is done.
    """
    sizes = {"dialogues": dialogues, "dialogues_of_others": other_dialogues, "runs": runs}
    calls_made = f"{TURNS} alternating calls and {DIMENSIONS} of the judge a dialogue"
    others = [name for name in RIVALS if name == "bare loop" or (other_dialogues and PEERS.exists())]
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls.jsonl"
        with endpoint(0) as url:
            calls.write_bytes(b"".join(orjson.dumps(bodies) + b"\n" for bodies in calls_of(url, DIFFERENT)))
            bench = Bench("client", f"(a) Client and engine: {calls_made}", **sizes)
            _compare(bench, url, dialogues, other_dialogues, runs, others, calls)
            _deliver(bench, others, out)
        with endpoint(LATENCY) as url:
            bench = Bench("client-latency", f"(a) Client and engine, answers after {LATENCY:g} s: {calls_made}", **sizes)
            _late(bench, url, dialogues, other_dialogues, runs, others, calls)
            _deliver(bench, others, out)
    if many:
        title = "(a) Client and engine, many dialogues in flight: three calls per dialogue"
        bench = Bench("client-many", title, dialogues=many)
        _under_way(bench, many)
        bench.deliver(out)


def _deliver(bench: Bench, others: Sequence[str], out: Path) -> None:
    bench.notes.append(
        "Ours is all that `esc-eval run` does before the report, with validation, retries, store and progress; of the other "
        "clients only the calls, with requests that ours made. A ratio is taken within each round."
    )
    if absent := [name for name in RIVALS if name not in others]:
        bench.notes.append(f"Not measured: {', '.join(absent)} (make setup-peers; --other-dialogues).")
    bench.deliver(out)


def _compare(
    bench: Bench, url: str, dialogues: int, other_dialogues: int, runs: int, others: Sequence[str], calls: Path
) -> None:
    """Figures of all clients answered at once, and the ratios of ours to each."""
    at_once: dict[str, list[Spent]] = {name: [] for name in ("ours", *others)}
    for run in range(1, runs + 1):
        bench.say(f"answered at once, {run} of {runs}")
        at_once["ours"].append(ours(url, dialogues, IN_FLIGHT_AT_ONCE))
        for name in others:
            repeat = (dialogues if name == "bare loop" else other_dialogues) // DIFFERENT
            at_once[name].append(rival(name, url, calls, IN_FLIGHT_AT_ONCE, repeat))
    rates_of = {name: [s.calls / s.seconds for s in spent] for name, spent in at_once.items()}
    cpu_of = {name: [1000 * s.cpu / s.calls for s in spent] for name, spent in at_once.items()}
    for name in at_once:
        for what, figures in (("calls/s", rates_of), ("CPU, ms a call", cpu_of)):
            peers = {other: values for other, values in figures.items() if other != "ours"}
            bench.add(f"{name}: {what}", figures[name], peers=peers if name == "ours" else None)
    for name in list(at_once)[1:]:
        pairs = list(zip(at_once["ours"], at_once[name], strict=True))
        rates = [(a.calls / a.seconds) / (b.calls / b.seconds) for a, b in pairs]
        bench.add(f"calls/s, ours ÷ {name}", rates, at_least=FASTER.get(name))
        cpu = [(a.cpu / a.calls) / (b.cpu / b.calls) for a, b in pairs]
        bench.add(f"CPU a call, ours ÷ {name}", cpu, at_most=CPU if name == "bare loop" else None)


def _under_way(bench: Bench, many: int) -> None:
    """Calls a second and of CPU with few and with many dialogues under way on one event loop."""
    with endpoint(SLOW) as url:
        spent = {}
        for width in (FEW, many):
            bench.say(f"{width:,} dialogues under way")
            spent[width] = ours(url, many, width, **SHORT)
            bench.add(f"{width:,} of {many:,} dialogues under way: calls/s", spent[width].calls / spent[width].seconds)
            bench.add(f"{width:,} under way: CPU, ms a call", 1000 * spent[width].cpu / spent[width].calls)
    few, lots = (one.cpu / one.calls for one in spent.values())
    bench.add(f"CPU a call, {many:,} ÷ {FEW} under way (answers after {SLOW:g} s)", lots / few, at_most=1.1)


def _late(bench: Bench, url: str, dialogues: int, other_dialogues: int, runs: int, others: Sequence[str], calls: Path) -> None:
    """Figures with answers after 200 ms: time ÷ ideal of ours, fixed and adapting, and of the others."""
    least = ideal(dialogues, LATENCY, IN_FLIGHT)
    ratios: dict[str, list[float]] = defaultdict(list)
    for run in range(1, runs + 1):
        bench.say(f"answered after 200 ms, {run} of {runs}")
        ratios[f"ours, {IN_FLIGHT} in flight"].append(ours(url, dialogues, IN_FLIGHT).seconds / least)
        ratios["ours, adapting"].append(ours(url, dialogues, None).seconds / least)
        ratios["bare loop"].append(rival("bare loop", url, calls, IN_FLIGHT, dialogues // DIFFERENT).seconds / least)
    for name in others[1:]:  # once: they take long
        bench.say(f"answered after 200 ms: {name}")
        took = rival(name, url, calls, IN_FLIGHT, other_dialogues // DIFFERENT).seconds
        ratios[name].append(took / ideal(other_dialogues, LATENCY, IN_FLIGHT))
    for name, values in ratios.items():
        bench.add(f"200 ms, {name}: time ÷ ideal", values)
    both = zip(ratios[f"ours, {IN_FLIGHT} in flight"], ratios["bare loop"], strict=True)
    target = LATE if dialogues >= FEWEST else None
    bench.add("200 ms: time, ours ÷ bare loop", [a / b for a, b in both], at_most=target)
    bench.notes.append(
        f"Ideal, also of the adapting run: calls × latency ÷ {IN_FLIGHT}, or critical path × waves if more: {least:.2f} s."
    )
