"""A reader that goes away costs a program nothing: it does its work to the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_PROGRAM = """
import sys
from rich.console import Console
from core.errors import run_cli

def main():
    for number in range(3_000):
        Console().print(f"line {number}")
    print("an error line", file=sys.stderr)
    open(sys.argv[1], "w").write("whole")

run_cli(main)
"""


def test_a_closed_pipe_is_no_error_and_costs_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline() == b"line 0\n"
        run.stdout.close()
        assert run.stderr.read() == b"an error line\n" and run.wait() == 0
    assert out.read_text() == "whole"


def test_a_line_is_there_at_once_where_output_is_a_pipe_or_a_file() -> None:
    program = "import time; from core.errors import run_cli, say; run_cli(lambda: (say('http://here'), time.sleep(900)))"
    quiet = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=quiet) as run:
        assert run.stdout is not None and run.stdout.readline() == b"http://here\n" and run.poll() is None
        run.kill()
