"""Psych8K (Liu et al. 2023, ChatCounselor): question-answer pairs that GPT-4 made from transcripts of counselling sessions.

Checked: the file's name, 8,187 pairs, gated access, and that public code reads a JSON list of {instruction, input, output} from
it. Not checked: the file itself, because access has to be granted. `instruction` is the same task description throughout and
is no part of the post.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from core.rows import Item, Raw, Rows, Sampled, Source
from data_prep.sources.posts import post


class _Row(Raw):
    input: str
    output: str = ""


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """One `Post` a pair; `source_id` is its position."""
    for file in files:
        for position, row in enumerate(rows.json_list(file)):
            raw = rows.parse(_Row, row)
            item = post(row, rows, "psych8k", f"{position}", "en", raw.input, raw.output) if raw else None
            if item is not None:
                yield item


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
        read=read,
        table5=Sampled("QA", "Human", 1000),  # appendix A.1 calls it multi-turn; the table, and the file, say QA
    ),
)
