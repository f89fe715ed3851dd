"""Several servers for one model behind a router: plans, start and end, and the real router on loopback."""

import asyncio
import os
import signal
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from core.errors import UserError
from core.specs import Sampling
from serve.__main__ import app
from serve.client import ChatClient
from serve.command import PORT, ROUTER, ServerPlan
from serve.launch import Servers, free_port, port_taken
from serve.plan import plan_servers
from serve.questions import Question
from serve.store import CallStore
from tests.serve.conftest import checkpoint, spec
from tests.serve.test_launch import gone
from tests.serve.test_plan import value, values

# A server that answers every chat with its own process id, in the way of an OpenAI-compatible one.
WORKER = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def reply(self, body):
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self):
        self.reply(json.dumps({"data": [{"id": "m"}]}).encode() if "models" in self.path else b"")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"message": {"role": "assistant", "content": str(os.getpid())}, "finish_reason": "stop"}
        self.reply(json.dumps({"choices": [choice], "usage": {}}).encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_replicas_have_gpus_of_their_own_and_a_router_that_answers_for_them(gpus: list[str], tmp_path: Path) -> None:
    gpus[:] = list("0123")
    specs = [spec("a", serve={"replicas": 2, "router": "cache_aware"}), spec("b", "org/b", serve={"tensor_parallel": 2})]
    router, one, two, other = plan_servers(specs, tmp_path, port=8000, resolve=False)
    assert [p.name for p in (router, one, two, other)] == ["a", "a-1", "a-2", "b"]
    assert [p.names for p in (router, one, two, other)] == [["a"], [], [], ["b"]]
    assert [p.env.get("CUDA_VISIBLE_DEVICES") for p in (router, one, two, other)] == [None, "0", "1", "2,3"]
    assert values(one.argv, "--served-model-name") == values(two.argv, "--served-model-name") == ["a"]
    assert len({p.log for p in (router, one, two, other)}) == 4
    command = router.command(8000, [8001, 8002], 9000)
    assert value(command, "--host") == "127.0.0.1" and value(command, "--port") == "8000"
    assert values(command, "--worker-urls") == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert value(command, "--policy") == "cache_aware" and value(command, "--prometheus-port") == "9000"
    assert [p.port for p in (router, one, two, other)] == [8000, 8001, 8002, 8003]
    with pytest.raises(UserError, match="4 servers need as many ports from 65533 on"):
        plan_servers(specs, tmp_path, port=65533)
    assert [p.name for p in plan_servers([spec("a")], tmp_path, resolve=False)] == ["a"], "one server needs no router"


@pytest.mark.engine
def test_replicas_beyond_the_gpus_are_refused_and_on_cpu_they_share_the_cores(
    gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"tensor_parallel 1 × .* × serve.replicas 3 needs 3 GPUs, this machine shows 2"):
        plan_servers([spec(serve={"replicas": 3})], tmp_path)
    monkeypatch.setattr("core.machine.has_gpu", lambda: False)
    assert len(plan_servers([spec(checkpoint=checkpoint(tmp_path / "base"), serve={"replicas": 3})], tmp_path)) == 4


@pytest.mark.engine
def test_data_parallel_over_a_ray_cluster(gpus: list[str], tmp_path: Path) -> None:
    (server,) = plan_servers([spec(serve={"data_parallel": 4, "data_parallel_local": 2})], tmp_path)
    assert value(server.argv, "--data-parallel-size") == "4" and value(server.argv, "--data-parallel-size-local") == "2"
    assert value(server.argv, "--data-parallel-backend") == "ray"
    with pytest.raises(UserError, match=r"serve.data_parallel_local 4 .* needs 4 GPUs, this machine shows 2"):
        plan_servers([spec(serve={"data_parallel": 8, "data_parallel_local": 4})], tmp_path)
    with pytest.raises(ValidationError, match="not a multiple of data_parallel_local"):
        spec(serve={"data_parallel": 3, "data_parallel_local": 2})
    with pytest.raises(ValidationError, match="replicas are on one machine"):
        spec(serve={"data_parallel": 4, "data_parallel_local": 2, "replicas": 2})


def test_the_router_is_on_the_printed_plan(gpus: list[str], tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(spec("two", serve={"replicas": 2}).model_dump_json())
    result = CliRunner().invoke(app, ["up", str(file), "--print", "--port", "8100"])
    lines = [line.split() for line in result.stdout.splitlines() if not line.startswith("#")]
    assert [value(line, "--port") for line in lines] == ["8100", "8101", "8102"]
    assert values(lines[0], "--worker-urls") == ["http://127.0.0.1:8101", "http://127.0.0.1:8102"]


def test_a_missing_router_is_said_before_anything_starts(
    gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "vllm_router" else object())
    with (
        pytest.raises(UserError, match=r"serve.replicas needs a router: pip install vllm-router"),
        Servers(plan_servers([spec(serve={"replicas": 2})], tmp_path)),
    ):
        pass
    assert not list(tmp_path.glob("*.log"))


def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ServerPlan]:
    """Two planned replicas of one model, played by our own little server, and their router as it is planned."""
    monkeypatch.setattr("core.machine.has_gpu", lambda: False)
    plans = plan_servers([spec("m", checkpoint(tmp_path / "base"), serve={"replicas": 2})], tmp_path)
    return [plan if plan.workers else replace(plan, argv=[sys.executable, "-c", WORKER, PORT], env={}) for plan in plans]


@pytest.mark.engine
@pytest.mark.slow
def test_a_model_is_up_as_long_as_one_replica_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    router, *workers = replicas(tmp_path, monkeypatch)
    shows = "import http.server, sys; print('behind', sys.argv[2:], flush=True); "  # a router that only says whom it was given
    serves = "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.BaseHTTPRequestHandler).serve_forever()"
    healthy = "http.server.BaseHTTPRequestHandler.do_GET = lambda self: (self.send_response(200), self.end_headers()); "
    router = replace(router, argv=[sys.executable, "-c", shows + healthy + serves, PORT, "{workers}"])
    with Servers([router, *workers], timeout=60) as servers:
        ports = [server.port for server in servers._running]
        assert servers.endpoints == {"m": f"http://127.0.0.1:{ports[2]}/v1"}, "replicas first; nobody asks them directly"
        assert f"behind {[f'http://127.0.0.1:{port}' for port in ports[:2]]}" in router.log.read_text()
        pids = [server.guard.pid for server in servers._running]
        for count, pid in enumerate(pids[:2], start=1):
            os.kill(pid, signal.SIGTERM)
            servers._running[count - 1].guard.wait(20)
            assert set(servers.poll()) == {f"m-{n}" for n in range(1, count + 1)}
            assert servers.alive() is (count == 1)


@pytest.mark.engine
@pytest.mark.slow
async def test_the_real_router_keeps_dialogues_together_and_loses_none_with_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm_router")
    asked = Sampling()
    plans = replicas(tmp_path, monkeypatch)
    assert ROUTER in plans[0].argv
    store = CallStore(tmp_path / "calls.sqlite")
    with Servers([replace(plans[0], port=free_port()), *plans[1:]], timeout=120) as servers:
        async with ChatClient(store, servers.endpoints, concurrency=8) as client:
            await client.check(plans[0].specs[0], ["m"])

            async def answer(dialogue: int, turn: int) -> str:
                question = Question(
                    [{"role": "user", "content": f"line {turn}"}],
                    sample={"dialogue": f"d{dialogue}", "turn": turn},
                    sampling=asked,
                    served_name="m",
                    purpose="supporter",
                    session=f"d{dialogue}",
                )
                return (await client.ask(plans[0].specs[0], question)).text

            async def turns(*numbers: int) -> dict[int, set[str]]:
                who = defaultdict[int, set[str]](set)
                wanted = [(dialogue, turn) for turn in numbers for dialogue in range(24)]
                for (dialogue, _), text in zip(wanted, await asyncio.gather(*(answer(*each) for each in wanted)), strict=True):
                    who[dialogue].add(text)
                return who

            before = await turns(0, 1, 2)
            assert all(len(pids) == 1 for pids in before.values()), "a dialogue stays on one replica"
            pids = set.union(*before.values())
            assert len(pids) == 2, "and both have some"
            victim = min(pids, key=int)
            os.kill(int(victim), signal.SIGKILL)
            assert gone(int(victim))
            after = await turns(3, 4)
            assert set.union(*after.values()) == pids - {victim}, "the other takes them over"
            assert all(after[dialogue] == before[dialogue] for dialogue in after if victim not in before[dialogue])
            assert servers.alive()
    store.close()
    assert not any(port_taken(int(url.rpartition(":")[2].removesuffix("/v1"))) for url in servers.endpoints.values())
    assert " INFO " not in plans[0].log.read_text(), "no line per call"
