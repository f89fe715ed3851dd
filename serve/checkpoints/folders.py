"""Model folders handled as bytes: safetensors headers, tensors moved from file to file without loading them, and folders that
are whole or not there at all."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from core.errors import UserError
from core.files import digest, read_object, sha256_file
from serve.checkpoints.embedded import build_once, manifest_problem

Rows = npt.NDArray[np.uint8]
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file: its dtype as the file spells it (`BF16`), its shape, and the byte where it starts."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    def rows(self) -> Rows:
        """Its bytes as [first dimension, bytes of one row], mapped from the file: only pages that are touched are read."""
        row = ITEM_BYTES[self.dtype] * math.prod(self.shape[1:])
        return np.memmap(self.file, np.uint8, "r", self.start, (self.shape[0], row))


@dataclass(frozen=True)
class Planned:
    """A tensor to write, and the function that gives its bytes ([first dimension, bytes of one row])."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: Callable[[], Rows]

    @property
    def size(self) -> int:
        """Its bytes."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a whole checkpoint folder (see `check_checkpoint`): those its index names, else all."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    return sorted({folder / shard for shard in read_object(index, "a safetensors index")["weight_map"].values()})


def stored_tensors(files: Iterable[Path]) -> dict[str, Stored]:
    """The tensors of whole safetensors files (see `check_checkpoint`) by name, read from their headers.

    Raises `UserError` for a name that two files have, a dtype that is not a float of 16 to 64 bits, and an empty tensor.
    """
    found: dict[str, Stored] = {}
    for path in files:
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header = orjson.loads(handle.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if name in found:
                raise UserError(f"{path}: {name} is also in {found[name].file.name}: remove the file that does not belong here")
            if entry["dtype"] not in ITEM_BYTES:
                raise UserError(
                    f"{path}: {name}: dtype {entry['dtype']} unsupported: only {', '.join(ITEM_BYTES)} (no quantised)"
                )
            if not math.prod(entry["shape"]) or not entry["shape"]:
                raise UserError(f"{path}: {name} is empty (shape {entry['shape']}): the file was saved from a sharded model")
            found[name] = Stored(path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
    return found


def write_tensors(path: Path, tensors: Sequence[Planned]) -> None:
    """A safetensors file, written tensor by tensor: in memory is never more than one of them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + tensor.size]}
        end += tensor.size
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)  # the data has to start at a multiple of eight
    with path.open("wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            handle.write(np.ascontiguousarray(tensor.rows()).data)


def folder_content(folder: Path) -> str:
    """One hash over what a model or adapter folder says: weights, configs, tokenizer."""
    files = [p for kind in ("*.safetensors", "*.json", "*.jinja", "*.model") for p in folder.glob(kind)]
    return digest([[path.name, sha256_file(path)] for path in sorted(files)])


def build_folder(dst: Path, src: Path, made_from: dict[str, Any], build: Callable[[Path], None]) -> bool:
    """Fill the folder `dst` by `build`, under a temporary name until it is whole; False when it is there already, unchanged.

    Raises `UserError`, and writes nothing, when `dst` holds anything else, or cannot be written.
    """
    dst = dst.absolute()

    def guarded(target: Path) -> None:
        try:
            build(target)
        except OSError as error:
            if error.errno is None:  # not the operating system's: transformers raises OSError for its own complaints
                raise
            raise UserError(f"cannot write {dst}: {error.strerror}; nothing of it is kept") from error

    try:
        dst.parent.mkdir(parents=True, exist_ok=True)
        if dst.is_dir() and not any(dst.iterdir()):
            dst.rmdir()
    except OSError as error:
        raise UserError(f"cannot write {dst}: {error.strerror}") from error
    if not os.access(dst.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {dst}: no permission to write in {dst.parent}")
    if dst.exists():
        problem = manifest_problem(dst, made_from) if dst.is_dir() else "not a folder"
        if problem is None:
            return False
        raise UserError(
            f"{dst} exists and is not the finished conversion of {src} ({problem}): remove it or give another folder"
        )
    build_once(dst, made_from, guarded, str(dst))
    return True
