"""A week of paid calls in a few minutes: many dialogues, a tenth of all calls failing, few open files, and kills."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.endpoint import FAULTS, Endpoint, Faulty
from tests.evalsuite.test_faults import MODELS, config, outputs, run_at
from tests.evalsuite.test_lasting_faults import FEW_FILES

EXCHANGES = 2
CALLS = 2 * EXCHANGES + 1  # of a dialogue: both sides, and the judge
FILES = 256  # as many may be open


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("dialogues", "every"),
    [pytest.param(100, 6.0, marks=pytest.mark.slow), pytest.param(10_000, 60.0, marks=pytest.mark.full)],
    ids=["100 dialogues", "10,000 dialogues"],
)
def test_faults_few_files_and_a_kill_every_so_often_lose_nothing_and_ask_nothing_twice(
    tmp_path: Path, dialogues: int, every: float
) -> None:
    """`every`: seconds from a start to its kill. What was answered, but not stored yet when the kill came, is asked again."""
    config(tmp_path, dialogues, exchanges=EXCHANGES)
    limits = ("--call-timeout", "5s", "--patience", "10m")

    def command(url: str, out: str) -> list[str]:
        verb, *rest = run_at(url, out)
        return [sys.executable, "-c", FEW_FILES, str(FILES), str(FILES), verb, *rest, *limits]

    with Endpoint(models=MODELS) as sound:
        subprocess.run(command(sound.url, "undisturbed"), cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    faults, kills, started = Faulty(0.1), 0, time.monotonic()
    with Endpoint(faults, models=MODELS) as endpoint:
        while True:
            process = subprocess.Popen(
                command(endpoint.url, "run"), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            try:
                _, err = process.communicate(timeout=every if kills < 8 else None)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                assert process.returncode == -signal.SIGKILL
                kills += 1
        assert (process.returncode, err) == (0, b"")
        twice = sum(endpoint.answered.values()) - len(endpoint.answered)
        # Shown with `pytest -s`: figures for the record.
        print(
            f"{dialogues} dialogues, {len(endpoint.answered)} calls answered, {len(endpoint.requests)} requests, "
            f"{faults.given.total()} faults, {kills} kills, {twice} answers lost in kills, at most {endpoint.most} at once, "
            f"{time.monotonic() - started:.0f} s"
        )
        assert set(faults.given) == set(FAULTS) or dialogues < 1000
        assert len(endpoint.answered) == CALLS * dialogues
        assert twice <= kills * endpoint.most and endpoint.most < FILES
    assert kills or dialogues < 1000
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")
