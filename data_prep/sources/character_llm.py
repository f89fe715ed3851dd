"""Character-LLM (Shao et al., EMNLP 2023): model-written interviews with nine characters, English, five exchanges each.

JSON lines, published as `multiturn_NAME_MODEL_result/DATE.jsonl`, also read as `multiturn_NAME_MODEL.jsonl`: `character`,
`finished`, and `content`, a list of turns of `interviewer` and `character`, each with the parts that the model wrote for it:
who, an action (`(speaking)`, `(thinking)`) and words. The `questions_*.json` files beside them hold no dialogues and are not
read.

Both sides are generated, and it goes wrong in ways that would be learned: see `_fault`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from core.records import RolePlay
from core.rows import Dropped, RowModel, by_row
from data_prep.sources.play import play

INTERVIEWER = "Interviewer"  # the files call every interviewer `Man`
_MARKUP = re.compile(r"\((?:speaking|thinking)\)|<\|", re.IGNORECASE)
_ENDED = re.compile(r"[.!?…][\"'”’)\]*]*$")


class _Part(RowModel):
    role: str
    action: str = ""
    content: str

    @property
    def thought(self) -> bool:
        return "thinking" in self.action.casefold()


class _Turn(RowModel):
    turn_role: Literal["interviewer", "character"]
    turn_content: list[_Part]

    @property
    def words(self) -> list[str]:
        """What was said aloud, part by part."""
        return [part.content.strip() for part in self.turn_content if part.content.strip() and not part.thought]


class _Row(RowModel):
    character: str = Field(min_length=1)
    finished: bool = True
    content: list[_Turn]


def _fault(raw: _Row) -> str | None:
    """Why an interview cannot be used, None when it can."""
    if not raw.finished:
        return "unfinished"
    if any(len({part.role for part in turn.turn_content}) > 1 for turn in raw.content):
        return "two speakers in one turn"
    if any(_MARKUP.search(part.content) for turn in raw.content for part in turn.turn_content):
        return "markup of the generation inside a turn"
    if any(not turn.words for turn in raw.content):
        return "a turn in which nothing is said aloud"
    if any(not _ENDED.search(turn.words[-1]) for turn in raw.content):
        return "a turn breaks off"
    texts = [(turn.turn_role, "\n".join(turn.words)) for turn in raw.content]
    return "a turn is there twice" if len(set(texts)) < len(texts) else None


def _item(value: Any, source_id: str) -> RolePlay:
    raw = _Row.model_validate(value)
    fault = _fault(raw)
    if fault:
        raise Dropped(fault)
    character = raw.character.strip()
    names = {"interviewer": INTERVIEWER, "character": character}
    said = [(names[turn.turn_role], words) for turn in raw.content for words in turn.words]
    return play(source="character_llm", source_id=source_id, language="en", character=character, said=said)


def _interview(file: Path) -> str:
    """multiturn_NAME_MODEL: the published files are called by a date, their folders by who is interviewed."""
    folder = file.parent.name
    return folder.removesuffix("_result") if folder.endswith("_result") else file.stem


READERS = {"character_llm": by_row(_item, named=_interview)}
