"""A rented machine that is taken away in the middle: the `run` of a SkyPilot task, killed with all it started, goes on at
another machine with what the bucket has. The bucket is a folder; `esc-eval`, bash, cp, find and SQLite are real."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.files import CONFIGS
from core.settings import load_yaml
from tests.endpoint import Answer, Endpoint, echo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ROOT = CONFIGS.parent
CARDS, EXCHANGES = 6, 2
CARD = {"source": "test", "card_method": "written"}
# Trains in ten steps, each a checkpoint, as a training leaves them; says from which it went on. The first stops before its end.
TRAINING = """
import json, os, pathlib, sys, time
out = pathlib.Path("runs/esc-role")
steps = sorted(int(path.name.split("-")[1]) for path in out.glob("checkpoint-*") if len((path / "state").read_text()) == 1000)
print("resuming from", steps[-1] if steps else 0, flush=True)
for step in range(steps[-1] + 1 if steps else 1, 11):
    time.sleep(600 if step == 9 and not steps else 0.1)
    place = out / f"checkpoint-{step}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "state").write_text("x" * 1000)
(out / ".lock").write_text("")
(out / "adapter-1").mkdir()
(out / "adapter-1" / "weights").write_text("trained")
(out / "metrics.json").write_text("{}")
(out / "adapter").symlink_to("adapter-1")
"""


class Machine:
    """A node of its own disk, on which SkyPilot runs a task; the bucket outlives it."""

    def __init__(self, folder: Path, name: str, bucket: Path, **environment: str) -> None:
        self.folder, self.bucket, self.log = folder / name, bucket, folder / f"{name}.log"
        (bin := self.folder / ".venv" / "bin").mkdir(parents=True)
        (self.folder / "configs").symlink_to(CONFIGS)
        (self.folder / "inputs" / "runs").mkdir(parents=True)
        (self.folder / "runs").mkdir()
        for language, count in (("en", CARDS), ("zh", 1)):
            cards = [{"id": f"{language}{n}", "language": language, "problem": f"Exam {n}"} for n in range(count)]
            (self.folder / "inputs" / f"card_high_{language}.json").write_text(json.dumps([CARD | card for card in cards]))
        (bin / "activate").write_text(f"export PATH={bin}:{Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}\n")
        (bin / "accelerate").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{TRAINING}'\n")
        (bin / "accelerate").chmod(0o755)
        node = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1", "KEEP_EVERY": "1"}
        self.environment = os.environ | node | environment

    def start(self, task: str) -> subprocess.Popen[bytes]:
        script = load_yaml(CONFIGS / "launch" / f"{task}.yaml", "SkyPilot task")["run"]
        script = script.replace("/results", str(self.bucket)).replace("/inputs", str(self.folder / "inputs"))
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    (tmp_path / "bucket").mkdir()
    yield lambda name, **environment: Machine(tmp_path, name, tmp_path / "bucket", **environment)


def taken_away(process: subprocess.Popen[bytes], folder: Path) -> None:
    os.killpg(process.pid, signal.SIGKILL)  # no trap runs
    process.wait()
    shutil.rmtree(folder)


def until(seen: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    while not seen():
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)


def answers_in(copy: Path) -> int:
    """Calls answered in a store; 0 while it is being copied."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{copy}?mode=ro", uri=True)) as store:
        assert store.execute("pragma integrity_check").fetchone() == ("ok",)
        return int(store.execute("select count(*) from calls").fetchone()[0])
    return 0


def test_a_run_goes_on_with_the_answers_of_its_last_copy(machines: Callable[..., Machine], tmp_path: Path) -> None:
    def slow(body: dict[str, Any], number: int) -> Answer:
        return replace(echo(body, number), delay=0.3)

    with Endpoint(slow, models=("m",)) as endpoint:
        config = tmp_path / "config.yaml"
        lines = (f"seeker: m@{endpoint.url}", f"supporters: [m@{endpoint.url}]", f"judge: m@{endpoint.url}", "languages: [en]")
        config.write_text("\n".join((*lines, f"exchanges: {EXCHANGES}", "floors: false", "concurrency: 1", "")))
        first = machines("first", CONFIG=str(config))
        process = first.start("sky_run")
        kept = tmp_path / "bucket" / "full-1" / "calls.sqlite"
        until(lambda: answers_in(kept) >= 4, process, first.log)
        taken_away(process, first.folder)
        there = answers_in(kept)
        second = machines("second", CONFIG=str(config))
        assert second.start("sky_run").wait() == 0, second.log.read_text()
    assert answers_in(kept) == len(endpoint.answered)
    assert sum(times == 1 for times in endpoint.answered.values()) >= there, "what the copy had was asked for a second time"
    done = tmp_path / "bucket" / "full-1"
    assert len((done / "dialogues.jsonl").read_text().splitlines()) == CARDS
    assert (done / "judgements.jsonl").is_file() and not list(done.glob(".*"))


def test_a_training_goes_on_from_the_last_checkpoint_that_was_copied(machines: Callable[..., Machine], tmp_path: Path) -> None:
    first, bucket = machines("first"), tmp_path / "bucket" / "esc-role"

    def whole(step: int) -> bool:
        return (state := bucket / f"checkpoint-{step}" / "state").is_file() and state.stat().st_size == 1000

    process = first.start("sky_train_role")
    until(lambda: whole(3), process, first.log)
    taken_away(process, first.folder)
    second = machines("second")
    assert second.start("sky_train_role").wait() == 0, second.log.read_text()
    step = int(second.log.read_text().split("resuming from ")[1].split()[0])
    assert 3 <= step < 10
    assert all(whole(later) for later in range(step, 11)) and not list(bucket.glob(".*"))
    assert (bucket / "adapter" / "weights").read_text() == (bucket / "adapter-1" / "weights").read_text() == "trained"
    assert not (bucket / "adapter").is_symlink(), "a bucket holds no links"


def test_a_run_that_fails_is_kept_and_stays_failed(machines: Callable[..., Machine], tmp_path: Path) -> None:
    only = machines("only")
    (only.folder / ".venv" / "bin" / "accelerate").write_text("#!/bin/sh\necho x > runs/esc-role/state\nexit 7\n")
    assert only.start("sky_train_role").wait() == 7, only.log.read_text()
    assert (tmp_path / "bucket" / "esc-role" / "state").read_text() == "x\n"
