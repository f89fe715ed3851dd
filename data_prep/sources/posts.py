"""What the single-turn corpora share: a post, and the first of its replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from core.records import Language, Post
from core.rows import Row, Rows

SAME_PAIR = "pair already read"
FURTHER_REPLY = "further reply to a post already read"
EMPTY = "post without text"


@dataclass(frozen=True)
class Pair:
    """A post and one reply to it (None where nobody replied), with the corpus's ids of both."""

    post_id: str
    reply_id: str
    text: str
    reply: str | None


def first_replies(source: str, language: Language, found: Iterable[tuple[Row, Pair]], rows: Rows) -> Iterator[Post]:
    """One `Post` for every post id, with the reply of its first row; the other rows are dropped, each with its reason."""
    seen: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    for row, pair in found:
        key = (pair.post_id, pair.reply_id)
        text = pair.text.strip()
        if key in pairs:
            rows.drop(row, SAME_PAIR)
        elif pair.post_id in seen:
            rows.drop(row, FURTHER_REPLY)
        elif not text:
            rows.drop(row, EMPTY)
        else:
            seen.add(pair.post_id)
            item = post(row, rows, source, pair.post_id, language, text, pair.reply)
            if item is not None:
                yield item
        pairs.add(key)


def post(
    row: Row, rows: Rows, source: str, source_id: str, language: Language, text: str, reply: str | None = None
) -> Post | None:
    """A `Post` whose id is `source-source_id`; a blank reply is none, a blank text drops the row. None, and a malformed drop,
    where the row's values do not fit the record."""
    if not text.strip():
        rows.drop(row, EMPTY)
        return None
    return rows.record(
        Post,
        row,
        id=f"{source}-{source_id}",
        language=language,
        source=source,
        source_id=source_id,
        text=text.strip(),
        reply=(reply or "").strip() or None,
    )
