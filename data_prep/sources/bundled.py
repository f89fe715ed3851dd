"""The sample corpora that this repository brings: written for it, in the form of our own records."""

from __future__ import annotations

from core.records import RolePlay, SupportDialogue
from core.rows import Source, by_row

SUPPORT = Source(
    name="bundled_support",
    about="sample support dialogues with their seekers' cards, English and Chinese, written for this repository",
    kind="support",
    languages=("en", "zh"),
    files=("support_en.jsonl", "support_zh.jsonl"),
    where="data_prep/bundled",
    licence="this repository's",
    paper="written for this repository",
    read=by_row(lambda value, _: SupportDialogue.model_validate(value)),
)
ROLE_PLAY = Source(
    name="bundled_role_play",
    about="sample role-play dialogues with invented characters, English and Chinese, written for this repository",
    kind="role_play",
    languages=("en", "zh"),
    files=("role_play_en.jsonl", "role_play_zh.jsonl"),
    where="data_prep/bundled",
    licence="this repository's",
    paper="written for this repository",
    read=by_row(lambda value, _: RolePlay.model_validate(value)),
)
SOURCES = (SUPPORT, ROLE_PLAY)
