"""Records for Python programs: a sequence that converts to a data frame of pandas or polars."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

from pydantic import BaseModel

from core.errors import UserError

T = TypeVar("T")
Library = Literal["pandas", "polars"]
_LIBRARIES: tuple[Library, ...] = ("pandas", "polars")


class FrameRecords(Sequence[T], Generic[T]):
    """Typed records in order."""

    def __init__(self, records: Sequence[T], row: Callable[[T], Mapping[str, Any]]) -> None:
        self._records, self._row = tuple(records), row

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> FrameRecords[T]: ...
    def __getitem__(self, place: int | slice) -> T | FrameRecords[T]:
        return FrameRecords(self._records[place], self._row) if isinstance(place, slice) else self._records[place]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        kind = type(self._records[0]).__name__ if self._records else "record"
        return f"<{len(self)} × {kind}>"

    def frame(self, library: Library | None = None) -> Any:
        """A DataFrame with one row per record, of the named library or else of the first one installed: pandas, polars.

        Objects within a record become columns such as `usage.calls` and `condition.mode`. Raises `UserError` if the library is
        not installed.
        """
        name = library or next((choice for choice in _LIBRARIES if importlib.util.find_spec(choice)), None)
        if name not in _LIBRARIES or importlib.util.find_spec(name) is None:
            raise UserError(f"frame() needs {name or 'pandas or polars'}, not installed here: pip install {name or 'pandas'}")
        rows = [dict(_flat(self._row(record))) for record in self._records]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        data = {column: [row.get(column) for row in rows] for column in columns}
        frames = importlib.import_module(name)
        return frames.DataFrame(data, strict=False) if name == "polars" else frames.DataFrame(data)


def row_of(record: BaseModel) -> Mapping[str, Any]:
    """A record's fields as plain values."""
    return record.model_dump()


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, list(value) if isinstance(value, tuple) else value
