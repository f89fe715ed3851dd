"""Studies for tests: dialogues, a server (a thread of this process, or a process of its own), and a rater without a browser."""

import csv
import http.client
import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
from sqlalchemy import create_engine

from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore, Preference, RoleCard, Turn
from evalsuite.people.server import create_app
from evalsuite.people.store import RaterAnswer, StudyStore
from tests.conftest import EscEval
from tests.processes import started

SCRIPT = "<script>document.title='stolen'</script><img src=x onerror=alert(1)>"
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").exists() else []


def dialogue(supporter: str, card: int, language: str = "en", simulator: str = "sim", text: str = "I hear you.") -> Dialogue:
    turns = [Turn(role="seeker", text="I lost my cat."), Turn(role="supporter", text=f"{text} ({card})")]
    turns += [Turn(role="seeker", text="It hurts."), Turn(role="supporter", text="Tell me more.")]
    fields: dict[str, Any] = {"language": language, "source": "test", "card_id": f"c{card}"}
    names = {"supporter": supporter, "simulator": simulator}
    return Dialogue(id=f"{supporter}-{language}-{card}", turns=tuple(turns), **names, **fields)


def cards(count: int) -> list[RoleCard]:
    given: dict[str, Any] = {"language": "en", "source": "test", "card_method": "written"}
    return [RoleCard(id=f"c{number}", problem=f"The cat is gone ({number}).", **given) for number in range(count)]


def write_dialogues(
    path: Path, count: int = 3, supporters: tuple[str, ...] = ("alpha", "beta"), **fields: Any
) -> list[Dialogue]:
    held = [dialogue(supporter, card, **fields) for card in range(count) for supporter in supporters]
    write_jsonl(path, held)
    return held


def make_study(
    esc_eval: EscEval, *more: object, rubric: str = "esc_eval_human", raters: int = 2, name: str = "s", **dialogues: Any
) -> Path:
    """A study in which people rate these dialogues, made by the command line: its folder."""
    write_dialogues(Path("d.jsonl"), **dialogues)
    given = ("--dialogues", "d.jsonl", "--rubric", rubric, "--raters", raters, *more)
    assert esc_eval("people", "create", name, *given) == (0, "")
    return Path(name).resolve()


def links(folder: Path) -> dict[str, str]:
    """Rater → path of the link; `organiser` → that of the organiser."""
    with (folder / "links.csv").open(encoding="utf-8-sig", newline="") as handle:
        return {row["rater"]: row["path"] for row in csv.DictReader(handle)}


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.sqlite'}"


def answer_all(folder: Path, value: Callable[[str, Dialogue, str], float]) -> None:
    """Everybody scores everything that they are shown, by rater, dialogue and dimension, and submits it."""
    with closing(StudyStore(url_of(folder), folder.name)) as store:
        study, contents = store.study(), store.contents()
        for task in store.tasks():
            shown = contents[task.item].dialogue
            keys = study.question_keys(shown)
            for name, turn in keys:
                store.save(task.id, task.rater, name, turn, RaterAnswer(value(task.rater, shown, name)), 0)
            assert not store.submit(task.id, task.rater, keys)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(folder: Path, database: str | None = None, endpoints: Mapping[str, str] = {}) -> Iterator[tuple[str, StudyStore]]:
    """The study's server in a thread: its address, and the store that it writes to."""
    with closing(StudyStore(database or url_of(folder), folder.name)) as store:
        calls = folder / "calls.sqlite" if store.study().chat else None
        with listening(create_app(store, calls=calls, endpoints=endpoints), access_log=False) as address:
            yield address, store


@contextmanager
def listening(app: Any, **settings: Any) -> Iterator[str]:
    """An application that uvicorn serves in a thread, by these settings but for its port and logging: its address."""
    # With its own logging uvicorn shuts down all handlers here, and absl's closes the stream that pytest captures into.
    server = uvicorn.Server(uvicorn.Config(app, **settings | {"port": 0, "log_config": None}))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def process(folder: Path, port: int) -> Iterator[ForkServerProcess]:
    """`esc-eval people serve` as a process that can be killed."""
    log = folder / "server.log"
    server = started("people", "serve", folder, "--port", port, folder=folder, log=log)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.is_alive(), log.with_suffix(".err").read_text()
            time.sleep(0.05)
        yield server
    finally:
        server.kill()
        server.join()


@dataclass
class Client:
    """A rater, or whoever else, without a browser."""

    address: str
    cookie: str = ""
    csrf: str = ""
    versions: dict[tuple[int, str, int | None], int] = field(default_factory=dict)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        given = {"Cookie": self.cookie, "X-CSRF": self.csrf, "Content-Type": "application/json"} | (headers or {})
        text = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, text, {name: value for name, value in given.items() if value})
            response = connection.getresponse()
            return response.status, response.read().decode(), {k.lower(): v for k, v in response.getheaders()}
        finally:
            connection.close()

    def enter(self, link: str) -> Self:
        """Open a link, and read the form's token."""
        status, page, headers = self.request("GET", link)
        assert status == 303, page
        self.cookie = headers["set-cookie"].split(";")[0]
        self.csrf = re.search(r'name="csrf" content="([^"]+)"', self.request("GET", "/")[1])[1]  # type: ignore[index]
        return self

    def tasks(self) -> list[int]:
        return [int(id) for id in dict.fromkeys(re.findall(r'href="/task/(\d+)">\d', self.request("GET", "/")[1]))]

    def put(self, task: int, question: str, turn: int | None = None, **answer: Any) -> tuple[int, dict[str, Any]]:
        """Save an answer over the version that this client knows."""
        key = (task, question, turn)
        given = {"question": question, "turn": turn, "version": self.versions.get(key, 0)} | answer
        status, said, _ = self.request("PUT", f"/api/task/{task}/answer", given)
        found = json.loads(said)
        if "version" in found:
            self.versions[key] = found["version"]
        return status, found

    def rate(self, task: int, keys: Iterable[str], value: float, **others: float) -> None:
        """Give the keys one score, but for the `others`, and submit."""
        for key in keys:
            assert self.put(task, key, value=others.get(key, value))[0] == 200
        assert self.submit(task)[0] == 200

    def talk(self, task: int, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Say something, leave, or hear a reply: what came last."""
        status, said, _ = self.request("POST", f"/api/talk/{task}/{path}", body)
        return status, json.loads(said.strip().splitlines()[-1])

    def submit(self, task: int) -> tuple[int, dict[str, Any]]:
        status, said, _ = self.request("POST", f"/api/task/{task}/submit", {})
        return status, json.loads(said)


@contextmanager
def rating(folder: Path) -> Iterator[tuple[Client, int, StudyStore]]:
    """The first rater of a study that is served, their first task, and the store."""
    with served(folder) as (address, store):
        rater = Client(address).enter(links(folder)["r01"])
        yield rater, rater.tasks()[0], store


def exported(esc_eval: EscEval, file: str = "scores.jsonl", out: str = "out") -> list[Any]:
    """The records of a file that `people results` writes."""
    assert esc_eval("people", "results", "s", "--out", out) == (0, "")
    model = {"preferences.jsonl": Preference, "dialogues.jsonl": Dialogue}.get(file, HumanScore)
    return read_jsonl(Path(out, file), model, "records")


@contextmanager
def postgres() -> Iterator[str]:
    """Debian's PostgreSQL with a cluster of its own, on a socket in a folder: the URL, in which `{name}` is a database's. Skips
    where it is not installed."""
    if not POSTGRES or os.geteuid() != 0:
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail("PostgreSQL is missing on CI: `make setup-postgres` installs it")
        pytest.skip("NO STUDY WAS TRIED ON POSTGRESQL: it is not installed (make setup-postgres), or this is not root")
    data = Path("/tmp") / f"esc-eval-postgres-{os.getpid()}"
    data.mkdir(mode=0o700)
    shutil.chown(data, "postgres")

    def run(*command: str) -> None:
        subprocess.run(["runuser", "-u", "postgres", "--", *command], check=True, cwd="/", stdout=subprocess.DEVNULL)

    try:
        run(str(POSTGRES[-1] / "initdb"), "-D", str(data / "db"), "-A", "trust")
        options = f"-k {data} -c listen_addresses='' -c fsync=off"
        run(str(POSTGRES[-1] / "pg_ctl"), "-D", str(data / "db"), "-o", options, "-l", str(data / "log"), "-w", "start")
        try:
            yield f"postgresql+psycopg://postgres@/{{name}}?host={data}"
        finally:
            run(str(POSTGRES[-1] / "pg_ctl"), "-D", str(data / "db"), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def new_database(server: str) -> str:
    name = f"t{random.getrandbits(40):x}"
    engine = create_engine(server.format(name="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return server.format(name=name)
