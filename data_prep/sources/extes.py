"""ExTES (Zheng et al. 2023): emotional-support dialogues by ChatGPT, with a scenario label and a description each.

Two forms. The published list (`ExTES.json`, in `ExTES.zip`) of {scene, description, content: [{User} or {AI, AI Strategy}]}:
known from public code that reads it, not from the file itself. And the instruction form {instruction, input, output,
history: [[seeker, supporter], ...]}, which has neither label nor description: `instruction` is the seeker's last turn,
`output` the reply to it.
"""

from __future__ import annotations

from typing import Any

from core.records import Role, SupportDialogue
from core.rows import CorpusReader, Malformed, RowModel, by_row
from data_prep.sources.support import support_dialogue

_ROLES: dict[str, Role] = {"User": "seeker", "AI": "supporter"}


class _Published(RowModel):
    scene: str | None = None
    description: str | None = None
    content: list[dict[str, Any]]


class _Instruction(RowModel):
    instruction: str
    input: str = ""
    output: str
    history: list[tuple[str, str]]


def _published(value: Any, source_id: str) -> SupportDialogue:
    """`problem` is the scenario label, `situation` the description."""
    raw = _Published.model_validate(value)
    turns: list[tuple[Role, str]] = []
    for number, entry in enumerate(raw.content):
        said = [(_ROLES[key], text) for key, text in entry.items() if key in _ROLES]
        if not said or not all(isinstance(text, str) for _, text in said):
            raise Malformed(f"content.{number}: expected a text under {' or '.join(_ROLES)}, found {', '.join(entry)}")
        turns += said
    about = {"situation": (raw.description or "").strip(), "problem": (raw.scene or "").strip()}
    return support_dialogue("extes", source_id, "en", turns, **about)


def _instruction(value: Any, source_id: str) -> SupportDialogue:
    raw = _Instruction.model_validate(value)
    last = f"{raw.instruction}\n{raw.input}".strip()
    turns: list[tuple[Role, str]] = []
    for seeker, supporter in [*raw.history, (last, raw.output)]:
        turns += [("seeker", seeker), ("supporter", supporter)]
    return support_dialogue("extes", source_id, "en", turns)


def _item(value: Any, source_id: str) -> SupportDialogue:
    return (_instruction if isinstance(value, dict) and "history" in value else _published)(value, source_id)


READERS = {"extes": by_row(_item, CorpusReader.json_list)}
