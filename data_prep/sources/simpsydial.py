"""SimPsyDial's profiles (Qiu and Lan 2024, interactive agents): posts of Chinese help seekers, one string each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from core.rows import Item, Rows, Source
from data_prep.sources.posts import post


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """One `Post` a string, without a reply; `source_id` is `file stem/position`."""
    for file in files:
        for position, row in enumerate(rows.json_list(file)):
            if not isinstance(row.value, str):
                rows.malformed(row, f"expected a string, found {type(row.value).__name__}")
            elif (item := post(row, rows, "simpsydial", f"{file.stem}/{position}", "zh", row.value)) is not None:
                yield item


SOURCES = (
    Source(
        name="simpsydial",
        about="SimPsyDial's profiles: 1,100 posts of help seekers, Chinese, single-turn, without replies",
        kind="post",
        languages=("zh",),
        files=("train.json", "test.json", "user_profiles/train.json", "user_profiles/test.json"),
        where="GitHub qiuhuachuan/interactive-agents (user_profiles)",
        licence="MIT",
        paper="Qiu and Lan 2024",
        read=read,
    ),
)
