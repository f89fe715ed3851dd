"""Two servers of the embedded model behind the real router: what the issue asks to be shown (make test-full)."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from core.specs import Sampling, ServeOptions, load_spec
from serve.client import ChatClient
from serve.launch import Servers
from serve.plan import plan_servers
from serve.questions import Question
from serve.store import CallStore


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.slow
async def test_two_embedded_servers_and_one_killed_in_the_middle(tmp_path: Path) -> None:
    pytest.importorskip("vllm_router")
    own = load_spec("embedded")
    sampling = Sampling(max_tokens=32)
    own = own.model_copy(update={"sampling": sampling, "serve": ServeOptions(replicas=2, eager=True, dtype="float32")})
    store = CallStore(tmp_path / "calls.sqlite")
    with Servers(plan_servers([own], tmp_path / "logs")) as servers:
        async with ChatClient(store, servers.endpoints, concurrency=8) as client:

            async def dialogue(number: int) -> list[str]:
                said = []
                for turn in range(3):
                    question = Question(
                        [{"role": "user", "content": f"I am worried about exam {number}, for day {turn}."}],
                        sample={"dialogue": f"d{number}", "turn": turn},
                        sampling=sampling,
                        served_name=own.served_name(),
                        purpose="supporter",
                        session=f"d{number}",
                    )
                    said.append((await client.ask(own, question)).text)
                return said

            held = [asyncio.create_task(dialogue(number)) for number in range(16)]
            first, _ = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
            assert len(first) < len(held)
            os.kill(servers._running[0].guard.pid, signal.SIGTERM)  # the first replica's; it takes its server along
            assert all(text for lines in await asyncio.gather(*held) for text in lines)
            await asyncio.to_thread(servers._running[0].guard.wait, 20)
            assert len(store) == 48 and servers.alive() and set(servers.poll()) == {"embedded-1"}
    store.close()
