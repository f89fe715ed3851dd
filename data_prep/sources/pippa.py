"""PIPPA (Gosling et al. 2023): people's chats with characters of their own making, English, multi-turn.

The published form, checked against the dataset's page and loader on the hub (no copy of the corpus was at hand, so the
reader has met only rows written for its tests): JSON lines `pippa_deduped.jsonl` (16,832 chats; `pippa.jsonl`, about 26,000,
has the same fields) with `bot_name`, `bot_description`, `bot_definitions`, `bot_greeting`, `categories` (a list or null) and
`conversation`, a list of `message` and `is_human`. Not checked: which category names occur.

The hub marks the corpus as not for all audiences. Chats of a character with an NSFW category are left out, and so are chats
with sexual words, because the categories are the makers' own. Both are coarse: look at what is left before training on it.
"""

from __future__ import annotations

import re
from typing import Any

from core.records import RolePlay
from core.rows import Dropped, Malformed, RowModel, by_row
from data_prep.sources.play import filled, play, shortened

PERSONA = 800  # characters
_PARTNER = "You"
_NSFW = re.compile(r"nsfw|adult|erotic|18\s*\+", re.IGNORECASE)
_SEXUAL = re.compile(
    r"\b(?:sex(?:y|ual\w*)?|naked|nude\w*|erotic\w*|moan\w*|orgasm\w*|horny|lewd|aroused|breasts?|nipples?|penis|vagina|cum|rap(?:e|ed|ing))\b",
    re.IGNORECASE,
)


class _Said(RowModel):
    message: str
    is_human: bool


class _Row(RowModel):
    bot_name: str
    bot_description: str | None = None
    bot_definitions: str | None = None
    categories: list[str] | None = None
    conversation: list[_Said]


def _item(value: Any, source_id: str) -> RolePlay:
    """Every chat; `source_id` is `file stem/position`, because a character's id stands on many chats."""
    raw = _Row.model_validate(value)
    character = raw.bot_name.strip()
    if not character:
        raise Malformed("bot_name: empty")
    about = (raw.bot_description or "").strip() or (raw.bot_definitions or "").strip()
    if any(_NSFW.search(category) for category in raw.categories or ()):
        raise Dropped("a category marked NSFW")
    if _SEXUAL.search(about) or any(_SEXUAL.search(line.message) for line in raw.conversation):
        raise Dropped("sexual words")
    partner = _PARTNER if character != _PARTNER else "Partner"
    return play(
        source="pippa",
        source_id=source_id,
        language="en",
        character=character,
        said=[(partner if line.is_human else character, filled(line.message, character)) for line in raw.conversation],
        persona=filled(shortened(about, PERSONA), character),
    )


READERS = {"pippa": by_row(_item)}
