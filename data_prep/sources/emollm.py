"""EmoLLM (SmartFlowAI): two Chinese sets of counselling dialogues by an LLM.

`data.json` is plain counselling; in `aiwei.json` the supporter plays a persona with stage directions and emoji.
"""

from __future__ import annotations

from typing import Any

from core.records import Role, SupportDialogue
from core.rows import CorpusReader, RowModel, by_row
from data_prep.sources.support import support_dialogue


class _Exchange(RowModel):
    input: str
    output: str


class _Row(RowModel):
    conversation: list[_Exchange]


def _item(value: Any, source_id: str) -> SupportDialogue:
    """Every dialogue; the system prompt of the first exchange is left out."""
    turns: list[tuple[Role, str]] = []
    for exchange in _Row.model_validate(value).conversation:
        turns += [("seeker", exchange.input), ("supporter", exchange.output)]
    return support_dialogue("emollm", source_id, "zh", turns)


READERS = {"emollm": by_row(_item, CorpusReader.json_list)}
