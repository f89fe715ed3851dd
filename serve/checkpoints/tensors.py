"""Safetensors files: reading their headers, checking that all numbers are finite, and writing them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from safetensors import SafetensorError, safe_open

from core.errors import UserError
from core.files import read_object

# A number with all these bits set is infinite or NaN.
EXPONENTS = {"F64": 0x7FF0000000000000, "F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
_BITS = {"F64": np.uint64, "F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}
_BLOCK = 1 << 20  # bytes that are checked at a time
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file: its name, its dtype in the file's spelling (`BF16`), and its shape."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def load(self) -> Any:
        """The torch tensor."""
        with safe_open(self.file, framework="pt") as file:
            return file.get_tensor(self.name)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a complete checkpoint folder (see `check_checkpoint`): those in its index, else all."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    return sorted({folder / shard for shard in read_object(index, "a safetensors index")["weight_map"].values()})


def stored_tensors(files: Iterable[Path]) -> dict[str, Stored]:
    """The tensors of complete safetensors files (see `check_checkpoint`), by name. Only headers are read, without torch. Raises
    `UserError` for a name in two files, a dtype other than a float of 16 to 64 bits, and an empty tensor."""
    tensors: dict[str, Stored] = {}
    for path in files:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                shape, dtype = tuple(file.get_slice(name).get_shape()), file.get_slice(name).get_dtype()
                if name in tensors:
                    other = tensors[name].file.name
                    raise UserError(f"{path}: {name} is also in {other}: remove the file that does not belong here")
                if dtype not in EXPONENTS:
                    raise UserError(f"{path}: {name}: dtype {dtype} unsupported: only {', '.join(EXPONENTS)}, unquantised")
                if not shape or 0 in shape:
                    raise UserError(f"{path}: {name} is empty (shape {list(shape)}): the file was saved from a sharded model")
                tensors[name] = Stored(path, name, dtype, shape)
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write torch tensors to a safetensors file. Raises `UserError` for an infinite number or a NaN."""
    from safetensors.torch import save_file

    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(_diverged(Path(path.name), name, str(tensor.dtype).removeprefix("torch.")))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def check_finite(files: Iterable[Path], what: str) -> None:
    """Raise `UserError` for the first tensor of complete safetensors files with an infinite number or a NaN.

    Whatever scores, compares, merges, converts or serves weights calls this. A file is read once per process, at the speed of
    the disk. Tensors of other dtypes (quantised ones) are skipped.
    """
    for path in files:
        stat = path.stat()
        if (problem := _not_finite(path.absolute(), stat.st_size, stat.st_mtime_ns)) is not None:
            raise UserError(f"{what} refused: {problem}")


@lru_cache(maxsize=4096)
def _not_finite(path: Path, size: int, changed: int) -> str | None:
    with path.open("rb") as handle:
        start = 8 + int.from_bytes(handle.read(8), "little")
        header = orjson.loads(handle.read(start - 8))
    content = np.memmap(path, np.uint8, "r", start) if size > start else np.empty(0, np.uint8)
    for name, tensor in header.items():
        if (dtype := tensor.get("dtype")) in EXPONENTS:  # bits are compared, since numpy has no bf16
            bits, mask, (first, end) = _BITS[dtype], _BITS[dtype](EXPONENTS[dtype]), tensor["data_offsets"]
            blocks = (content[place : min(place + _BLOCK, end)].view(bits) for place in range(first, end, _BLOCK))
            if any(((block & mask) == mask).any() for block in blocks):
                return _diverged(path, name, dtype)
    return None


def _diverged(path: Path, name: str, dtype: str) -> str:
    return f"{path}: {name} contains infinite or undefined numbers ({dtype}): the training diverged, or the file is damaged"


def check_checkpoint(folder: Path, what: str) -> None:
    """Raise `UserError` unless a folder has a config and complete safetensors weights, by the lengths in their headers."""
    if not folder.is_dir():
        raise UserError(f"{what} is not a folder: {folder}")
    if not (folder / "config.json").is_file():
        raise UserError(f"{what} missing or half written: {folder} has no config.json")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
        if pickles:
            raise UserError(f"{what} refused: {pickles[0]} is a pickle, which can run code; convert it to safetensors")
        raise UserError(f"{what} missing or half written: {folder} has no *.safetensors")
    try:
        shards = weight_files(folder)
    except (UserError, KeyError, AttributeError, TypeError):
        raise UserError(f"{what} half written: {folder / INDEX} is not a safetensors index") from None
    for shard in shards:
        if not shard.is_file():
            raise UserError(f"{what} half written: {folder} lacks {shard.name}, which its index lists")
    for path in weights:
        if (problem := safetensors_problem(path)) is not None:
            raise UserError(f"{what} half written: {path} {problem}; copy or convert it again")


def safetensors_problem(path: Path) -> str | None:
    """What is wrong with a safetensors file according to its header, which states the file's length; None if nothing is."""
    try:
        with safe_open(path, framework="numpy"):
            return None
    except SafetensorError as error:
        return f"is cut off or damaged ({str(error).removeprefix('Error while deserializing header: ')})"
