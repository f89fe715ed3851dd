"""TRL 1.16 names vLLM up to 0.31, and a newer one is pinned: what its client asks of a policy's server is there."""

import inspect
import logging
import os
import re
import shlex
import subprocess
import sys

import pytest

from core.files import CONFIGS
from tests.train.test_configs import header
from tests.vllm_parser import server_parser

pytestmark = pytest.mark.slow
ROOT = CONFIGS.parent
RECIPE = CONFIGS / "train" / "esc_supporter.yaml"


def test_the_server_has_every_route_that_trls_client_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Started with the line in the recipe's head. TRL's module loads with all that it takes from vLLM."""
    caplog.set_level(logging.root.level)  # restored at the end: a package of vLLM 0.33's API server raises it to ERROR
    from trl.generation import vllm_client
    from vllm.entrypoints.launchers.app import build_app

    (line,) = [line for line in header(RECIPE) if "vllm serve" in line]
    words = shlex.split(line)
    monkeypatch.setenv(*words[words.index("VLLM_SERVER_DEV_MODE=1")].split("="))
    args = server_parser().parse_args(["--model", *words[words.index("serve") + 1 :]])
    there = {getattr(route, "path", "") for route in build_app(args, ("generate",)).routes}
    called = set(re.findall(r"\{self\.base_url\}(/\w[\w/]*)\"", inspect.getsource(vllm_client)))
    assert len(called) >= 10 and called <= there, sorted(called - there)


def test_weights_are_announced_and_sent_in_vllms_form() -> None:
    from trl.generation import vllm_client
    from vllm.distributed.weight_transfer import nccl_engine

    source = inspect.getsource(vllm_client.VLLMClient)
    init = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "packed": True}
    update = {"names": ["x"], "dtype_names": ["bfloat16"], "shapes": [[1]]}
    assert all(f'"{field}"' in source for field in init | update)
    nccl_engine.NCCLWeightTransferInitInfo(**init)
    nccl_engine.NCCLWeightTransferUpdateInfo(**update)
    inspect.signature(vllm_client.open_trainer_endpoint).bind(init)
    words = re.search(r"packed_nccl_broadcast_producer\((.*?)\n", source, re.DOTALL)
    assert words
    sent: dict[str, object] = {"iterator": iter([]), "group": None, "src": 0, "post_iter_func": None}
    assert all(f"{name}=" in source for name in sent)
    inspect.signature(vllm_client.packed_nccl_broadcast_producer).bind(**sent)


def test_what_trl_sets_on_import_does_not_reach_a_training_or_its_servers() -> None:
    """A warning to be ignored hides the others, and at log level ERROR a server does not say what its cache holds."""
    program = "import os, train.esc_supporter, trl; trl.GRPOTrainer; print(os.environ['VLLM_LOGGING_LEVEL'])"
    silent = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=silent, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0 and "TRL currently supports" not in done.stderr, done.stderr
    assert done.stdout.split()[-1] == "INFO"
