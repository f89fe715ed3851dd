"""RoleBench (Wang et al. 2023): single-turn questions to a character, with replies in its manner; English and Chinese.

JSON lines `role`, `question`, `generated` (replies; the first is taken). Which language an item is in is read from its text
(question and reply together), because only the folder or file name tells it and the published layouts differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.records import RolePlay
from core.rows import CorpusItem, CorpusReader, Dropped, Malformed, RowModel
from data_prep.sources.play import language_of, play

_ASKING = {"en": "Someone", "zh": "提问者"}  # the corpus does not say who asks


class _Row(RowModel):
    role: str
    question: str
    generated: list[str]


def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every question with its first reply; `source_id` is `file/position`, with the folder where several are read."""
    root = Path(os.path.commonpath([file.parent for file in files]))
    for file in files:
        name = file.relative_to(root).with_suffix("").as_posix()
        for position, row in enumerate(reader.jsonl(file)):
            with reader.accounting(row):
                yield _item(row.value, f"{name}/{position}")


def _item(value: Any, source_id: str) -> RolePlay:
    raw = _Row.model_validate(value)
    reply = next(iter(raw.generated), "")
    language = language_of(raw.question + reply)
    character = raw.role.strip()
    if not raw.question.strip() or not reply.strip() or language is None:
        raise Dropped("no question or no reply")
    if not character:
        raise Malformed("role: empty")
    said = [(_ASKING[language], raw.question), (character, reply)]
    return play(source="rolebench", source_id=source_id, language=language, character=character, said=said)


READERS = {"rolebench": read}
