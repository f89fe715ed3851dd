"""`transformers serve` as one of our servers, for architectures that vLLM lacks: planned, launched and guarded as vLLM's is.

It has no options for a served name, a chat template or the sampling that a request leaves open, but serves what a hub cache
holds by the name that it has there. So each server gets a hub cache of its own with one model in it, called as the spec is. Its
files are links to the checkpoint's, but for two: the spec's chat template, and sampling without cuts. Neither torch nor
transformers is imported here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import cache_dir, digest, read_object, write_bytes, write_json
from core.machine import precision
from core.specs import ModelSpec
from serve.command import PORT, TRANSFORMERS

_COMMIT = "0" * 40  # a hub cache names what it holds by commit
_SAMPLING, _TEMPLATE = "generation_config.json", "chat_template.jinja"
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def hub_of(spec: ModelSpec, checkpoint: str) -> Path:
    """The hub cache of a spec's server. Raises `UserError` for a served name that a hub cache cannot hold."""
    name = spec.served_name()
    if not re.fullmatch(r"(?:\w(?:[\w.-]*\w)?/)?\w(?:[\w.-]*\w)?", name, re.ASCII) or re.search(r"--|\.\.", name):
        raise UserError(
            f"model {spec.name}: `transformers serve` knows a model by its name on the hub, and {name!r} cannot be one: set "
            "endpoint.model to letters and digits with single . _ - between them"
        )
    return cache_dir() / "transformers-serve" / digest([checkpoint, name, spec.template(), *_left(spec)], 16)


def make_hub(spec: ModelSpec, checkpoint: Path) -> Path:
    """The hub cache of a spec's server, with the checkpoint's folder as its one model."""
    hub = hub_of(spec, str(checkpoint))
    model = hub / f"models--{spec.served_name().replace('/', '--')}"
    snapshot, template = model / "snapshots" / _COMMIT, spec.template()
    own = {_SAMPLING, *([_TEMPLATE] if template else [])}
    try:
        snapshot.mkdir(parents=True, exist_ok=True)
        for file in checkpoint.iterdir():
            if file.is_file() and file.name not in own:
                with suppress(FileExistsError):
                    (snapshot / file.name).symlink_to(file.resolve())
    except OSError as error:
        raise UserError(f"cannot write the model cache {hub}: {error.strerror}; set ESC_EVAL_CACHE to another folder") from None
    if template:
        write_bytes(snapshot / _TEMPLATE, template.encode())
    write_json(snapshot / _SAMPLING, _sampling(checkpoint, bool(_left(spec))))
    write_bytes(model / "refs" / "main", _COMMIT.encode())
    return hub


def _left(spec: ModelSpec) -> list[str]:
    """A mark of a spec that leaves how replies are drawn to its checkpoint (paper mode)."""
    return ["left"] if spec.sampling.temperature is None else []


def _sampling(checkpoint: Path, left: bool) -> dict[str, Any]:
    """What a request leaves open: nothing is cut off, and temperature 0 is greedy. The checkpoint's own would cut (top_k, a
    repetition penalty), and one that says nothing would be greedy at any temperature. `left`: the checkpoint's own it is."""
    if left:
        return read_object(checkpoint / _SAMPLING, "a generation config") if (checkpoint / _SAMPLING).is_file() else {}
    tokens: dict[str, Any] = {}
    for name in ("config.json", _SAMPLING):  # the second knows more: a list of tokens that end a reply
        if (checkpoint / name).is_file():
            found = read_object(checkpoint / name, "a model's config")
            tokens |= {key: found[key] for key in _TOKENS if found.get(key) is not None}
    return {**tokens, "do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}


def argv(spec: ModelSpec, gpu: bool) -> list[str]:
    """The command line; see `transformers serve --help` for each flag."""
    options = spec.serve
    words = [sys.executable, "-m", TRANSFORMERS, "serve", spec.served_name(), "--host", "127.0.0.1", "--port", PORT]
    words += ["--dtype", precision(gpu)[0] if options.dtype == "auto" else options.dtype]
    if options.trust_remote_code:
        words += ["--trust-remote-code"]
    return [*words, *options.extra_args]


def environment(hub: Path, gpus: Sequence[str]) -> dict[str, str]:
    """What is added to the server's environment."""
    ours = {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "DO_NOT_TRACK": "1"}
    return ours | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
