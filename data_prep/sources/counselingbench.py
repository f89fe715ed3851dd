"""Counselling Bench (Liu et al. 2023, ChatCounselor): test questions of ChatPsychiatrist, English, and 80 from PsyQA, Chinese.

`question.jsonl` holds {question_id, turns: [text]}, `psyqa_question_zh.jsonl` {question_id, text}.
"""

from __future__ import annotations

from typing import Any

from core.records import Post, Whole
from core.rows import CorpusReader, RowModel, by_row
from data_prep.sources.posts import post


class _English(RowModel):
    question_id: Whole
    turns: list[str]


class _Chinese(RowModel):
    question_id: Whole
    text: str


def _item(value: Any, _: str) -> Post:
    """A question without a reply; `source_id` is `language/question id`."""
    if isinstance(value, dict) and "text" in value:
        chinese = _Chinese.model_validate(value)
        return post("counselingbench", f"zh/{chinese.question_id}", "zh", chinese.text)
    english = _English.model_validate(value)
    return post("counselingbench", f"en/{english.question_id}", "en", "\n".join(english.turns))


READERS = {"counselingbench": by_row(_item, CorpusReader.jsonl)}
