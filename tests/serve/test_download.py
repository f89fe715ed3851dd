"""Checkpoints come before a server is started, and only when they fit: huggingface_hub itself, against a hub on loopback."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from serve.sizes import known_architecture
from tests.data_prep.test_fetch import COMMIT, Hub
from tests.vllm_parser import blind

pytestmark = [pytest.mark.slow, pytest.mark.skipif(blind(), reason="a GPU's packages without a GPU: nothing is planned here")]
_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)


class Models(Hub):
    """A hub that holds one model of 14B shape, whose weights are four bytes."""

    files: ClassVar = {
        "config.json": json.dumps((known_architecture("Qwen/Qwen1.5-14B-Chat") or ("", {}))[1]).encode(),
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"a pickle",
        "tokenizer.json": b"{}",
    }
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if self.command == "GET" and "/resolve/" in self.path:
            self.asked.append(self.path.split("?")[0].rsplit("/", 1)[1])
        super().do_GET()

    do_HEAD = do_GET


@pytest.fixture
def hub() -> Iterator[str]:
    Models.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


PLAN = """
import json, sys
from pathlib import Path
from core.errors import UserError
from core.machine import Machine
from serve.plan import plan_servers
from tests.serve.conftest import spec
gpus, commit = sys.argv[1:]
one = spec("m", "org/fourteen", revision=commit, context_length=8192)
try:
    (plan,) = plan_servers([one], Path("logs"), machine=Machine.parse(gpus))
except UserError as error:
    print(json.dumps({"error": str(error)}))
else:
    print(json.dumps({"argv": plan.argv, "env": plan.env, "hub": plan.hub}))
"""


def planned(hub: str, home: Path, gpus: str, **more: str) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_HUB_CACHE")}
    environment = kept | {"HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"} | more
    command = [sys.executable, "-c", PLAN, gpus, COMMIT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_checkpoint_is_here_before_its_server_starts(hub: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    found = planned(hub, tmp_path, "80")
    folder = Path(found["argv"][found["argv"].index("--model") + 1])
    assert folder.is_relative_to(tmp_path) and (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert found["env"]["HF_HUB_OFFLINE"] == "1" and not found["hub"], "the server downloads nothing and needs no token"
    assert "--revision" not in found["argv"], "it is that commit's folder"
    assert sorted(Models.asked) == ["config.json", "model.safetensors", "tokenizer.json"], "each once, and no pickle"
    Models.asked.clear()
    again = planned("http://127.0.0.1:9", tmp_path, "80", HF_HUB_OFFLINE="1")
    assert again["argv"] == found["argv"] and Models.asked == [], "offline it is found in the cache"


def test_what_does_not_fit_is_refused_by_its_config_alone(hub: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    found = planned(hub, tmp_path, "24")
    assert found["error"].startswith("not enough memory on 1 × 24 GB for m:\n  m: weights 26.4")
    assert Models.asked == ["config.json"], "its weights were not downloaded"
