"""The embedded model as benchmarks serve it: one server, started for a block, whose prefix cache can be emptied."""

import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from core.files import CONFIGS
from core.specs import load_spec
from serve.launch import Servers
from serve.plan import plan_servers

NAME = "bench"


def write_spec(folder: Path, max_tokens: int, *extra_args: str, eager: bool = True, learnt: Sequence[str] = ()) -> Path:
    """A spec file of the embedded model with its own limit a reply, in a folder that may be new. Without `eager` the model is
    compiled: a longer start and faster steps, which is what a long run wants. `learnt`: prompt packs that it is asked in as if
    it had been trained in them."""
    settings: dict[str, Any] = yaml.safe_load((CONFIGS / "models" / "embedded.yaml").read_text())
    settings |= {"name": NAME, "sampling": {"temperature": 0.0, "max_tokens": max_tokens}, "learnt": list(learnt)}
    settings["serve"]["extra_args"] += extra_args
    settings["serve"]["eager"] = eager
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@contextmanager
def server(spec: Path) -> Iterator[str]:
    """A server of this spec; yields its base URL."""
    plans = plan_servers([load_spec(str(spec))], spec.parent / "logs")
    plans[0].env["VLLM_SERVER_DEV_MODE"] = "1"  # it takes /reset_prefix_cache then
    with Servers(plans) as servers:
        yield servers.endpoints[NAME]


def forget(url: str) -> None:
    """Empty the server's prefix cache: the next run must not profit from the one before."""
    request = urllib.request.Request(f"{url.removesuffix('/v1')}/reset_prefix_cache", method="POST")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        assert answer.status == 200, "the server did not empty its prefix cache"
