"""Files of what a model is asked to summarise: LCSTS, CNewSum, VCSum. Documents are those of our own form `documents`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from core.errors import UserError
from core.files import read_text
from core.records import Whole
from core.rows import CorpusReader, RowModel
from evalsuite.papers.ecdbench.forms.reading import Doc, ReadForm, Text, in_files, parsed

LCSTS_ENTRY = re.compile(r"<doc id=(\d+)>(.*?)</doc>", re.S)
LCSTS_TEXT = re.compile(r"<short_text>\s*(.*?)\s*</short_text>", re.S)


class _Article(RowModel):
    article: Annotated[list[Text], Field(min_length=1)]


class _Segment(RowModel):
    context: Annotated[list[list[str]], Field(min_length=1)]
    speaker: list[Whole]


def _lcsts(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Entries that look like XML and are none (their numbers stand unquoted)."""
    for file in files:
        entries = LCSTS_ENTRY.findall(read_text(file, "data file"))
        if not entries:
            raise UserError(f"{file}: no <doc id=N> … </doc>")
        for number, entry in entries:
            row = reader.row(f"{file}: doc {number}", None)
            found = LCSTS_TEXT.search(entry)
            if found is None or not found[1]:
                reader.malformed(row, "short_text: missing")
            else:
                yield {"text": found[1], "language": "zh"}


def _cnewsum(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """An article as a list of its sentences."""
    for _, raw in parsed(_Article, in_files(reader.jsonl, files), reader):
        yield {"text": "".join(raw.article), "language": "zh"}


def _vcsum(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """A part of a meeting: what was said, turn by turn, and who said it."""
    for row, raw in parsed(_Segment, in_files(reader.jsonl, files), reader):
        if len(raw.speaker) != len(raw.context):
            reader.malformed(row, f"speaker: expected {len(raw.context)}, one a turn, found {len(raw.speaker)}")
        turns = [f"发言人{who}：{''.join(said)}" for who, said in zip(raw.speaker, raw.context, strict=True)]
        yield {"text": "\n".join(turns), "language": "zh"}


DOCUMENTS: dict[str, ReadForm] = {"cnewsum": _cnewsum, "lcsts": _lcsts, "vcsum": _vcsum}
