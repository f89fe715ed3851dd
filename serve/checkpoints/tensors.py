"""Safetensors files, read and written tensor by tensor: none is ever loaded whole, and neither torch nor numbers of 16 bits are
needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from safetensors import SafetensorError, safe_open

from core.errors import UserError
from core.files import read_object

Rows = npt.NDArray[np.uint8]
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# A number of which all these bits are set is infinite or NaN.
EXPONENTS = {"F64": 0x7FF0000000000000, "F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
_BLOCK = 1 << 20  # bytes that are looked at together
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
class PlannedTensor:
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
    """The tensors of whole safetensors files (see `check_checkpoint`) by name, in the order of their bytes.

    Raises `UserError` for a name that two files have, a dtype that is not a float of 16 to 64 bits, and an empty tensor.
    """
    tensors: dict[str, Stored] = {}
    for path in files:
        start = path.stat().st_size
        with safe_open(path, framework="numpy") as file:
            for name in reversed(file.offset_keys()):  # without gaps, up to the end of the file
                shape, dtype = tuple(file.get_slice(name).get_shape()), file.get_slice(name).get_dtype()
                if name in tensors:
                    other = tensors[name].file.name
                    raise UserError(f"{path}: {name} is also in {other}: remove the file that does not belong here")
                if dtype not in ITEM_BYTES:
                    raise UserError(f"{path}: {name}: dtype {dtype} unsupported: only {', '.join(ITEM_BYTES)} (no quantised)")
                if not shape or 0 in shape:
                    raise UserError(f"{path}: {name} is empty (shape {list(shape)}): the file was saved from a sharded model")
                start -= ITEM_BYTES[dtype] * math.prod(shape)
                tensors[name] = Stored(path, dtype, shape, start)
    return dict(reversed(tensors.items()))


def write_tensors(path: Path, tensors: Sequence[PlannedTensor]) -> None:
    """A safetensors file, written tensor by tensor: in memory is never more than one of them.

    Raises `UserError` for a tensor that holds an infinite number or a NaN.
    """
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
            rows = np.ascontiguousarray(tensor.rows())
            if not is_finite(rows.reshape(-1), tensor.dtype):
                raise UserError(_diverged(Path(path.name), tensor.name, tensor.dtype))
            handle.write(rows.data)


def is_finite(content: Rows, dtype: str) -> bool:
    """Whether the bytes [n] of a tensor hold neither an infinite number nor a NaN."""
    bits = np.dtype(f"<u{ITEM_BYTES[dtype]}")
    mask = bits.type(EXPONENTS[dtype])
    blocks = (content[start : start + _BLOCK].view(bits) for start in range(0, len(content), _BLOCK))
    return not any(((block & mask) == mask).any() for block in blocks)


def check_finite(files: Iterable[Path], what: str) -> None:
    """Raise `UserError` for the first tensor of whole safetensors files that holds an infinite number or a NaN.

    Everything that scores, compares, merges, converts or serves weights asks here. A file is read once a process, at the speed
    of the disk. Tensors of other dtypes (quantised ones) are passed over.
    """
    for path in files:
        about = path.stat()
        if (problem := _not_finite(path.absolute(), about.st_size, about.st_mtime_ns)) is not None:
            raise UserError(f"{what} refused: {problem}")


@lru_cache(maxsize=4096)
def _not_finite(path: Path, size: int, changed: int) -> str | None:
    with path.open("rb") as handle:
        start = 8 + int.from_bytes(handle.read(8), "little")
        header = orjson.loads(handle.read(start - 8))
    content = np.memmap(path, np.uint8, "r", start) if size > start else np.empty(0, np.uint8)
    for name, tensor in header.items():
        if tensor.get("dtype") in EXPONENTS and not is_finite(content[slice(*tensor["data_offsets"])], tensor["dtype"]):
            return _diverged(path, name, tensor["dtype"])
    return None


def _diverged(path: Path, name: str, dtype: str) -> str:
    return f"{path}: {name} holds infinite or undefined numbers ({dtype}): the training diverged, or the file is damaged"


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
    """What is wrong with a safetensors file, by its header alone: that says how long the file has to be."""
    try:
        with safe_open(path, framework="numpy"):
            return None
    except SafetensorError as error:
        return f"is cut off or damaged ({str(error).removeprefix('Error while deserializing header: ')})"
