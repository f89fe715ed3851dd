"""Agents behind HTTP that are no chat model: a scripted one with sessions, in whole runs."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from rich.console import Console

from core.errors import UserError
from core.files import read_jsonl
from core.records import Dialogue
from core.specs import load_spec
from serve.batch import Batch
from tests.conftest import EscEval
from tests.endpoint import Endpoint, echo
from tests.evalsuite.test_faults import config
from tests.serve.test_client import question


class Agency:
    """An agent that knows only what it was told in a session. `fails` holds the numbers of turns that it answers with a 503."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[str]] = {}
        self.opened: list[dict[str, Any]] = []
        self.closed: list[str] = []
        self.turns: list[dict[str, Any]] = []
        self.keys = set[str | None]()
        self.fails = set[int]()
        self.status = 200
        self.code = "busy"

    async def opening(self, request: web.Request) -> web.Response:
        self.opened.append(orjson.loads(await request.read()))
        name = f"s/{len(self.opened)}"
        self.sessions[name] = []
        return web.json_response({"data": {"id": name}})

    async def turn(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers.get("Authorization"))
        body = orjson.loads(await request.read())
        self.turns.append(body)
        if self.status != 200 or len(self.turns) in self.fails:
            error = {"message": "not now", "code": self.code}
            return web.json_response({"error": error}, status=self.status if self.status != 200 else 503)
        heard = self.sessions[request.match_info["session"]]
        heard.append(body["text"])
        await asyncio.sleep(0.01)
        said = f"I have heard {len(heard)} lines, the first: {heard[0]}"
        return web.json_response({"output": [{"text": "…"}, {"text": said}]})

    async def closing(self, request: web.Request) -> web.Response:
        self.closed.append(request.match_info["session"])
        return web.Response(status=204)


@pytest.fixture
def agency() -> Iterator[tuple[Agency, str]]:
    """The agent, and its address."""
    agent, loop, ready = Agency(), asyncio.new_event_loop(), threading.Event()
    app = web.Application()
    app.router.add_post("/v2/sessions", agent.opening)
    app.router.add_post("/v2/sessions/{session}/turns", agent.turn)
    app.router.add_delete("/v2/sessions/{session}", agent.closing)
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(runner.setup())
        loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield agent, f"http://127.0.0.1:{runner.addresses[0][1]}/v2"
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def write_agent(url: str, **changes: Any) -> None:
    endpoint = {
        "kind": "agent",
        "base_url": url,
        "api_key_env": "AGENT_KEY",
        "open": {"path": "/sessions", "request": {"user": "{card}", "tags": ["{dialogue}"]}, "response": "/data/id"},
        "turn": {
            "path": "/sessions/{session}/turns",
            "request": {"text": "{message}", "turn": "{exchange}", "note": "in {role} of {dialogue}"},
            "response": "/output/-1/text",
        },
        "close": {"path": "/sessions/{session}", "method": "DELETE"},
    }
    made = {"name": "agent", "roles": ["supporter"], "endpoint": endpoint | changes}
    Path("agent.yaml").write_text(yaml.safe_dump(made))


@pytest.fixture
def run(esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AGENT_KEY", "the-agents-own-key")
    monkeypatch.setattr("evalsuite.report.content.report_run", lambda *given: None)
    config(tmp_path, 4)
    with Endpoint(echo, models=("embedded",)) as endpoint:
        models = ("--supporter", "agent.yaml", "--seeker", "embedded", "--judge", "embedded")
        command = ("run", "--config", "c.yaml", *models, "--set", f"endpoints.embedded={endpoint.url}", "--out", "run")

        def call(*more: str) -> tuple[int, str]:
            return esc_eval(*command, *more)

        call.endpoint = f"embedded={endpoint.url}"  # type: ignore[attr-defined]
        yield call


def held() -> list[Dialogue]:
    return read_jsonl(Path("run/dialogues.jsonl"), Dialogue, "dialogues")


def test_an_agent_has_a_session_for_each_dialogue(agency: tuple[Agency, str], run: Any) -> None:
    agent, url = agency
    write_agent(url)
    agent.fails = {3, 7}
    assert run() == (0, "")
    for dialogue in held():
        lines = [turn.text for turn in dialogue.turns if turn.role == "seeker"]
        replies = [turn.text for turn in dialogue.turns if turn.role == "supporter"][1:]
        assert replies == [f"I have heard {number} lines, the first: {lines[0]}" for number in range(1, 6)]
        assert {"user": dialogue.card_id, "tags": [dialogue.id]} in agent.opened
    assert {turn["turn"] for turn in agent.turns} == {1, 2, 3, 4, 5} and "in supporter of" in agent.turns[0]["note"]
    assert sorted(agent.closed) == sorted(agent.sessions) and len(agent.opened) == 4
    assert agent.keys == {"Bearer the-agents-own-key"}
    asked = len(agent.turns)
    assert run() == (0, "") and len(agent.turns) == asked == 4 * 5 + 2, "the same command again asks nothing"
    assert "the-agents-own-key" not in Path("run/config.json").read_text()


def test_an_interrupted_session_is_opened_again_and_told_what_was_said(agency: tuple[Agency, str], run: Any) -> None:
    agent, url = agency
    write_agent(url)
    assert run("--set", "max_calls=16")[0] == 1
    opened = len(agent.opened)
    assert run() == (0, "")
    assert len(agent.opened) == opened + 4 - 2 + 1, "one of two that were begun is finished"
    for dialogue in held():
        assert dialogue.turns[-1].text.startswith("I have heard 5 lines")


def test_an_agent_that_keeps_nothing_is_sent_the_chat(agency: tuple[Agency, str], run: Any) -> None:
    agent, url = agency
    agent.sessions["all"] = []
    request = {"text": "{message}", "chat": "{messages}"}
    write_agent(
        url, open=None, close=None, turn={"path": "/sessions/all/turns", "request": request, "response": "/output/1/text"}
    )
    assert run() == (0, "")
    assert {len(turn["chat"]) for turn in agent.turns} == {1, 3, 5, 7, 9}
    assert all(turn["chat"][-1] == {"role": "user", "content": turn["text"]} for turn in agent.turns)


def test_what_an_agent_refuses_is_said_with_its_own_words(agency: tuple[Agency, str], run: Any) -> None:
    agent, url = agency
    write_agent(url)
    agent.status = 403
    code, err = run()
    assert code in (1, 2) and "model agent at" in err and "HTTP 403: busy not now" in err and "/sessions/{session}/turns" in err
    agent.status = 200
    write_agent(url, turn={"path": "/sessions/{session}/turns", "request": {"text": "x"}, "response": "/answer"})
    _, err = run("--set", "attempts=2")
    assert "nothing at /answer of the response" in err


def test_an_agent_without_money_ends_the_run(agency: tuple[Agency, str], run: Any) -> None:
    agent, url = agency
    write_agent(url)
    agent.status, agent.code = 429, "insufficient_quota"
    code, err = run()
    assert code == 1 and "quota or balance used up" in err and len(agent.turns) <= 4, "each dialogue's first line at most"


def test_a_fork_closes_the_sessions_that_it_opens(agency: tuple[Agency, str], run: Any, esc_eval: EscEval) -> None:
    agent, url = agency
    write_agent(url)
    assert run() == (0, "")
    settings = yaml.safe_load(Path("c.yaml").read_text()) | {"supporters": ["agent.yaml"]}
    Path("c.yaml").write_text(yaml.safe_dump(settings))
    how = ("--supporter", "agent.yaml", "--turn", "4", "--draws", "2", "--set", f"endpoints.{run.endpoint}", "--out", "f")
    code, err = esc_eval("fork", "run", "--config", "c.yaml", "--dialogue", held()[0].id, *how)
    assert code == 0, err
    assert len(agent.opened) > 4 and len(agent.closed) == len(agent.opened)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"turn": None}, "an agent (kind: agent) needs a base_url and a turn"),
        ({"kind": "chat"}, "turn: belongs to an agent: write kind: agent"),
        ({"turn": {"path": "/{user}"}}, "unknown placeholder {user}"),
        ({"turn": {"path": "turns"}}, "must begin with a slash"),
        ({"turn": {"response": "text"}}, "response"),
    ],
)
def test_what_is_wrong_in_a_spec_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_agent("http://127.0.0.1:1", **changes)
    with pytest.raises(UserError) as caught:
        load_spec("agent.yaml")
    assert told in str(caught.value)


def test_an_agent_answers_nothing_but_dialogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write = {"name": "agent", "endpoint": {"kind": "agent", "base_url": "http://127.0.0.1:1", "turn": {}}}
    Path("judging.yaml").write_text(yaml.safe_dump(write))
    write_agent("http://127.0.0.1:1")
    batch = Batch(load_spec("agent.yaml"), tmp_path / "calls.sqlite", Console(quiet=True))
    with batch, pytest.raises(UserError, match="plays a side of dialogues"):
        batch.ask([question()], "replies")
    with pytest.raises(UserError, match="cannot judge"):
        load_spec("judging.yaml")
