"""SocialBench (Chen et al. 2024): role-play dialogues with a multiple-choice question; English and Chinese.

One JSON list: `dialogue` (`from`, `value`), `instruction`, `choices`, `meta.lang`. No field names a character. The items on
emotion ask how whoever speaks last feels, so that speaker is the character; the other items hold one line, an exam question,
and are dropped. English texts keep a few signs of Windows-1252 as control characters, which are mended.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from core.records import Language, RolePlay
from core.rows import Dropped, Malformed, RowModel, by_row
from data_prep.sources.play import play

_UNDEFINED = {0x81, 0x8D, 0x8F, 0x90, 0x9D}  # mean nothing in Windows-1252
_SIGNS = {code: "" if code in _UNDEFINED else bytes([code]).decode("cp1252") for code in range(0x80, 0xA0)}


class _Said(RowModel):
    speaker: str = Field(validation_alias="from")
    value: str


class _Meta(RowModel):
    lang: Language


class _Row(RowModel):
    dialogue: list[_Said]
    meta: _Meta


def mended(text: str) -> str:
    """Text in which the control characters 0x80 to 0x9f are the signs that Windows-1252 means by them."""
    return text.translate(_SIGNS)


def _item(value: Any, source_id: str) -> RolePlay:
    """Every dialogue of two lines or more; `source_id` is `file stem/position`, because the corpus has no ids."""
    raw = _Row.model_validate(value)
    said = [(line.speaker.strip(), mended(line.value)) for line in raw.dialogue]
    if len(said) < 2:
        raise Dropped("single line")
    character = said[-1][0]
    if not character:
        raise Malformed("dialogue: the last line has no speaker")
    return play(source="socialbench", source_id=source_id, language=raw.meta.lang, character=character, said=said)


READERS = {"socialbench": by_row(_item)}
