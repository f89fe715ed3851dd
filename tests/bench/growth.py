"""Ever larger runs against the 200 ms endpoint, each in a process of its own: what a dialogue costs must not grow."""

import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from core.files import write_jsonl
from tests.bench.endpoint_process import endpoint
from tests.bench.figures import OUT, Bench, OutOption, growth
from tests.bench.one_run import EXCHANGES, apart, config_of, measured, spend, varied

LATENCY = 0.2
WORDS = 110  # of a reply: ten make a dialogue of about 1,300 tokens
MEMORY, RESUME = 600, 20  # MB; seconds for 10,000 dialogues
PAGE = 40  # MB of a report's page: what is more lies beside it


def merging(folder: Path, url: str, parts: int, size: int, concurrency: int, exchanges: int) -> dict[str, float]:
    """`esc-eval merge` of so many shards of one run, `size` dialogues each on average, and its report: name → figure."""
    write_jsonl(folder / "cards.jsonl", varied(size * parts))
    shards = [folder / f"shard-{number}" for number in range(1, parts + 1)]
    settings = {"endpoints": {"embedded": url}, "concurrency": min(concurrency, size), "exchanges": exchanges}
    for number, out in enumerate(shards, start=1):
        spend(config_of(folder, shard=f"{number}/{parts}", out=str(out), **settings))
    merged = folder / "merged"
    seconds, cpu, peak = measured(sys.executable, "-m", "evalsuite.cli", "merge", *shards, "--out", merged)
    page = {"page": merged / "report.html", "report.json": merged / "report.json"}
    sizes = {f"{name}, MB": path.stat().st_size / 1e6 for name, path in page.items()}
    beside = [path.stat().st_size / 1e6 for path in (merged / "report_transcripts").glob("*")]
    took = {"s": seconds, "CPU, s": cpu, "peak memory, MB": peak}
    return took | sizes | {"files beside the page": len(beside), "files beside the page, MB": sum(beside)}


def slopes(peaks: dict[int, float]) -> dict[int, float]:
    """Memory that each further dialogue takes, from one size to the next: what the process needs anyway drops out."""
    sizes = sorted(peaks)
    return {larger: (peaks[larger] - peaks[smaller]) / (larger - smaller) for smaller, larger in pairwise(sizes)}


def main(
    sizes: Annotated[list[int] | None, typer.Argument(help="Dialogues of each run, rising. Default: 100 1000 10000.")] = None,
    concurrency: Annotated[int, typer.Option(help="Calls in flight; at most the smallest size, for full waves.")] = 100,
    exchanges: Annotated[int, typer.Option(help="Exchanges a dialogue: 1 makes three calls of it, 5 eleven.")] = EXCHANGES,
    parts: Annotated[int, typer.Option(help="Shards that are merged. 0: none.")] = 100,
    part: Annotated[int, typer.Option(help="Dialogues a shard.")] = 10,
    out: OutOption = OUT,
) -> None:
    """(d) Growth: time and memory a dialogue at 100, 1,000 and 10,000 dialogues, and the resume of the largest."""
    sizes = sizes or [100, 1_000, 10_000]
    options: dict[str, Any] = {"sizes": sizes, "concurrency": concurrency, "latency": LATENCY, "exchanges": exchanges}
    bench = Bench("growth", "(d) Growth: runs of more and more dialogues", **options)
    seconds: dict[int, float] = {}
    cpu: dict[int, float] = {}
    peaks: dict[int, float] = {}
    with endpoint(LATENCY, WORDS) as url, tempfile.TemporaryDirectory() as name:
        for size in sizes:
            folder = Path(name) / str(size)
            write_jsonl(folder / "cards.jsonl", varied(size))
            bench.say(f"{size} dialogues")
            _, spent = apart(folder, url, concurrency, exchanges=exchanges)
            assert spent.dialogues == size
            seconds[size], cpu[size], peaks[size] = spent.seconds / size, spent.cpu / size, spent.peak
        largest = max(sizes)
        bench.say(f"{largest} dialogues again")
        again, resumed = apart(Path(name) / str(largest), url, concurrency, exchanges=exchanges)
        assert resumed.calls == spent.calls
        if parts:
            bench.say(f"{parts} shards")
            for figure, value in merging(Path(name), url, parts, part, concurrency, exchanges).items():
                most = MEMORY if "memory" in figure else PAGE if figure.startswith("page") else None
                bench.add(f"merge of {parts} shards of {part:,} dialogues, with its report: {figure}", value, at_most=most)
    for size in sizes:
        bench.add(f"{size:,}: time a dialogue, ms", 1000 * seconds[size])
        bench.add(f"{size:,}: CPU a dialogue, ms", 1000 * cpu[size])
        bench.add(f"{size:,}: peak memory, MB", peaks[size], at_most=MEMORY)
    if len(sizes) > 1:
        bench.add(f"time a dialogue, {largest:,} ÷ {min(sizes):,}", growth(seconds), at_most=1.1)
    for size, slope in slopes(peaks).items():
        bench.add(f"up to {size:,}: memory of each further dialogue, KB", 1000 * slope)
    if len(sizes) > 2:
        bench.add("memory of each further dialogue, last step ÷ first", growth(slopes(peaks)), at_most=1.1)
    bench.add(f"{largest:,}: resume of the finished run, s", again, at_most=RESUME if largest >= 10_000 else None)
    bench.add(f"{largest:,}: peak memory of the resume, MB", resumed.peak, at_most=MEMORY)
    bench.notes.append("The resume counts the start of its process; the report is not part of either (see report).")
    bench.deliver(out)
