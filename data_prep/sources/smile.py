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
from core.rows import Item, Raw, Row, Rows, Sampled, Source
from data_prep.sources.support import by_role, support_dialogue

_ROLES: dict[str, Role] = {"client": "seeker", "counselor": "supporter"}


class _Utterance(Raw):
    role: str
    content: str


class _Row(Raw):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    dialog: list[_Utterance]


def _found(file: Path, rows: Rows) -> Iterator[Row]:
    """The rows of a JSON-lines file, or the one dialogue of a JSON file in the form of such a row."""
    if file.suffix == ".jsonl":
        yield from rows.jsonl(file)
        return
    row = rows.unit(str(file), None)
    try:
        yield Row(row.where, {"id": file.stem, "dialog": load_json(read_bytes(file, "corpus file"))})
    except orjson.JSONDecodeError as error:
        rows.malformed(row, f"malformed JSON: {error.msg} (line {error.lineno})")


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """Every dialogue; `source_id` is the number of its file."""
    for file in files:
        for row in _found(file, rows):
            raw = rows.parse(_Row, row)
            turns = by_role(rows, row, ((u.role, u.content) for u in raw.dialog), _ROLES) if raw else None
            if raw is None or turns is None:
                continue
            item = support_dialogue(rows, row, "smile", raw.id, "zh", turns)
            if item is not None:
                yield item


SOURCES = (
    Source(
        name="smile",
        about="SmileChat: 55,165 dialogues that ChatGPT wrote from PsyQA, Chinese, multi-turn",
        kind="support",
        languages=("zh",),
        files=("data/[0-9]*.json", "[0-9]*.json", "*.jsonl"),
        where="GitHub qiuhuachuan/smile (data)",
        licence="CC0 1.0",
        paper="Qiu et al. 2023",
        read=read,
        table5=Sampled("MD", "ChatGPT", 1000),
    ),
)
