"""SimPsyDial's profiles (Qiu and Lan 2024, interactive agents): posts of Chinese help seekers, one string each."""

from __future__ import annotations

from typing import Any

from core.records import Post
from core.rows import CorpusReader, Malformed, by_row
from data_prep.sources.posts import post


def _item(value: Any, source_id: str) -> Post:
    if not isinstance(value, str):
        raise Malformed(f"expected a string, found {type(value).__name__}")
    return post("simpsydial", source_id, "zh", value)


READERS = {"simpsydial": by_row(_item, CorpusReader.json_list)}
