"""SmileChat (Qiu et al. 2023, SMILE): Chinese multi-turn dialogues that ChatGPT wrote from PsyQA's single turns.

Published as a folder of `<n>.json`, each a list of {role: client|counselor, content}; also read as JSON lines of {id, dialog}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from pydantic import ConfigDict

from core.files import load_json, read_bytes
from core.records import Role, SupportDialogue
from core.rows import Malformed, RowModel, by_row
from data_prep.sources.support import by_role, support_dialogue

_ROLES: dict[str, Role] = {"client": "seeker", "counselor": "supporter"}


class _Utterance(RowModel):
    role: str
    content: str


class _Row(RowModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    dialog: list[_Utterance]


def _content(file: Path) -> dict[str, Any]:
    """A published file, which holds one dialogue, in the form of a row."""
    try:
        return {"id": file.stem, "dialog": load_json(read_bytes(file, "corpus file"))}
    except orjson.JSONDecodeError as error:
        raise Malformed(f"malformed JSON: {error.msg} (line {error.lineno})") from None


def _item(value: Any, _: str) -> SupportDialogue:
    """A dialogue; `source_id` is the number of its file."""
    raw = _Row.model_validate(value)
    return support_dialogue("smile", raw.id, "zh", by_role(((u.role, u.content) for u in raw.dialog), _ROLES))


READERS = {"smile": by_row(_item, lambda reader, file: reader.documents(file, _content))}
