"""`esc-eval doctor`: what this machine has and lacks."""

import typer

from core.errors import say
from serve.doctor import findings


def doctor() -> None:
    """Show what this machine has and lacks for serving and training, one line each, with what to do about it.

    Checks GPU, driver, torch, vLLM, compiler and headers, disk space, ports, Slurm and Ray, keys. `--` marks what only some
    uses need. Exit code 1 if something is missing that an installed package needs.
    """
    missing = 0
    for finding in findings():
        say(finding)
        missing += finding.state == "missing"
    if missing:
        say(f"{missing} missing")
        raise typer.Exit(1)
