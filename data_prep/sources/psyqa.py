"""PsyQA (Sun et al., Findings of ACL 2021): posts from a Chinese psychology platform with long answers.

The public sample (`PsyQA_example.json`) and the full set (`PsyQA_full.json`, on signing an agreement) have one schema.
"""

from __future__ import annotations

from typing import Any

from core.records import Whole
from core.rows import RowModel
from data_prep.sources.posts import PostReply, first_replies


class _Answer(RowModel):
    answer_text: str


class _Row(RowModel):
    questionID: Whole | str
    question: str
    description: str = ""
    answers: tuple[_Answer, ...] = ()


def _pair(value: Any) -> PostReply:
    """A question's title and description (a title that the description repeats is not doubled) with its first answer."""
    raw = _Row.model_validate(value)
    title, description = raw.question.strip(), raw.description.strip()
    text = description if description.startswith(title) else f"{title}\n{description}"
    return PostReply(str(raw.questionID), "", text, raw.answers[0].answer_text if raw.answers else None)


READERS = {"psyqa": first_replies("psyqa", "zh", _pair)}
