"""Psych8K (Liu et al. 2023, ChatCounselor): question-answer pairs that GPT-4 made from transcripts of counselling sessions.

Checked: the file's name, 8,187 pairs, gated access, and that public code reads a JSON list of {instruction, input, output} from
it. Not checked: the file itself, because access has to be granted. `instruction` is the same task description throughout and
is no part of the post.
"""

from __future__ import annotations

from typing import Any

from core.records import Post
from core.rows import CorpusReader, RowModel, by_row
from data_prep.sources.posts import post


class _Row(RowModel):
    input: str
    output: str = ""


def _item(value: Any, source_id: str) -> Post:
    """A pair; the corpus is one file, so that its position says which."""
    raw = _Row.model_validate(value)
    return post("psych8k", source_id.rpartition("/")[2], "en", raw.input, raw.output)


READERS = {"psych8k": by_row(_item, CorpusReader.json_list)}
