"""Counselling Bench (Liu et al. 2023, ChatCounselor): test questions of ChatPsychiatrist, English, and 80 from PsyQA, Chinese.

`question.jsonl` holds {question_id, turns: [text]}, `psyqa_question_zh.jsonl` {question_id, text}.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from core.records import Language, Whole
from core.rows import Item, Raw, Rows, Source
from data_prep.sources.posts import post


class _English(Raw):
    question_id: Whole
    turns: list[str]

    def post(self) -> str:
        return "\n".join(self.turns)


class _Chinese(Raw):
    question_id: Whole
    text: str

    def post(self) -> str:
        return self.text


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """One `Post` a question, without a reply; `source_id` is `language/question id`."""
    for file in files:
        for row in rows.jsonl(file):
            chinese = isinstance(row.value, dict) and "text" in row.value
            language: Language = "zh" if chinese else "en"
            raw = rows.parse(_Chinese, row) if chinese else rows.parse(_English, row)
            if raw is None:
                continue
            item = post(row, rows, "counselingbench", f"{language}/{raw.question_id}", language, raw.post())
            if item is not None:
                yield item


SOURCES = (
    Source(
        name="counselingbench",
        about="Counselling Bench of ChatPsychiatrist: 229 English and 80 Chinese questions, single-turn, without replies",
        kind="post",
        languages=("en", "zh"),
        files=("question.jsonl", "psyqa_question_zh.jsonl"),
        where="GitHub EmoCareAI/ChatPsychiatrist (fastchat/llm_judge/data/counselling_bench)",
        licence="Apache 2.0 (code)",
        paper="Liu et al. 2023",
        read=read,
    ),
)
