"""Finished dialogues and their verdicts, on disk until their run ends: only dialogues in flight are in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel

from core.errors import UserError
from core.records import Dialogue, Judgement

R = TypeVar("R", bound=BaseModel)


Place = tuple[int, int]  # where a record begins in the file, and its length


class Piece(NamedTuple):
    """The places of a dialogue's records: the dialogue, its verdicts on the whole, and those on parts."""

    dialogue: Place
    whole: Sequence[Place]
    parts: Sequence[Place]


class Spool:
    """A file without a name in a folder: it is gone when nobody reads it any more. Raises `UserError` where the folder cannot
    be written into, or has no room left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (as long as anybody reads it)
        except OSError as error:
            raise self._problem("write into", error) from None
        self._end = 0

    def keep(self, dialogue: Dialogue, judgements: Sequence[Judgement]) -> Piece:
        """Write a finished dialogue and its verdicts."""
        whole = [judgement for judgement in judgements if judgement.turn is None]
        parts = [judgement for judgement in judgements if judgement.turn is not None]
        return Piece(self._write(dialogue), list(map(self._write, whole)), list(map(self._write, parts)))

    def _write(self, record: BaseModel) -> Place:
        text, begin = orjson.dumps(record.model_dump(mode="json")), self._end
        try:
            self._file.seek(begin)
            self._file.write(text)
        except OSError as error:
            raise self._problem("write into", error) from None
        self._end += len(text)
        return begin, len(text)

    def read(self, place: Place) -> bytes:
        """The record at a place."""
        begin, length = place
        try:
            self._file.seek(begin)  # what was written is written out by that
            return self._file.read(length)
        except OSError as error:
            raise self._problem("read in", error) from None

    def _problem(self, what: str, error: OSError) -> UserError:
        return UserError(f"cannot {what} {self._folder}: {error.strerror or error}")


class Records(Generic[R]):
    """Records of a spool, read again in every iteration."""

    def __init__(self, model: type[R], spool: Spool, places: Sequence[Place]) -> None:
        self._model, self._spool, self._places = model, spool, places

    def lines(self) -> Iterator[bytes]:
        """The records as `core.files.write_jsonl` has them."""
        return map(self._spool.read, self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[R]:
        return map(self._model.model_validate_json, self.lines())


class Written(Records[R]):
    """Records in the files of finished runs."""

    def __init__(self, model: type[R], paths: Sequence[Path]) -> None:
        self._model, self._paths = model, paths

    def lines(self) -> Iterator[bytes]:
        for path in self._paths:
            with path.open("rb") as handle:
                yield from (line.removesuffix(b"\n") for line in handle)

    def __len__(self) -> int:
        return sum(1 for _ in self.lines())
