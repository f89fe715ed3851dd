"""SimPsyDial's profiles (Qiu and Lan 2024, interactive agents): posts of Chinese help seekers, one string each."""

from __future__ import annotations

from typing import Any

from core.records import Post
from core.rows import CorpusReader, Malformed, Source, by_row
from data_prep.sources.posts import post


def _item(value: Any, source_id: str) -> Post:
    if not isinstance(value, str):
        raise Malformed(f"expected a string, found {type(value).__name__}")
    return post("simpsydial", source_id, "zh", value)


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
        read=by_row(_item, CorpusReader.json_list),
    ),
)
