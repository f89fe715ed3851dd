"""Data preparation at the size of ESC-Eval's own evaluation: the ranker's training set from 8,512 scored dialogues."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from core.files import write_jsonl
from core.records import HumanScore
from tests.bench.figures import OUT, Bench, OutOption, RunsOption
from tests.bench.one_run import peak_memory
from tests.generated_report import RUBRIC, make_content


def measured(*arguments: str) -> tuple[float, float]:
    """`python -m data_prep` with these arguments: (seconds, peak memory in MB)."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "data_prep", *arguments], stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, peak_memory(process.pid))
        time.sleep(0.05)
    assert process.returncode == 0, " ".join(arguments)
    return time.perf_counter() - started, peak


def main(
    cards: Annotated[int, typer.Option(help="Role cards per language; every one is played with 14 supporters.")] = 304,
    runs: RunsOption = 1,
    out: OutOption = OUT,
) -> None:
    """(e) Data preparation: the ranker's set from 8,512 dialogues with human scores on seven dimensions."""
    content = make_content(cards=cards, supporters={f"model-{n:02d}": n / 14 for n in range(14)}, words=190)
    scores = [
        HumanScore(
            dialogue_id=j.dialogue_id,
            language=j.language,
            annotator="a",
            rubric=RUBRIC.name,
            dimension=j.dimension,
            value=j.value,
        )
        for j in content.tally.judgements
        if j.value is not None
    ]
    bench = Bench("data", "(e) Data preparation", dialogues=len(content.tally.dialogues), scores=len(scores), runs=runs)
    found = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_jsonl(folder / "dialogues.jsonl", content.tally.dialogues)
        write_jsonl(folder / "scores.jsonl", scores)
        given = (
            "--dialogues",
            str(folder / "dialogues.jsonl"),
            "--gold",
            str(folder / "scores.jsonl"),
            "--rubric",
            RUBRIC.name,
        )
        for run in range(runs):
            bench.say("rank-sft")
            found.append(measured("rank-sft", *given, "--method", "joint", "--out", str(folder / f"set-{run}")))
    bench.add("rank-sft: s", [seconds for seconds, _ in found])
    bench.add("rank-sft: peak memory, MB", [peak for _, peak in found])
    bench.deliver(out)
