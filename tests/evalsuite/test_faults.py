"""Runs against an endpoint that fails, and through kills, full disks and damaged files: nothing is lost, destroyed or repeated.

The mechanisms are tested where they live (tests/serve/test_client.py); here is what they add up to for a whole run.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.errors import UserError
from core.files import locked, write_json, write_jsonl, write_text
from data_prep.cards import bundled_cards, load_cards
from evalsuite.runs.folder import open_run
from serve.batch import Batch
from serve.client import ChatClient
from serve.guard import GRACE
from serve.store import CallStore
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import FAULTS, Answer, Endpoint, Faulty, echo
from tests.processes import started
from tests.serve.test_client import question, spec
from tests.serve.test_limits import Time

pytestmark = pytest.mark.slow

MODELS = ("embedded",)


def config(path: Path, dialogues: int, **changes: Any) -> None:
    """A run of so many dialogues in English, every one on a card of its own, scored by the joint method."""
    cards = load_cards(bundled_cards("en"))
    made = [
        cards[n % len(cards)].model_copy(update={"id": f"card-{n}", "problem": f"{cards[n % len(cards)].problem} ({n})"})
        for n in range(dialogues)
    ]
    write_jsonl(path / "cards.jsonl", made)
    settings = {"gold": None, "languages": ["en"], "limit": None, "cards": [str(path / "cards.jsonl")], "patience": 0}
    settings |= changes
    (path / "c.yaml").write_text(yaml.safe_dump(demo_config(**settings)))


def run_at(url: str, out: str = "run") -> tuple[str, ...]:
    return "run", "--config", "c.yaml", "--set", f"endpoints.embedded={url}", "--out", out


def outputs(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder that a second run would make in the same way: no times, no logs, no store, no versions (a
    commit in between changes them)."""
    timed = {"timing.json", "versions.json", "report.html", "report.json", "report.md", "dialogue-costs.csv"}
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "logs")
    kept = (path for path in files if path.name not in timed and not path.name.startswith((".", "calls.sqlite")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def one_line(result: tuple[int, str], code: int, *parts: str) -> None:
    found, err = result
    assert found == code and err.startswith("error: ") and err.count("\n") == 1, err
    for part in parts:
        assert part in err, err


@pytest.mark.parametrize("dialogues", [24, pytest.param(500, marks=pytest.mark.full)])
@pytest.mark.usefixtures("no_report")
def test_a_tenth_of_all_requests_fails_and_nothing_is_lost_or_asked_twice(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialogues: int
) -> None:
    config(tmp_path, dialogues)
    with Endpoint(models=MODELS) as sound:
        assert esc_eval(*run_at(sound.url, "undisturbed")) == (0, "")
    monkeypatch.setattr("evalsuite.runner.engine.ChatClient", partial(ChatClient, timeout_s=5, backoff_s=0.1))
    faults = Faulty(0.1)
    with Endpoint(faults, models=MODELS) as endpoint:
        assert esc_eval(*run_at(endpoint.url)) == (0, "")
    assert set(faults.given) == set(FAULTS)
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")
    assert len(endpoint.answered) == 11 * dialogues and set(endpoint.answered.values()) == {1}


@pytest.mark.usefixtures("no_report")
def test_an_endpoint_that_dies_is_given_up_and_the_run_can_be_resumed(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalsuite.runner.engine.ChatClient", partial(ChatClient, attempts=3, backoff_s=0.01))
    config(tmp_path, 40, concurrency=4)
    with Endpoint(models=MODELS) as sound:
        assert esc_eval(*run_at(sound.url, "undisturbed"))[0] == 0
    alive = 25
    with Endpoint(lambda body, count: echo(body, count) if count <= alive else Answer(status=503), models=MODELS) as endpoint:
        one_line(esc_eval(*run_at(endpoint.url)), 1, "40 dialogues", "same command again")
        # Four in flight, each three times; the fifth lost in a row is the last that is asked for.
        assert len(endpoint.requests) <= alive + (4 + 4) * 3
        kept = len(endpoint.answered)
    with Endpoint(models=MODELS) as back:
        assert esc_eval(*run_at(back.url)) == (0, "")
        assert len(back.requests) == 40 * 11 - kept
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")


async def test_a_call_ends_within_its_stated_limit(tmp_path: Path) -> None:
    """A hundred attempts are allowed; the time is not there for them."""
    store, clock = CallStore(tmp_path / "calls.sqlite"), Time()
    with Endpoint(lambda body, count: Answer(status=429, headers={"Retry-After": "600"})) as endpoint:
        async with ChatClient(store, attempts=100, give_up_s=30, clock=clock, sleep=clock.sleep) as client:
            with pytest.raises(Exception, match="gave up after 2 attempts.*429"):
                await client.ask(spec(endpoint.url), question())
    store.close()


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.full)])
def test_killed_at_random_moments_and_run_again_equals_undisturbed(tmp_path: Path, kills: int) -> None:
    config(tmp_path, 12, concurrency=4, gold={"dialogues": "synthetic_test", "limit": 4})
    calls = 12 * 11 + 4

    def start(out: str) -> ForkServerProcess:
        return started(*run_at(endpoint.url, out), folder=tmp_path, log=log)

    def ended(process: ForkServerProcess) -> int | None:
        process.join(240)
        return process.exitcode

    log, draw = tmp_path / "log", random.Random(kills)
    with Endpoint(lambda body, count: Answer(echo(body, count).text, delay=0.02), models=MODELS) as endpoint:
        assert ended(start("undisturbed")) == 0, log.with_suffix(".err").read_text()
        assert len(endpoint.requests) == calls
        endpoint.answered.clear()
        before = len(endpoint.requests)
        landed = 0
        for kill in range(kills):
            process = start("run")
            # Every other kill comes in the middle of the calls that are left, the others at any moment, writing included.
            left = calls - len(endpoint.answered)
            wanted = len(endpoint.requests) + draw.randint(1, max(left // 2, 1)) if kill % 2 == 0 and left > 8 else None
            deadline = time.monotonic() + (60 if wanted else draw.uniform(0.5, 4))
            while process.is_alive() and time.monotonic() < deadline and not (wanted and len(endpoint.requests) >= wanted):
                time.sleep(0.005)
            process.kill()
            landed += ended(process) == -signal.SIGKILL
        assert landed > kills // 2, "most runs ended before they could be killed"
        assert ended(start("run")) == 0, log.with_suffix(".err").read_text()
        assert len(endpoint.requests) - before <= calls + kills * 4, "only what was in flight is asked again"
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")
    assert not list((tmp_path / "run").rglob(".*.tmp"))


SERVER = """
import http.server, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("server-" + "pid", os.getpid(), flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404); self.end_headers()
    def do_POST(self):
        print("as" + "ked", flush=True); time.sleep(600)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DRIVER = """
import sys
from evalsuite import cli
from serve import plan
from serve.command import PORT, ServerPlan
server = sys.argv.pop(1)
argv = [sys.executable, "-c", server, PORT]
plan.plan_servers = lambda specs, logs, **more: [ServerPlan("embedded", "x", ["embedded"], argv, {}, logs / "server.log")]
cli.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_no_server_and_no_log_behind(number: int, code: int, tmp_path: Path) -> None:
    """The server hangs and ignores SIGTERM: the worst case."""
    config(tmp_path, 4)
    log = tmp_path / "run" / "logs" / "server.log"
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, SERVER, "run", "--config", "c.yaml", "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        while not (log.exists() and "\nasked" in log.read_text()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        server = int(next(line for line in log.read_text().splitlines() if line.startswith("server-pid")).split()[1])
        process.send_signal(number)
        # Five seconds: the grace of three, and two for SIGKILL to be seen to work (below). The rest is for a busy machine.
        _, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == code and err == b"interrupted; run the same command again to resume\n"
    assert not list((tmp_path / "run").rglob("*.sqlite-wal")), "each file is closed"
    assert GRACE + 2 <= 5
    assert not Path(f"/proc/{server}").exists() or Path(f"/proc/{server}/stat").read_text().split()[2] == "Z"


@pytest.mark.usefixtures("no_report")
def test_a_full_disk_is_said_and_nothing_that_was_answered_is_lost(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(tmp_path, 12, concurrency=4)

    class Small(CallStore):
        """A store on a disk with room for a few pages: SQLite's own limit, so its own way of failing."""

        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self._db.execute("PRAGMA max_page_count=20")

    with Endpoint(models=MODELS) as endpoint:
        with monkeypatch.context() as patch:
            patch.setattr("evalsuite.runs.folder.CallStore", Small)
            one_line(esc_eval(*run_at(endpoint.url)), 2, "calls.sqlite", "disk is full", "run the same command again")
        asked = len(endpoint.requests)
        assert 8 < asked < 12 * 11 and not Path("run/dialogues.jsonl").exists()
        assert esc_eval(*run_at(endpoint.url)) == (0, "")
        assert len(endpoint.requests) <= 12 * 11 + 2 * 4, "only what was in flight is asked again"


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    cards = load_cards(bundled_cards("en"))
    writes: dict[str, Any] = {
        "a.jsonl": lambda path: write_jsonl(path, cards),
        "b.json": lambda path: write_json(path, ["x" * 10_000]),
        "c.txt": lambda path: write_text(path, "x" * 10_000),
    }
    for name, write in writes.items():
        path = tmp_path / name
        path.write_text("before")
        (tmp_path / f".{name}.{os.getpid()}.tmp").symlink_to("/dev/full")  # the kernel's own ENOSPC
        with pytest.raises(UserError, match=f"cannot write .*{name}: No space left on device"):
            write(path)
        assert path.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(writes)


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder that the test may read but not write, also where tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="esc-eval-"))
    root = os.geteuid() == 0
    folder.chmod(0o555)
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_folder_is_one_clear_error(nobody: Path) -> None:
    for use in (open_run(nobody), open_run(nobody / "new"), Batch(spec(), nobody / "calls.sqlite", None)):  # type: ignore[arg-type]
        with pytest.raises(UserError, match="cannot be used: Permission denied"), use:
            pass
    with pytest.raises(UserError, match="cannot write .*Permission denied"):
        write_text(nobody / "x", "x")
    with pytest.raises(UserError, match=r"call store cannot be used: .*unable to open database file$"):
        CallStore(nobody / "calls.sqlite")


@pytest.mark.usefixtures("no_report")
def test_damaged_files_of_a_run_are_named_and_kept(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 12)
    run = tmp_path / "run"
    with Endpoint(models=MODELS) as endpoint:
        command = run_at(endpoint.url)
        assert esc_eval(*command)[0] == 0
        whole = outputs(run)
        for name in ("config.json", "usage.json"):
            sound = (run / name).read_bytes()
            for damaged in (sound[: len(sound) // 2], b"", b"[]", b"\xff\x00"):
                (run / name).write_bytes(damaged)
                one_line(esc_eval(*command), 2, f"run/{name}")
                assert (run / name).read_bytes() == damaged
            (run / name).write_bytes(sound)
        store = run / "calls.sqlite"
        pages = bytearray(store.read_bytes())
        pages[4096:] = random.Random(0).randbytes(len(pages) - 4096)
        asked = len(endpoint.requests)
        for damaged in (bytes(pages), b"no database at all" * 300):
            store.write_bytes(damaged)
            one_line(esc_eval(*command), 2, "run/calls.sqlite", "move it aside")
            assert outputs(run) == whole and store.read_bytes() == damaged and len(endpoint.requests) == asked
        store.rename(tmp_path / "aside.sqlite")
        assert esc_eval(*command) == (0, "") and outputs(run) == whole


def test_a_second_process_is_refused_and_changes_nothing(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 2)
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run" / ".lock", "x"):
        one_line(esc_eval(*run_at("http://127.0.0.1:9/v1")), 2, "run folder run is in use by another process")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    store = tmp_path / "batch" / "calls.sqlite"
    with (
        Batch(spec(), store, None),  # type: ignore[arg-type]
        pytest.raises(UserError, match="call store .* is in use by another process"),
        Batch(spec(), store, None),  # type: ignore[arg-type]
    ):
        pass
    with Batch(spec(), store, None):  # type: ignore[arg-type]
        pass
