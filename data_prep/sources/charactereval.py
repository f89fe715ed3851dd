"""CharacterEval (Tu et al., ACL 2024): dialogues from Chinese novels and scripts, up to where a character is to reply.

`test_data.jsonl` is one JSON list despite its name; its `context` is a text with an utterance a line, `name：words`, and lines
without a name go on with the utterance before. Profiles stand beside it in `character_profiles.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.records import RolePlay, Whole
from core.rows import CorpusItem, CorpusReader, Malformed, RowModel
from data_prep.sources.play import play, profile

PROFILES = "character_profiles.json"
PERSONA = 600  # characters
_SPEAKER = re.compile(r"\s*([^：:\n（）()，。！？“”\"]{1,20})[：:]\s*(.*)")


class _Row(RowModel):
    id: Whole | str
    role: str
    context: str


def utterances(context: str) -> list[tuple[str, str]]:
    """(speaker, words) of a context; a line without a speaker belongs to the utterance before, the first one to nobody ("")."""
    result: list[tuple[str, str]] = []
    for line in context.splitlines():
        match = _SPEAKER.fullmatch(line)
        if match:
            result.append((match[1].strip(), match[2]))
        elif result:
            result[-1] = (result[-1][0], f"{result[-1][1]}\n{line.strip()}")
        elif line.strip():
            result.append(("", line.strip()))
    return result


def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every dialogue; `source_id` is the corpus's id. Without the profiles beside it, personas stay empty."""
    for file in files:
        profiles = _profiles(file.with_name(PROFILES), reader)
        seen: set[str] = set()
        for row in reader.json_list(file):
            with reader.accounting(row):
                item = _item(row.value, profiles)
                if item.id in seen:
                    raise Malformed(f"id: {item.source_id} is there twice")
                seen.add(item.id)
                yield item


def _profiles(path: Path, reader: CorpusReader) -> dict[str, Mapping[str, Any]]:
    if not path.is_file():
        return {}
    value = reader.json(path)
    if not isinstance(value, dict) or not all(isinstance(fields, dict) for fields in value.values()):
        raise UserError(f"{path}: expected an object of profiles (objects) by character")
    return value


def _item(value: Any, profiles: Mapping[str, Mapping[str, Any]]) -> RolePlay:
    raw = _Row.model_validate(value)
    character = raw.role.strip()
    if not character:
        raise Malformed("role: empty")
    return play(
        source="charactereval",
        source_id=str(raw.id),
        language="zh",
        character=character,
        said=utterances(raw.context),
        persona=profile(profiles.get(character, {}), PERSONA, "：", "；"),
    )


READERS = {"charactereval": read}
