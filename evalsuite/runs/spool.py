"""Finished dialogues and their verdicts, on disk until their run ends: only dialogues in flight are in memory."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel

from core.errors import UserError
from core.records import Dialogue, Judgement

R = TypeVar("R", bound=BaseModel)


Place = tuple[int, int]  # offset and length of a record in the file, in bytes


class Piece(NamedTuple):
    """The places of a dialogue, of its verdicts on the whole, and of those on parts."""

    dialogue: Place
    whole: Sequence[Place]
    parts: Sequence[Place]


class Spool:
    """An unnamed file in a folder, which disappears once it is closed. Raises `UserError` if it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as it is read)
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
            self._file.seek(begin)  # this flushes what was written
            return self._file.read(length)
        except OSError as error:
            raise self._problem("read in", error) from None

    def _problem(self, what: str, error: OSError) -> UserError:
        return UserError(f"cannot {what} {self._folder}: {error.strerror or error}")


class Records(Generic[R]):
    """Records of a spool, read anew in each iteration."""

    def __init__(self, model: type[R], spool: Spool, places: Sequence[Place]) -> None:
        self._model, self._spool, self._places = model, spool, places

    def lines(self) -> Iterator[bytes]:
        """The records as lines of `core.files.write_jsonl`."""
        return map(self._spool.read, self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[R]:
        return map(self._model.model_validate_json, self.lines())


class Written(Records[R]):
    """Records in files of a run."""

    def __init__(self, model: type[R], paths: Sequence[Path]) -> None:
        self._model, self._paths = model, paths

    def lines(self) -> Iterator[bytes]:
        for path in self._paths:
            with path.open("rb") as handle:
                yield from (line.removesuffix(b"\n") for line in handle)

    def __len__(self) -> int:
        return sum(1 for _ in self.lines())
