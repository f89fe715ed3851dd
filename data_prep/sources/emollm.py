"""EmoLLM (SmartFlowAI): two Chinese sets of counselling dialogues by an LLM.

`data.json` is plain counselling; in `aiwei.json` the supporter plays a persona with stage directions and emoji.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from core.records import Role
from core.rows import Item, Raw, Rows, Source
from data_prep.sources.support import support_dialogue


class _Exchange(Raw):
    input: str
    output: str


class _Row(Raw):
    conversation: list[_Exchange]


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """Every dialogue; `source_id` is `file stem/position`. The system prompt of the first exchange is left out."""
    for file in files:
        for position, row in enumerate(rows.json_list(file)):
            raw = rows.parse(_Row, row)
            if raw is None:
                continue
            turns: list[tuple[Role, str]] = []
            for exchange in raw.conversation:
                turns += [("seeker", exchange.input), ("supporter", exchange.output)]
            item = support_dialogue(rows, row, "emollm", f"{file.stem}/{position}", "zh", turns)
            if item is not None:
                yield item


SOURCES = (
    Source(
        name="emollm",
        about="EmoLLM: two sets of counselling dialogues that an LLM wrote (data, aiwei), Chinese, multi-turn",
        kind="support",
        languages=("zh",),
        files=("data.json", "aiwei.json", "datasets/data.json", "datasets/aiwei.json"),
        where="GitHub SmartFlowAI/EmoLLM (datasets)",
        licence="MIT",
        paper="SmartFlowAI/EmoLLM, 2024",
        read=read,
    ),
)
