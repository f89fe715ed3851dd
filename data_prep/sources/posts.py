"""What the single-turn corpora share: a post, and the first of its replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.records import Language, Post
from core.rows import CorpusReader, CorpusRow, Dropped, ReadCorpus

SAME_PAIR = "pair already read"
FURTHER_REPLY = "further reply to a post already read"
EMPTY = "post without text"


@dataclass(frozen=True)
class PostReply:
    """A post and one reply to it (None where nobody replied), with the corpus's ids of both."""

    post_id: str
    reply_id: str
    text: str
    reply: str | None


def first_replies(
    source: str,
    language: Language,
    pair_of: Callable[[Any], PostReply],
    rows: Callable[[CorpusReader, Path], Iterable[CorpusRow]] = CorpusReader.json_list,
) -> ReadCorpus:
    """A `read` that makes one `Post` of every post id, with the reply of its first row; its other rows are drops.

    `pair_of` makes a pair of a row's value; `rows` says how files are read.
    """

    def read(files: list[Path], reader: CorpusReader) -> Iterator[Post]:
        posts: set[str] = set()
        pairs: set[tuple[str, str]] = set()
        for row in (row for file in files for row in rows(reader, file)):
            with reader.accounting(row):
                pair = pair_of(row.value)
                doubled = (pair.post_id, pair.reply_id) in pairs
                pairs.add((pair.post_id, pair.reply_id))
                if doubled or pair.post_id in posts:
                    raise Dropped(SAME_PAIR if doubled else FURTHER_REPLY)
                if pair.text.strip():
                    posts.add(pair.post_id)
                yield post(source, pair.post_id, language, pair.text, pair.reply)

    return read


def post(source: str, source_id: str, language: Language, text: str, reply: str | None = None) -> Post:
    """A `Post` whose id is `source-source_id`; a blank reply is none. Raises `Dropped` for a blank text."""
    if not text.strip():
        raise Dropped(EMPTY)
    return Post(
        id=f"{source}-{source_id}",
        language=language,
        source=source,
        source_id=source_id,
        text=text.strip(),
        reply=(reply or "").strip() or None,
    )
