"""Starting servers, and that none outlives its launcher."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from core.errors import UserError
from core.specs import load_spec
from serve.__main__ import _show, app
from serve.command import PORT, ServerPlan
from serve.launch import Servers, cache_of, free_port, told
from serve.plan import plan_servers
from tests.conftest import EscEval
from tests.endpoint import Endpoint
from tests.serve.conftest import spec

pytestmark = pytest.mark.slow

HEALTHY = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child-" + "pid", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        if self.path == "/die": import os; os._exit(3)
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def fake(tmp_path: Path, code: str, name: str = "fake", **more: Any) -> ServerPlan:
    argv = [sys.executable, "-c", code, PORT]
    return ServerPlan(name, "x", [name], argv, {}, tmp_path / f"server-{name}.log", **more)


def child_of(log: Path) -> int:
    return int(next(line for line in log.read_text().splitlines() if line.startswith("child-pid")).split()[1])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(pid: int) -> bool:
    """Whether a process ends in time (a zombie has ended)."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_servers_are_up_inside_the_block_and_gone_after_it(tmp_path: Path) -> None:
    plans = [fake(tmp_path, HEALTHY, "a", port=free_port()), fake(tmp_path, HEALTHY, "b", specs=[spec("friend")])]
    with Servers(plans, timeout=30) as servers:
        assert set(servers.endpoints) == {"a", "b", "friend"}
        assert servers.endpoints["a"] == f"http://127.0.0.1:{plans[0].port}/v1"
        assert servers.endpoints["b"] == servers.endpoints["friend"] != servers.endpoints["a"]
        assert servers.alive() and servers.poll() == {}
        assert set(servers.seconds) == {"a", "b"}
        children = [child_of(p.log) for p in plans]
    assert all(gone(child) for child in children)


def test_an_exception_stops_them_and_a_late_death_is_noticed(tmp_path: Path) -> None:
    server = fake(tmp_path, HEALTHY)
    with pytest.raises(RuntimeError, match="my own"), Servers([server], timeout=30) as servers:
        child = child_of(server.log)
        url = servers.endpoints["fake"].removesuffix("/v1") + "/die"
        with pytest.raises(OSError):
            urllib.request.urlopen(url).read()
            urllib.request.urlopen(url, timeout=5).read()
        end = time.monotonic() + 30
        while servers.alive() and time.monotonic() < end:
            time.sleep(0.05)
        assert "server fake ended (exit code 3)" in servers.poll()["fake"]
        assert gone(child), "the guard takes what the server left behind"
        raise RuntimeError("my own")


TELLING = (
    """
import json, os, pathlib
pathlib.Path({path!r}).write_text(json.dumps(dict(os.environ)))
"""
    + HEALTHY
)

SECRETS = {
    "OPENAI_API_KEY": "x",
    "WANDB_API_KEY": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_SESSION_TOKEN": "x",
    "GITHUBTOKEN": "x",
    "MYSQL_PWD": "x",
    "GOOGLE_APPLICATION_CREDENTIALS": "/x.json",
    "SSH_AUTH_SOCK": "/x.sock",
    "NOTHING_TO_SEE": "sk-abcdef",
    "DATABASE_URL": "postgres://me:secret@host/db",
    "PLANTED": "a spec's own name for its key",
}
KEPT = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "VLLM_LOGGING_LEVEL": "INFO", "KEYMAP": "de"}
TOKENS = {"HF_TOKEN": "hf_abc", "HUGGING_FACE_HUB_TOKEN": "hf_abc", "https_proxy": "http://me:secret@proxy:8080"}


@pytest.mark.parametrize("hub", [False, True])
def test_a_server_inherits_no_secrets(hub: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that downloads from the hub has the hub's token; what the plan adds is there in any case."""
    for name, value in (SECRETS | KEPT | TOKENS).items():
        monkeypatch.setenv(name, value)
    spec("closed", None, endpoint={"base_url": "http://x/v1", "api_key_env": "PLANTED"})
    server = fake(tmp_path, TELLING.replace("{path!r}", repr(str(tmp_path / "env.json"))), hub=hub)
    server.env["ADDED_KEY"] = "ours"
    with Servers([server], timeout=30):
        given = json.loads((tmp_path / "env.json").read_text())
    assert not SECRETS.keys() & given.keys() and given["ADDED_KEY"] == "ours"
    assert given.items() >= KEPT.items() and {"PATH", "HOME"} <= given.keys()
    assert {name: given[name] for name in TOKENS if name in given} == (TOKENS if hub else {})


DYING = """
import sys
print("an old line\\n" * 30)
print("(EngineCore pid=7) ERROR 11-21 23:16:07 [core.py:1] {error}")
print("RuntimeError: Engine core initialization failed. See root cause above.")
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("ValueError: the moon is full", "ValueError: the moon is full"),
        ("ValueError: Available memory is less than desired CPU memory utilization", "--gpu-memory-utilization"),
        ("OSError: x is not a local folder and is not a valid model identifier", "checkpoint not found"),
        ("OSError: [Errno 98] Address already in use", "port was taken"),
        ("api_server.py: error: unrecognized arguments: --foo", "serve.extra_args"),
    ],
)
def test_a_server_that_dies_says_why(error: str, hint: str, tmp_path: Path) -> None:
    server = fake(tmp_path, DYING.replace("{error}", error))
    with pytest.raises(UserError) as caught, Servers([server], timeout=30):
        pass
    first, *rest = str(caught.value).split("\n")
    assert first.startswith("server fake ended while starting (exit code 7): ")
    assert hint in first and f"log {server.log}" in first
    assert rest[-2] == error and rest[-1].startswith("RuntimeError: Engine core") and len(rest) == 15


def test_a_second_log_starts_where_the_first_ended(tmp_path: Path) -> None:
    for word in ("first", "second"):
        with pytest.raises(UserError) as caught, Servers([fake(tmp_path, f"print('{word}'); raise SystemExit(1)")], timeout=30):
            pass
        assert str(caught.value).split("\n")[1:] == [word]
    assert "first" in (tmp_path / "server-fake.log").read_text()


def test_one_that_dies_takes_the_others_along(tmp_path: Path) -> None:
    healthy = fake(tmp_path, HEALTHY, "healthy")
    waits = (
        f"import pathlib, time; log = pathlib.Path({str(healthy.log)!r})\n"
        "while 'child-' + 'pid ' not in log.read_text(): time.sleep(0.05)\n"
        "raise SystemExit(1)"
    )
    with pytest.raises(UserError, match="server fake ended"), Servers([healthy, fake(tmp_path, waits)], timeout=60):
        pass
    assert gone(child_of(healthy.log))


def test_a_server_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("serve.launch.LINE_AFTER", 0)
    silent = fake(tmp_path, "import time; print('still loading', flush=True); time.sleep(60)")
    # (empty): where Python starts slowly
    message = r"server fake did not answer within 1 s \(start_timeout\); log .*, its end:\n(still loading|\(empty\))$"
    with pytest.raises(UserError, match=message), Servers([silent], timeout=1):
        pass
    said = capsys.readouterr().err
    assert said.count("# starting fake: ") == 1, f"one line of progress without a terminal, the next ten seconds later: {said}"


def test_missing_vllm_and_taken_ports_are_said_before_anything_starts(
    gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is taken"), Servers([fake(tmp_path, HEALTHY, port=port)]):
            pass
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = (
        rf"{spec().name}: to be served by vLLM, which is not installed: make setup \(CPU\) or pip install 'esc-eval\[gpu\]'"
    )
    with pytest.raises(UserError, match=message), Servers(plan_servers([spec()], tmp_path)):
        pass
    assert not list(tmp_path.glob("*.log"))


LAUNCHER = """
import sys, time
from pathlib import Path
from serve.launch import Servers
from serve.command import ServerPlan
plan = ServerPlan("s", "x", ["s"], [sys.executable, "-c", sys.argv[1], "{port}"], {}, Path(sys.argv[2]))
with Servers([plan], timeout=30):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
)
def test_no_server_outlives_its_launcher(number: signal.Signals, code: int, tmp_path: Path) -> None:
    log = tmp_path / "s.log"
    # SIGINT is ignored in children of some shells; the launcher has to start with its usual meaning.
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, HEALTHY, str(log)],
        env=os.environ | {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""},  # not asked for a server here
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert launcher.stdout is not None and launcher.stdout.readline() == b"up\n"
        child = child_of(log)
        server = parent_of(child)
        assert os.getpgid(child) == os.getpgid(server) == server
        guard = parent_of(server)
        assert os.getpgid(guard) == guard, "Ctrl-C in a terminal reaches the launcher alone"
        launcher.send_signal(number)
        assert launcher.wait(60) == code
        assert gone(server) and gone(child)
    finally:
        launcher.kill()
        launcher.communicate()


def test_the_guard_reports_the_end_of_its_command(tmp_path: Path) -> None:
    def guarded(code: str) -> int:
        command = [sys.executable, "-m", "serve.guard", "--", sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as guard:
            return guard.wait(30)

    assert guarded("raise SystemExit(5)") == 5
    assert guarded("import os; os.kill(os.getpid(), 9)") == 137
    leaves = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    assert guarded(leaves + f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))") == 0
    assert gone(int((tmp_path / "pid").read_text()))


def test_the_guard_ends_with_its_parent_even_where_the_pipe_stays_open() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    starts = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-m', 'serve.guard', '--', sys.executable, '-c', {code!r}])"
    )
    with subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        command = int(parent.stdout.readline())
        parent.kill()
        assert gone(command)


def test_the_guard_kills_what_ignores_being_asked(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    code = "import serve.guard, sys; serve.guard.GRACE = 0.5; sys.exit(serve.guard.main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", code, "--", sys.executable, "-c", stubborn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as guard:
        assert guard.stdout is not None and guard.stdin is not None and guard.stdout.readline() == b"up\n"
        began = time.monotonic()
        guard.stdin.close()
        assert guard.wait(60) == 0
        assert guard.stdout.read() == b"", "its end of the pipe is closed: the command is gone"
    assert time.monotonic() - began > 0.4  # it was asked first


@pytest.mark.parametrize(("command", "problem"), [("", "no such command here"), ("'open", "No closing quotation")])
def test_a_command_that_cannot_run_is_said_before_a_server_starts(
    command: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.__main__.plan_servers", lambda *given, **more: pytest.fail("a server was planned"))
    result = CliRunner().invoke(app, ["up", "embedded", "--exec", command])
    assert isinstance(result.exception, UserError) and problem in str(result.exception)


def test_the_line_that_up_prints_works_when_pasted(
    esc_eval: EscEval, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranker = load_spec("embedded-ranker")
    with Endpoint(models=("embedded", ranker.name)) as endpoint:
        servers: Any = SimpleNamespace(endpoints={"embedded": endpoint.url, ranker.name: endpoint.url}, plans=[])
        _show({"embedded": load_spec("embedded"), ranker.name: ranker}, servers)
        pasted = shlex.split(capsys.readouterr().out.splitlines()[-1])
        assert pasted[0] == "esc-eval"
        assert esc_eval(*pasted[1:], "--limit", 1, "--language", "en") == (0, "")
    assert {request["model"] for request in endpoint.requests} == {"embedded", ranker.name}
    assert (tmp_path / "runs" / "demo" / "report.html").exists()


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_runs_while_servers_are_up_and_gives_its_exit_code(
    status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned = fake(tmp_path, HEALTHY, "my-model.v2")
    monkeypatch.setattr("serve.__main__.plan_servers", lambda *given, **more: [planned])
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    code = (
        "import os, sys, pathlib, urllib.request; url = os.environ['SERVE_URL_MY_MODEL_V2']; "
        f"pathlib.Path(os.environ['OUT']).write_text(str(urllib.request.urlopen(url).status) + ' ' + url); sys.exit({status})"
    )
    result = CliRunner().invoke(app, ["up", "embedded", "--exec", shlex.join([sys.executable, "-c", code])])
    assert result.exit_code == status
    answered, url = (tmp_path / "out").read_text().split()
    assert answered == "200"
    with pytest.raises(urllib.error.URLError):  # the server is gone with the command
        urllib.request.urlopen(url, timeout=5)


def test_a_command_that_is_no_program_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("serve.__main__.plan_servers", lambda *given, **more: [fake(tmp_path, HEALTHY)])
    (tmp_path / "odd").write_bytes(b"\x7fELF nothing")
    (tmp_path / "odd").chmod(0o755)
    result = CliRunner().invoke(app, ["up", "embedded", "--exec", str(tmp_path / "odd")])
    assert isinstance(result.exception, UserError) and "Exec format error" in str(result.exception)
    assert gone(child_of(tmp_path / "server-fake.log"))


LOG = "(EngineCore pid=7) INFO 11-26 12:00:00 GPU KV cache size: 46,848 tokens, Maximum concurrency for "
LOG += "8,192 tokens per request: 5.72x"


def test_what_vllm_says_of_its_cache_is_read_in_the_old_words_too() -> None:
    said = {"tokens": 46_848, "context": 8_192, "at_once": 5.72}
    plan = ServerPlan("m", "org/base", ["m"], [], {}, Path("m.log"))
    assert cache_of(LOG, plan) == cache_of(LOG.replace(", Maximum", "\n(EngineCore pid=7) INFO Maximum"), plan) == said
    assert cache_of("INFO nothing of that", plan) == {}
    assert told(said) == "cache of 46,848 tokens, 5.72 requests of 8,192"
    assert told({**said, "planned_tokens": 47_000}).startswith("cache of 46,848 tokens (planned: 47,000)")
