"""Our own forms, for datasets without a reader of their own: choices, scales, documents to be summarised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from core.records import Whole
from core.rows import CorpusReader, RowModel
from evalsuite.papers.ecdbench.forms.reading import Doc, ReadForm, Text, in_files, jsonl_of, parsed


class _Choices(RowModel):
    """`gold` is the right choice, or several, from 0."""

    text: Text
    choices: Annotated[list[Text], Field(min_length=2)]
    gold: Whole | Annotated[list[Whole], Field(min_length=1)]


class _Statement(RowModel):
    """A statement of a scale: `points` has how many points each choice gives."""

    text: Text
    choices: Annotated[list[Text], Field(min_length=2)]
    points: list[Annotated[Whole, Field(ge=0)]]


class _Document(RowModel):
    text: Annotated[str, Field(pattern=r"\S")]
    language: Literal["en", "zh"] = "zh"


def _items(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row, raw in parsed(_Choices, in_files(reader.jsonl, files), reader):
        gold = raw.gold if isinstance(raw.gold, list) else [raw.gold]
        if not all(0 <= one < len(raw.choices) for one in gold):
            reader.malformed(row, f"gold: expected 0 to {len(raw.choices) - 1}, found {raw.gold}")
        yield {"text": raw.text, "choices": raw.choices, "gold": gold}


def _scale(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Statements that give no points whatever is chosen (fillers) are asked of nobody."""
    for row, raw in parsed(_Statement, in_files(reader.jsonl, files), reader):
        if len(raw.points) != len(raw.choices):
            reader.malformed(row, f"points: expected {len(raw.choices)}, one a choice, found {len(raw.points)}")
        if not any(raw.points):
            reader.step.drop("gives no points", row.where)
            continue
        best = [place for place, points in enumerate(raw.points) if points == max(raw.points)]
        yield {"text": raw.text, "choices": raw.choices, "points": raw.points, "gold": best}


OWN: dict[str, ReadForm] = {"documents": jsonl_of(_Document), "items": _items, "scale": _scale}
