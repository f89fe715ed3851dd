"""How many calls are under way: slots in order, and a number that finds what a server bears."""

import asyncio
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from serve.client import ChatClient
from serve.limits import FILES, MOST, MOST_UNSEEN, START, Limit, connections, queue_length
from serve.store import CallStore
from tests.endpoint import Answer, Endpoint
from tests.serve.test_client import question, spec


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_was_begun_first_goes_first_and_a_cancelled_call_keeps_no_slot() -> None:
    limit, held = Limit(1), []

    async def call(order: int, name: str) -> None:
        await limit.acquire(order)
        held.append(name)

    tasks = [asyncio.create_task(call(*given)) for given in ((0, "a"), (2, "late"), (1, "gone"), (1, "b"))]
    await settle()
    assert held == ["a"]
    tasks[2].cancel()
    await settle()
    limit.release()
    await settle()
    assert held == ["a", "b"]
    limit.release()
    await settle()
    assert held == ["a", "b", "late"]


async def test_a_call_that_is_cancelled_in_the_moment_of_its_turn_passes_the_slot_on() -> None:
    limit = Limit(1)
    await limit.acquire()
    waiting = asyncio.create_task(limit.acquire())
    after = asyncio.create_task(limit.acquire())
    await settle()
    limit.release()  # wakes the first of them, which is cancelled before it runs
    waiting.cancel()
    await asyncio.wait_for(after, 1)
    assert waiting.cancelled()


async def busy(limit: Limit, rounds: int, bears: int, seen: bool, batches: bool = True) -> list[int]:
    """The limit after each round at a server that works on `bears` calls at once: what is beyond waits (`seen`: and is told).

    One call takes a second; with `batches` a batch takes no longer than one call, else the server does one after the other.
    """
    limit._wanted, limits = True, []
    for _ in range(rounds):
        under_way = limit.limit
        seconds = max(1.0, under_way / bears) if batches else float(under_way)
        while not limit.answered("judge", seconds):
            pass
        limit._wanted = True  # there is always more to ask
        limit.adapt(max(under_way - bears, 0) if seen else None)
        limits.append(limit.limit)
    return limits


@pytest.mark.parametrize("bears", [3, 40, 200])
async def test_it_finds_what_a_server_with_a_known_queue_bears(bears: int) -> None:
    tried = await busy(Limit(), 60, bears, seen=True)
    assert max(tried) <= 2 * max(bears, START)
    assert all(bears <= each <= bears * 1.15 + 2 for each in tried[-20:])


async def test_it_finds_it_by_the_seconds_where_no_queue_is_told() -> None:
    tried = await busy(Limit(), 200, 30, seen=False)
    assert all(30 <= each <= 3 * 30 + 4 for each in tried[-50:])
    alone = await busy(Limit(), 60, 1, seen=False, batches=False)
    assert max(alone[-20:]) <= 3 * START + 4  # a server that gains nothing is not buried
    assert max(await busy(Limit(), 60, 10**6, seen=False)) == MOST_UNSEEN
    assert max(await busy(Limit(), 60, 10**6, seen=True)) == MOST


async def test_refusals_halve_it_once_for_all_calls_under_way() -> None:
    limit = Limit()
    for _ in range(START):
        await limit.acquire()
    for _ in range(START):
        limit.crowded()
    assert limit.limit == START // 2
    for _ in range(400):
        limit.crowded()
    assert limit.limit == 1


async def test_a_fixed_number_stays() -> None:
    limit = Limit(5)
    limit.crowded()
    assert not any(limit.answered("judge", 1.0) for _ in range(50))
    assert limit.limit == 5


async def test_it_grows_only_where_slots_are_missing() -> None:
    limit = Limit()
    while not limit.answered("judge", 1.0):
        pass
    limit.adapt(0)
    assert limit.limit == START


def test_vllms_queue_is_read_from_its_metrics() -> None:
    text = (
        b"# HELP vllm:num_requests_waiting Number of requests waiting.\n"
        b'vllm:num_requests_waiting{engine="0",model_name="a b"} 3.0\nvllm:num_requests_waiting{engine="1"} 1e+01\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0\n'
    )
    assert queue_length(text) == 13
    assert queue_length(b"process_cpu_seconds_total 1.5\n") is None


@pytest.mark.slow
async def test_the_client_asks_a_server_for_its_queue_but_never_one_with_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "sk-abcdefghijklmnop")
    asked: list[str] = []

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'vllm:num_requests_waiting{engine="0"} 0.0\n')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"choices": [{"message": {"content": "ok"}}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            for key, expected in ((None, ["/metrics"]), ("A_KEY", [])):
                asked.clear()
                store = CallStore(tmp_path / f"{key}.sqlite")
                async with ChatClient(store) as client:
                    model = spec(url, endpoint={"api_key_env": key})
                    await asyncio.gather(*(client.ask(model, question(str(n))) for n in range(START + 4)))
                    assert client.limits == {url: 2 * START}
                assert asked == expected
                store.close()
        finally:
            server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    "refused", [Answer(status=429, headers={"Retry-After": "0"}), Answer("late", delay=5)], ids=["429", "timed out"]
)
async def test_the_client_asks_for_less_after_a_refusal_and_is_answered_in_the_end(tmp_path: Path, refused: Answer) -> None:
    with Endpoint(lambda body, count: refused if count <= 4 else Answer("ok")) as endpoint:
        store = CallStore(tmp_path / "calls.sqlite")
        async with ChatClient(store, backoff_s=0.001, timeout_s=1.0) as client:
            replies = await asyncio.gather(*(client.ask(spec(endpoint.url), question(str(n))) for n in range(12)))
            assert {reply.text for reply in replies} == {"ok"}
            assert client.limits[endpoint.url] <= START // 2  # less still where a busy machine lets an answer time out
        store.close()


HIT = """
import asyncio, resource, sys
from pathlib import Path
import serve.transport
from serve.client import ChatClient
from serve.store import CallStore
from tests.serve.test_client import question, spec

async def main(url):
    store = CallStore(Path("calls.sqlite"))
    serve.transport.connections = lambda: 1024  # as if nobody knew the limit: the kernel says it
    async with ChatClient(store, backoff_s=0.01) as client:
        await client.ask(spec(url), question("first"))
        used = len(list(Path("/proc/self/fd").iterdir()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 6, used + 6))
        replies = await asyncio.gather(*(client.ask(spec(url), question(str(n))) for n in range(60)))
        print(len(replies), client.tallies["my-model", "supporter"].retries, list(client.limits.values())[0])

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_process_that_may_open_no_more_files_is_a_full_server(tmp_path: Path) -> None:
    """60 calls at once, files for six more connections: each is retried until there is room, and fewer are under way."""
    with Endpoint(lambda body, count: Answer("fine", delay=0.05)) as endpoint:
        run = subprocess.run(
            [sys.executable, "-c", HIT, endpoint.url], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert not run.stderr, run.stderr
        replies, retries, limit = map(int, run.stdout.split())
        assert replies == 60 and retries > 0 and limit < START and endpoint.most <= 8
    assert len(endpoint.requests) == 61


@pytest.mark.parametrize(
    ("limits", "open_files", "raised", "connections_"),
    [
        ((256, 256), 10, None, 198),
        ((1024, 4096), 10, (4096, 4096), 4038),
        ((1024, 2**30), 10, (FILES, 2**30), FILES - 58),
        ((60, 60), 30, None, 15),
        ((60, 60), 59, None, 1),
    ],
)
def test_connections_are_what_the_limit_of_open_files_leaves(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], open_files: int, raised: tuple[int, int] | None, connections_: int
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr("serve.limits.resource.getrlimit", lambda which: limits)
    monkeypatch.setattr("serve.limits.resource.setrlimit", lambda which, to: set_to.append(to))
    monkeypatch.setattr("serve.limits.psutil.Process.num_fds", lambda process: open_files)
    assert connections() == connections_ and set_to == ([raised] if raised else [])


def test_a_limit_is_never_more_than_there_are_connections() -> None:
    assert (Limit(fixed=100, most=30).limit, Limit(most=5).limit) == (30, 5)
