"""What reaches a study's server half, from afar or by mistake; and what it leaves of folders that were there."""

import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvicorn

from evalsuite.people import guard
from evalsuite.people.guard import HEADERS
from tests.conftest import EscEval
from tests.people_study import Client, links, make_study

pytestmark = pytest.mark.slow
USUAL = {name.lower(): value for name, value in HEADERS.items()}.items()


def visit(esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch, study: Path, what: Callable[[str], None]) -> None:
    """Call `what` with the address of the server that `people serve` starts, with its own settings."""

    def run(app: object, **settings: object) -> None:
        server = uvicorn.Server(uvicorn.Config(app, **settings | {"port": 0, "log_config": None}))  # type: ignore[arg-type]
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            what(f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join(10)

    monkeypatch.setattr(uvicorn, "run", run)
    assert esc_eval("people", "serve", study)[0] == 0


@pytest.fixture
def study(esc_eval: EscEval, tmp_path: Path) -> Path:
    return make_study(esc_eval)


HALVES = [
    b"",
    b"GET / HT",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
    b"POST /api/me HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 40\r\n\r\n{",
    b"GET /favicon.ico HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP",
]


def test_half_a_request_is_not_waited_for(study: Path, esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WHOLE_WITHIN_S", 1.0)

    def send(address: str) -> None:
        host, _, port = address.partition(":")
        for half in HALVES:
            with socket.create_connection((host, int(port)), timeout=10) as line:
                line.sendall(half)
                line.settimeout(0.2)
                with suppress(ConnectionError):
                    for _ in range(300):  # a byte now and then gains no time
                        with suppress(TimeoutError):
                            if not line.recv(4096):
                                break
                        line.sendall(b"x" * bool(half))
                    else:
                        pytest.fail(f"still waited for: {half!r}")
        assert Client(address).enter(links(study)["r01"]).request("GET", "/")[0] == 200

    visit(esc_eval, monkeypatch, study, send)


@pytest.mark.parametrize("number", ["1" * 23, "9" * 5000, "-" + "1" * 30, "99", "one", "2147483648"])
def test_a_task_that_cannot_be_is_not_found(
    number: str, study: Path, esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(address: str) -> None:
        client = Client(address).enter(links(study)["r01"])
        for method, path, body in (
            ("GET", f"/task/{number}", None),
            ("POST", f"/api/task/{number}/submit", {}),
            ("PUT", f"/api/task/{number}/answer", {"question": "empathy", "value": 1}),
        ):
            status, _, headers = client.request(method, path, body)
            assert status == 404 and headers.items() >= USUAL, (method, status)

    visit(esc_eval, monkeypatch, study, ask)


@pytest.mark.parametrize("named", [None, "127.0.0.1"])
def test_only_a_named_proxy_says_where_a_request_is_from(
    named: str | None, study: Path, esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", named)
    seen: list[str] = []
    allows = guard.RequestRate.allows

    def noted(self: guard.RequestRate, client: str) -> bool:
        seen.append(client)
        return allows(self, client)

    monkeypatch.setattr(guard.RequestRate, "allows", noted)

    def ask(address: str) -> None:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 203.0.113.7\r\nConnection: close\r\n\r\n")
            while line.recv(4096):
                pass

    visit(esc_eval, monkeypatch, study, ask)
    assert ("203.0.113.7" in seen) == bool(named) and ("127.0.0.1" in seen) != bool(named)


def test_a_folder_that_was_there_keeps_its_mode_and_what_is_secret_is_private(esc_eval: EscEval, tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    for folder, expected in (("mine", 0o755), ("new", 0o700)):
        make_study(esc_eval, name=folder)
        assert mode(tmp_path / folder) == expected
        assert {mode(tmp_path / folder / name) for name in ("links.csv", "study.sqlite")} == {0o600}
