"""The README's first run in a short form, against servers that people really have beside vLLM."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml

from core.files import CONFIGS
from serve.checkpoints import places
from tests import llama_server
from tests.conftest import EscEval
from tests.peers import python_with

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

START_S = 300


def llama_cpp(port: int) -> list[str]:
    return [str(python_with("xllamacpp")), llama_server.__file__, str(places._weights()), str(port)]


def transformers_serve(port: int) -> list[str]:
    command = Path(sys.executable).with_name("transformers")
    return [str(command), "serve", str(places.materialise()), "--port", str(port), "--device", "cpu", "--dtype", "float32"]


@contextmanager
def up(command: list[str], port: int, log: Path) -> Iterator[str]:
    """The server's address, once it answers there."""
    url, ends = f"http://127.0.0.1:{port}/v1", time.monotonic() + START_S
    with log.open("wb") as written:
        server = subprocess.Popen(
            command, stdout=written, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        )
        try:
            while True:
                assert server.poll() is None and time.monotonic() < ends, log.read_text()[-2000:]
                try:
                    urlopen(f"{url}/models", timeout=5).close()
                    break
                except HTTPError:  # transformers' list asks the hub, and there is none here
                    break
                except OSError:
                    time.sleep(0.5)
            yield url
        finally:
            server.terminate()
            server.wait(30)


# transformers holds no answer to a form, and in words this model cannot judge: that is said, after the report.
@pytest.mark.parametrize(("server", "ends"), [(llama_cpp, 0), (transformers_serve, 1)])
def test_the_first_run_ends_with_a_report_and_asks_nothing_twice(
    server: Callable[[int], list[str]], ends: int, tmp_path: Path, esc_eval: EscEval
) -> None:
    config = yaml.safe_load((CONFIGS / "eval" / "api.yaml").read_text())
    config |= {"exchanges": 1, "limit": 1, "languages": ["en"], "gold": config["gold"] | {"limit": 2}, "out": "run"}
    Path("api.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with up(server(port), port, tmp_path / "server.log") as url:
        endpoint = {"base_url": url, "model": str(places.materialise())}  # transformers takes no other name than its folder
        spec = {"name": "smollm2", "endpoint": endpoint, "sampling": {"temperature": 0.0, "max_tokens": 96}}
        Path("smollm2.yaml").write_text(yaml.safe_dump(spec))
        command = ("run", "--config", "api.yaml", "--model", "smollm2.yaml")
        code, err = esc_eval(*command)
        assert code == ends and ("no verdict of the judge smollm2 can be read" in err) == bool(ends), err
    verdicts = [
        json.loads(line) for name in ("", "gold_") for line in Path(f"run/{name}judgements.jsonl").read_text().splitlines()
    ]
    assert len(verdicts) == (4 + 2) * 7 and Path("run/report.html").exists() and Path("run/agreement.json").exists()
    assert {verdict["value"] is None for verdict in verdicts} == {bool(ends)}
    assert esc_eval(*command) == (ends, err), "the server is gone, and nothing is asked"
