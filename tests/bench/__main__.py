"""`python -m tests.bench [PART] [OPTIONS]`: one benchmark, or (`all`, what `make bench` runs) one after the other."""

from __future__ import annotations

import typer

from tests.bench import client, growth

app = typer.Typer(no_args_is_help=True, help="Benchmarks: every figure beside its target, kept in runs/bench/ (bench.md: all).")
PARTS = {"client": client.main, "growth": growth.main}
for name, part in PARTS.items():
    app.command(name)(part)

if __name__ == "__main__":
    app()
