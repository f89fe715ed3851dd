"""MHP Reddit (Lahnala et al., Findings of ACL 2021): Reddit posts with replies by mental-health professionals and peers.

Checked: the paper's own repository gives post ids, comment ids, subreddits and author types, but no texts. The hub dataset
`lsy641/reddit_mhp` has texts, and its loading script reads JSON lists of {question, description, post_id, comment_id, answer,
topic}. Not checked: the data itself, and whether ESC-Eval, which says only "MHP Reddit", drew from that copy.
"""

from __future__ import annotations

from typing import Any

from core.rows import RowModel
from data_prep.sources.posts import PostReply, first_replies


class _Row(RowModel):
    post_id: str
    comment_id: str
    question: str
    description: str | None = None
    answer: str | None = None


def _pair(value: Any) -> PostReply:
    """A post's title and text with a reply. `mhp_full.json` repeats the three split files."""
    raw = _Row.model_validate(value)
    text = "\n".join(part for part in (raw.question.strip(), (raw.description or "").strip()) if part)
    return PostReply(raw.post_id, raw.comment_id, text, raw.answer)


READERS = {"mhp_reddit": first_replies("mhp_reddit", "en", _pair)}
