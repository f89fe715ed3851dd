"""Psych8K (Liu et al. 2023, ChatCounselor): question-answer pairs that GPT-4 made from transcripts of counselling sessions.

Checked: the file's name, 8,187 pairs, gated access, and that public code reads a JSON list of {instruction, input, output} from
it. Not checked: the file itself, because access has to be granted. `instruction` is the same task description throughout and
is no part of the post.
"""

from __future__ import annotations

from typing import Any

from core.records import Post
from core.rows import CorpusReader, RowModel, Sampled, Source, by_row
from data_prep.sources.posts import post


class _Row(RowModel):
    input: str
    output: str = ""


def _item(value: Any, source_id: str) -> Post:
    """A pair; the corpus is one file, so that its position says which."""
    raw = _Row.model_validate(value)
    return post("psych8k", source_id.rpartition("/")[2], "en", raw.input, raw.output)


SOURCES = (
    Source(
        name="psych8k",
        about="Psych8K: 8,187 question-answer pairs from transcribed counselling sessions, English, single-turn",
        kind="post",
        languages=("en",),
        files=("Alexander_Street_shareGPT_2.0.json",),
        where="the hub dataset EmoCareAI/Psych8k (gated: ask for access there)",
        licence="CC BY-NC-SA 4.0 (as its page is quoted elsewhere; read it there when you ask for access)",
        paper="Liu et al. 2023",
        read=by_row(_item, CorpusReader.json_list),
        table5=Sampled("QA", "Human", 1000),  # appendix A.1 calls it multi-turn; the table, and the file, say QA
    ),
)
