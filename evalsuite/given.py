"""What a Python program gives to a run (cards or profiles, dialogues, its own rubric), and gets back: records that convert to a
data frame of pandas or polars."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

import yaml
from pydantic import BaseModel, ValidationError

from core.errors import UserError
from core.files import problems_in, write_text
from core.people_tables import Faults
from core.records import Dialogue, RoleCard
from core.rows import CorpusRow
from core.rubrics import Rubric
from data_prep.cards import own_cards
from data_prep.dialogue_files import dialogues_of
from data_prep.profiles import Profile

T = TypeVar("T")
Library = Literal["pandas", "polars"]
_LIBRARIES: tuple[Library, ...] = ("pandas", "polars")
People = str | Path | Iterable[Any]
"""A file or `bundled`; records, or dicts with their fields; or a data frame of pandas or polars with such columns."""


def given_people(cards: Any, profiles: bool, settings: Mapping[str, Any]) -> list[Any]:
    """Role cards, or `profiles`, from records, dicts or a data frame. Raises `UserError` with all errors and their places."""
    rows = _rows(cards)
    if not rows:
        raise UserError(f"{'profiles' if profiles else 'cards'}: none given")
    if profiles:
        return [row if isinstance(row, Profile) else _record(Profile, row, f"profiles[{n}]") for n, row in enumerate(rows)]
    if all(isinstance(row, RoleCard) for row in rows):
        return rows
    with Faults() as faults:
        dicts = [row.model_dump() if isinstance(row, RoleCard) else row for row in rows]
        places = [CorpusRow(f"cards[{n}]", row) for n, row in enumerate(dicts)]
        return own_cards(places, "cards", faults, only_language(settings), {})


def given_dialogues(dialogues: Any, settings: Mapping[str, Any]) -> list[Dialogue]:
    """Dialogues from records, or dicts in any form of `data_prep.dialogue_files`. Raises `UserError` as for cards."""
    rows = [(f"dialogues[{n}]", row) for n, row in enumerate(_rows(dialogues))]
    if not rows:
        raise UserError("dialogues: none given")
    return dialogues_of(rows, only_language(settings), settings.get("roles"), "own").dialogues


def only_language(settings: Mapping[str, Any]) -> str | None:
    """The language of records that name none: that of the settings, if they have exactly one."""
    languages: Sequence[str] = settings.get("languages") or ()
    return languages[0] if len(languages) == 1 else None


def with_rubric(settings: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The settings of a run, with a `Rubric`, or a dict of its fields, replaced by a file in `folder`."""
    rubric = settings.get("rubric")
    if isinstance(rubric, Mapping):
        rubric = _record(Rubric, rubric, "rubric")
    if not isinstance(rubric, Rubric):
        return settings
    path = folder / "rubric.yaml"
    write_text(path, yaml.safe_dump(rubric.model_dump(mode="json"), allow_unicode=True, sort_keys=False))
    return {**settings, "rubric": str(path)}


def _record(model: type[BaseModel], value: Any, where: str) -> Any:
    """A value as a record. Raises `UserError` with all its errors."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UserError("\n".join(f"{where}: {problem}" for problem in problems_in(error))) from None


def _rows(records: Any) -> list[Any]:
    """The rows of a data frame as dicts, or the items of any other iterable; a single record or dict is a row."""
    if isinstance(records, Mapping | BaseModel):
        return [records]
    if not hasattr(records, "__iter__"):
        raise UserError(f"a list of records or dicts, a data frame or a file is needed, not {type(records).__name__}")
    if hasattr(records, "to_dicts"):  # polars
        return list(records.to_dicts())
    if hasattr(records, "iterrows"):  # pandas
        return list(records.astype(object).where(records.notna(), None).to_dict("records"))
    return list(records)


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
        """A DataFrame with one row per record, of the named library or else of the first one installed: pandas, polars. Objects
        within a record become columns such as `usage.calls`."""
        name = next((choice for choice in ([library] if library else _LIBRARIES) if importlib.util.find_spec(choice)), None)
        if name is None:
            raise UserError(
                f"frame() needs {library or 'pandas or polars'}, not installed here: pip install {library or 'pandas'}"
            )
        rows = [self._row(record) for record in self._records]
        frames = importlib.import_module(name)
        return frames.json_normalize(rows, **({"strict": False, "infer_schema_length": None} if name == "polars" else {}))
