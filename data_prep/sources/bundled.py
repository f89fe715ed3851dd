"""The sample corpora that this repository brings: written for it, in the form of our own records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from core.records import RolePlay, SupportDialogue
from core.rows import Item, Rows, Source


def _reader(model: type[SupportDialogue] | type[RolePlay]) -> Callable[[list[Path], Rows], Iterator[Item]]:
    def read(files: list[Path], rows: Rows) -> Iterator[Item]:
        for file in files:
            for row in rows.jsonl(file):
                item = rows.parse(model, row)
                if item is not None:
                    yield item

    return read


SUPPORT = Source(
    name="bundled_support",
    about="sample support dialogues with their seekers' cards, English and Chinese, written for this repository",
    kind="support",
    languages=("en", "zh"),
    files=("support_en.jsonl", "support_zh.jsonl"),
    where="data_prep/bundled",
    licence="this repository's",
    paper="written for this repository",
    read=_reader(SupportDialogue),
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
    read=_reader(RolePlay),
)
SOURCES = (SUPPORT, ROLE_PLAY)
