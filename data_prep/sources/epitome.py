"""EPITOME (Sharma et al., EMNLP 2020): Reddit posts with one reply each, rated on three mechanisms of empathy.

Three CSV files, one a mechanism, hold the same pairs in the same order, and a few pairs twice. Every row of all three is
counted: the first row of a post becomes the `Post`, its other rows are dropped as the same pair or as a further reply. The
white space of a few texts differs between the files; the file that comes first by name decides. (The ratings are no part of
a `Post`.)
"""

from __future__ import annotations

from typing import Any

from core.rows import CorpusReader, RowModel
from data_prep.sources.posts import PostReply, first_replies


class _Row(RowModel):
    sp_id: str
    rp_id: str
    seeker_post: str
    response_post: str


def _pair(value: Any) -> PostReply:
    raw = _Row.model_validate(value)
    return PostReply(raw.sp_id, raw.rp_id, raw.seeker_post, raw.response_post)


READERS = {"epitome": first_replies("epitome", "en", _pair, CorpusReader.csv)}
