"""One run of ours as a user has it: all of `esc-eval run` but the report (replay, check, dialogues and scores in one stream,
call store, progress display, records written).

    python -m tests.bench.one_run FOLDER URL CONCURRENCY SETTINGS

runs FOLDER/cards.jsonl into FOLDER/run against a server and prints what it took as JSON. CONCURRENCY 0: as it finds.
SETTINGS: more of the config, as JSON.
"""

import io
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from core.files import write_jsonl
from core.records import Language, RoleCard
from data_prep.cards import bundled_cards, load_cards
from evalsuite import cli
from evalsuite.papers.esc_eval import EscEvalConfig
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runner.work import Outcome
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import resolve_config
from evalsuite.runs.folder import open_run

EXCHANGES = 5
TURNS, DIMENSIONS = 2 * EXCHANGES, 7
CALLS = TURNS + DIMENSIONS  # of a dialogue whose judge is asked one dimension at a time
PATH = TURNS + 2  # one call after the other: its turns, the first dimension, the other six together
assert cli, "imported, as a user's process does, for the memory that it takes"


@dataclass(frozen=True)
class Spent:
    """Seconds by the clock and of this process's CPU, for so many dialogues and finished calls; peak memory in MB (10^6)."""

    seconds: float
    cpu: float
    dialogues: int
    calls: int
    peak: float


def varied(count: int, language: Language = "en", first: int = 0) -> list[RoleCard]:
    """Role cards that differ from their first line on, so that no server's prefix cache mistakes one for another: the bundled
    ones under ever new ages. `first` leaves so many out, for a run that shares none with another."""
    bundled = load_cards(bundled_cards(language))
    made = (
        card.model_copy(update={"id": f"{card.id}-{n}", "age": f"{18 + n % 72} years and {n} days"})
        for n in itertools.count()
        for card in bundled
    )
    return list(itertools.islice(made, first, first + count))


def run_config(folder: Path, cards: Sequence[RoleCard], **settings: Any) -> EvalConfig:
    """A run into FOLDER/run over these cards, which it writes into FOLDER; the embedded spec in all roles, unless said."""
    write_jsonl(folder / "cards.jsonl", cards)
    return config_of(folder, **settings)


def config_of(folder: Path, **settings: Any) -> EvalConfig:
    given: dict[str, Any] = {"seeker": "embedded", "supporters": ["embedded"], "judge": "embedded", "languages": ["en"]}
    given |= {"cards": [str(folder / "cards.jsonl")], "exchanges": EXCHANGES, "out": str(folder / "run")}
    return EscEvalConfig.model_validate(given | settings)


def spend(config: EvalConfig, score: bool = True) -> tuple[Outcome, Spent]:
    """Hold (and score) every dialogue of a run; nothing may be lost."""
    console = Console(file=io.StringIO(), force_terminal=True)
    started, cpu = time.perf_counter(), time.process_time()
    resolved = resolve_config(config)
    with open_run(resolved.out) as run, Runner(run, resolved, console) as runner:
        run.claim_shard(resolved.shard)
        outcome = pipeline.simulate(runner, score=score)
        spent = Spent(
            time.perf_counter() - started, time.process_time() - cpu, len(outcome.dialogues), len(run.store), peak_memory()
        )
    assert not outcome.failures, outcome.failures[0].reason
    return outcome, spent


def peak_memory(process: int | str = "self") -> float:
    """The most memory that a process has held so far, MB; 0 when it is gone. (What `getrusage` says of a child may be what its
    parent held.)"""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.M)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def apart(folder: Path, url: str, concurrency: int | None, **further: Any) -> tuple[float, Spent]:
    """This module as a process of its own: (seconds with its start, what it took). It may find the run finished already."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "tests.bench.one_run", str(folder), url, str(concurrency or 0)]
    done = subprocess.run([*command, orjson.dumps(further).decode()], check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - started, Spent(**orjson.loads(done.stdout))


def measured(*command: object) -> tuple[float, float, float]:
    """Run a command to its end: (seconds, seconds of CPU, peak memory in MB)."""
    started, before = time.perf_counter(), os.times()
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, peak_memory(process.pid))
        time.sleep(0.05)
    assert process.returncode == 0, command
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, cpu, peak


if __name__ == "__main__":
    place, url, concurrency, further = sys.argv[1:]
    settings: dict[str, Any] = {"endpoints": {"embedded": url}, "concurrency": int(concurrency) or None}
    _, took = spend(config_of(Path(place), **settings | orjson.loads(further)))
    print(orjson.dumps(asdict(took)).decode())
