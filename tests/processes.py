"""`esc-eval` in processes of its own, to be killed or interrupted. They are forked from one that has imported everything: most
of what a short command takes. How the program itself starts is tested elsewhere (test_programs.py, test_cli.py)."""

import os
import resource
import sys
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
# The command, and what its verbs import only when they run.
PRELOADED = ["tests.processes", "evalsuite.cli", "evalsuite.runner.engine", "evalsuite.people.server", "uvicorn"]


@cache
def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with patch.dict(os.environ, PYTHONPATH=str(ROOT)):  # it is not told where this process finds modules
        forkserver.ensure_running()
    return context


def _become(arguments: list[str], folder: Path, log: Path, environment: dict[str, str], files: tuple[int, int] | None) -> None:
    from evalsuite import cli

    os.chdir(folder)
    for number, path in ((1, log), (2, log.with_suffix(".err"))):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    sys.argv = ["esc-eval", *arguments]
    cli.main()


def started(*arguments: object, folder: Path, log: Path, files: tuple[int, int] | None = None) -> ForkServerProcess:
    """The command, started in this folder with this process's environment; its exit code is `exitcode` after `join`.

    What it prints goes to `log`, and its errors beside that with the suffix .err. `files` is how many it may have open (soft
    and hard limit).
    """
    given = ([*map(str, arguments)], folder, log, dict(os.environ), files)
    process = _context().Process(target=_become, args=given, daemon=True)
    process.start()
    return process
