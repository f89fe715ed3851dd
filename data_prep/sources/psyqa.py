"""PsyQA (Sun et al., Findings of ACL 2021): posts from a Chinese psychology platform with long answers.

The public sample (`PsyQA_example.json`) and the full set (`PsyQA_full.json`, on signing an agreement) have one schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from core.records import Whole
from core.rows import Item, Raw, Row, Rows, Sampled, Source
from data_prep.sources.posts import Pair, first_replies


class _Answer(Raw):
    answer_text: str


class _Row(Raw):
    questionID: Whole | str
    question: str
    description: str = ""
    answers: tuple[_Answer, ...] = ()


def _pairs(files: list[Path], rows: Rows) -> Iterator[tuple[Row, Pair]]:
    for file in files:
        for row in rows.json_list(file):
            raw = rows.parse(_Row, row)
            if raw is not None:
                title, description = raw.question.strip(), raw.description.strip()
                text = description if description.startswith(title) else f"{title}\n{description}"
                yield row, Pair(str(raw.questionID), "", text, raw.answers[0].answer_text if raw.answers else None)


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """One `Post` a question: title and description (a title that the description repeats is not doubled), first answer."""
    yield from first_replies("psyqa", "zh", _pairs(files, rows), rows)


SOURCES = (
    Source(
        name="psyqa",
        about="PsyQA: about 22,000 questions with long answers, Chinese, single-turn (the public sample has 100)",
        kind="post",
        languages=("zh",),
        files=("PsyQA_full.json", "PsyQA_example.json"),
        where="GitHub thu-coai/PsyQA (sample; the full set by e-mail with its signed agreement)",
        licence="none stated in the repository; the full set is under its own agreement",
        paper="Sun et al., Findings of ACL 2021",
        read=read,
        table5=Sampled("QA", "Human", 1000),
    ),
)
