"""`python -m tests.bench PART [OPTIONS]`: one benchmark, or `all` of them one after the other (what `make bench` runs)."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from core.errors import run_cli
from tests.bench import (
    client,
    coverage,
    false_alarms,
    growth,
    known_truth,
    labels,
    people,
    report,
    reward_curve,
    role_sft,
    scoring,
    simulation,
    training,
    truth_looks,
)
from tests.bench.figures import OUT, OutOption

app = typer.Typer(
    no_args_is_help=True, help="Benchmarks: every figure beside its target, kept as JSON and in one table (bench.md)."
)
PARTS: dict[str, Callable[..., None]] = {
    "client": client.main,
    "simulation": simulation.main,
    "scoring": scoring.main,
    "growth": growth.main,
    "role-sft": role_sft.main,
    "report": report.main,
    "training": training.main,
    "people": people.main,
    "known-truth": known_truth.main,
}
for name, part in PARTS.items():
    app.command(name)(part)
# Not among PARTS: they need corpora that a user brings, or have no target.
app.command("false-alarms")(false_alarms.main)
app.command("coverage")(coverage.main)
app.command("labels")(labels.main)
app.command("stopping")(truth_looks.main)
app.command("reward-curve")(reward_curve.main)  # nor this: it has no target, and draws a picture of the documents


# Sizes with which all parts together should end within an hour on two cores without bf16 instructions: an estimate from what
# single parts took there. With the defaults `simulation` and `scoring` alone would take about that long.
QUICK: dict[str, str] = {
    "client": "--runs 2 --dialogues 200 --other-dialogues 50 --many 2000",
    "simulation": "--dialogues 32 --reference-dialogues 2 --in-flight 32",
    "scoring": "--dialogues 6 --no-uncached",
    "growth": "--parts 20 100 1000 3000",
    "role-sft": "1400 7000",
    "training": "--steps 6",
    "known-truth": "--samples 40",
}


@app.command("all")
def everything(
    only: Annotated[list[str] | None, typer.Option(help="Only these parts; repeat.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes, for a machine without bf16 instructions.")] = False,
    out: OutOption = OUT,
) -> None:
    """Every part with its defaults, each in a process of its own; about an hour on two cores with bf16 instructions."""
    failed = []
    for name in only or PARTS:
        started = time.monotonic()
        sizes = QUICK.get(name, "").split() if quick else []
        command = [sys.executable, "-m", "tests.bench", name, "--out", str(out), *sizes]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    print(f"all figures: {out / 'bench.md'}")
    if failed:
        raise typer.Exit(code=1)


if __name__ == "__main__":
    run_cli(app)
