"""SmileChat (Qiu et al. 2023, SMILE): Chinese multi-turn dialogues that ChatGPT wrote from PsyQA's single turns.

Published as a folder of `<n>.json`, each a list of {role: client|counselor, content}; also read as JSON lines of {id, dialog}.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
from pydantic import ConfigDict

from core.files import load_json, read_bytes
from core.records import Role
from core.rows import CorpusItem, CorpusReader, CorpusRow, Malformed, RowModel
from data_prep.sources.support import by_role, support_dialogue

_ROLES: dict[str, Role] = {"client": "seeker", "counselor": "supporter"}


class _Utterance(RowModel):
    role: str
    content: str


class _Row(RowModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    dialog: list[_Utterance]


def _rows(file: Path, reader: CorpusReader) -> Iterator[CorpusRow]:
    """The rows of a JSON-lines file, or the one dialogue of a JSON file in the form of such a row."""
    if file.suffix == ".jsonl":
        yield from reader.jsonl(file)
        return
    row = reader.row(str(file), None)
    with reader.accounting(row):
        try:
            yield CorpusRow(row.where, {"id": file.stem, "dialog": load_json(read_bytes(file, "corpus file"))})
        except orjson.JSONDecodeError as error:
            raise Malformed(f"malformed JSON: {error.msg} (line {error.lineno})") from None


def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every dialogue; `source_id` is the number of its file."""
    for row in (row for file in files for row in _rows(file, reader)):
        with reader.accounting(row):
            raw = _Row.model_validate(row.value)
            yield support_dialogue("smile", raw.id, "zh", by_role(((u.role, u.content) for u in raw.dialog), _ROLES))


READERS = {"smile": read}
