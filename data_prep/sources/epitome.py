"""EPITOME (Sharma et al., EMNLP 2020): Reddit posts with one reply each, rated on three mechanisms of empathy.

Three CSV files, one a mechanism, hold the same pairs in the same order, and a few pairs twice. Every row of all three is
counted: the first row of a post becomes the `Post`, its other rows are dropped as the same pair or as a further reply. The
white space of a few texts differs between the files; the file that comes first by name decides. (The ratings are no part of
a `Post`.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from core.rows import Item, Raw, Row, Rows, Sampled, Source
from data_prep.sources.posts import Pair, first_replies


class _Row(Raw):
    sp_id: str
    rp_id: str
    seeker_post: str
    response_post: str


def _pairs(files: list[Path], rows: Rows) -> Iterator[tuple[Row, Pair]]:
    for file in files:
        for row in rows.csv(file):
            raw = rows.parse(_Row, row)
            if raw is not None:
                yield row, Pair(raw.sp_id, raw.rp_id, raw.seeker_post, raw.response_post)


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """One `Post` a seeker post (`sp_id`), with the first reply to it."""
    yield from first_replies("epitome", "en", _pairs(files, rows), rows)


SOURCES = (
    Source(
        name="epitome",
        about="EPITOME's Reddit part: 3,084 rated post-reply pairs, English, single-turn",
        kind="post",
        languages=("en",),
        files=("*-reddit.csv", "dataset/*-reddit.csv"),
        where="GitHub behavioral-data/Empathy-Mental-Health (dataset)",
        licence="two documents in the repository: Althoff academic licence, Althoff attribution only licence",
        paper="Sharma et al., EMNLP 2020",
        read=read,
        table5=Sampled("QA", "Human", 500),
    ),
)
