"""doctor: what this machine has and lacks."""

from __future__ import annotations

import typer

from core.errors import say
from serve.doctor import findings


def doctor() -> None:
    """What this machine has and lacks for serving and training, a line each with what mends it.

    GPU, driver, torch, vLLM, compiler and headers, room on disk, ports, Slurm and Ray, keys. `--`: only some uses need it. Exit
    code 1 when something is missing that what is installed here needs.
    """
    missing = 0
    for finding in findings():
        say(finding)
        missing += finding.state == "missing"
    if missing:
        say(f"{missing} missing")
        raise typer.Exit(1)
