"""A week of paid calls in a few minutes: many dialogues, a third of all calls failing, few open files, and signals."""

import os
import signal
import sqlite3
import time
from contextlib import closing
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.endpoint import FAULTS, Endpoint, Faulty
from tests.evalsuite.test_faults import MODELS, config, outputs, run_at
from tests.processes import started

EXCHANGES = 2
CALLS = 2 * EXCHANGES + 1  # of a dialogue: both sides, and the judge
FILES = 256  # as many may be open
SIGNALS = ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143), (signal.SIGINT, 130))  # in turn, with their exit codes


def stored(folder: Path) -> set[tuple[str, str]]:
    """Each call that the store has, and what was answered."""
    with closing(sqlite3.connect(folder / "calls.sqlite")) as db:
        return set(db.execute("SELECT key, json_extract(CAST(reply AS TEXT), '$.text') FROM calls"))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("dialogues", "every"), [(100, 3.0), (10_000, 20.0)], ids=["100 dialogues", "10,000 dialogues"])
def test_faults_few_files_and_a_signal_every_so_often_lose_nothing_and_ask_nothing_twice(
    tmp_path: Path, dialogues: int, every: float
) -> None:
    """`every`: seconds from a start to its signal. What was answered, but not stored yet when it came, is asked again."""
    config(tmp_path, dialogues, exchanges=EXCHANGES)
    log = tmp_path / "log"
    limits = ("--set", "call_timeout=5s", "--set", "patience=10m")

    def start(url: str, out: str) -> ForkServerProcess:
        log.with_suffix(".err").unlink(missing_ok=True)
        return started(*run_at(url, out), *limits, folder=tmp_path, log=log, files=(FILES, FILES))

    with Endpoint(models=MODELS) as sound:
        process = start(sound.url, "undisturbed")
        process.join()
        assert process.exitcode == 0, log.with_suffix(".err").read_text()
    # A call has eight tries: of 50,000, about three meet a fault in each, and are asked when the command is typed again.
    faults, kills, again, began = Faulty(0.3), 0, 0, time.monotonic()
    with Endpoint(faults, models=MODELS) as endpoint:
        while True:
            process = start(endpoint.url, "run")
            process.join(every if kills < 15 else None)
            if process.exitcode == 1 and "are missing" in log.with_suffix(".err").read_text() and again < 5:
                again += 1
                continue
            if process.exitcode is not None:
                break
            number, code = SIGNALS[kills % len(SIGNALS)]
            assert process.pid
            os.kill(process.pid, number)
            process.join()
            assert process.exitcode == code, log.with_suffix(".err").read_text()
            kills += 1
        assert (process.exitcode, log.with_suffix(".err").read_text()) == (0, "")
        twice = sum(endpoint.answered.values()) - len(endpoint.answered)
        # Shown with `pytest -s`: figures for the record.
        print(
            f"{dialogues} dialogues, {len(endpoint.answered)} calls answered, {len(endpoint.requests)} requests, "
            f"{faults.given.total()} faults, {kills} signals, {again} times typed again, {twice} answers lost in them, "
            f"at most {endpoint.most} at once, {time.monotonic() - began:.0f} s"
        )
        assert set(faults.given) == set(FAULTS) or dialogues < 1000
        assert len(endpoint.answered) == CALLS * dialogues
        assert twice <= kills * endpoint.most and endpoint.most < FILES
    assert kills or dialogues < 1000
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")
    assert stored(tmp_path / "run") == stored(tmp_path / "undisturbed")
