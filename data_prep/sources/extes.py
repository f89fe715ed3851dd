"""ExTES (Zheng et al. 2023): emotional-support dialogues by ChatGPT, with a scenario label and a description each.

Two forms. The published list (`ExTES.json`, in `ExTES.zip`) of {scene, description, content: [{User} or {AI, AI Strategy}]}:
known from public code that reads it, not from the file itself. And the instruction form {instruction, input, output,
history: [[seeker, supporter], ...]}, which has neither label nor description: `instruction` is the seeker's last turn,
`output` the reply to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.records import Role
from core.rows import Item, Raw, Row, Rows, Sampled, Source
from data_prep.sources.support import support_dialogue

_ROLES: dict[str, Role] = {"User": "seeker", "AI": "supporter"}
_Turns = list[tuple[Role, str]]


class _Published(Raw):
    scene: str | None = None
    description: str | None = None
    content: list[dict[str, Any]]


class _Instruction(Raw):
    instruction: str
    input: str = ""
    output: str
    history: list[tuple[str, str]]


def _published(row: Row, rows: Rows) -> tuple[_Turns, dict[str, str]] | None:
    raw = rows.parse(_Published, row)
    if raw is None:
        return None
    turns: _Turns = []
    for number, entry in enumerate(raw.content):
        said = [(_ROLES[key], text) for key, text in entry.items() if key in _ROLES]
        if not said or not all(isinstance(text, str) for _, text in said):
            rows.malformed(row, f"content.{number}: expected a text under {' or '.join(_ROLES)}, found {', '.join(entry)}")
            return None
        turns += said
    return turns, {"situation": (raw.description or "").strip(), "problem": (raw.scene or "").strip()}


def _instruction(row: Row, rows: Rows) -> tuple[_Turns, dict[str, str]] | None:
    raw = rows.parse(_Instruction, row)
    if raw is None:
        return None
    last = f"{raw.instruction}\n{raw.input}".strip()
    turns: _Turns = []
    for seeker, supporter in [*raw.history, (last, raw.output)]:
        turns += [("seeker", seeker), ("supporter", supporter)]
    return turns, {}


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """Every dialogue; `source_id` is its position. `problem` is the scenario label, `situation` the description."""
    for file in files:
        for position, row in enumerate(rows.json_list(file)):
            read_row = _instruction if isinstance(row.value, dict) and "history" in row.value else _published
            found = read_row(row, rows)
            if found is None:
                continue
            turns, about = found
            item = support_dialogue(rows, row, "extes", f"{file.stem}/{position}", "en", turns, **about)
            if item is not None:
                yield item


SOURCES = (
    Source(
        name="extes",
        about="ExTES: about 11,000 dialogues in 36 scenarios that ChatGPT wrote, English, multi-turn",
        kind="support",
        languages=("en",),
        files=("ExTES.json", "extes.json", "ExTES/ExTES.json"),
        where="GitHub pandazzh2020/ExTES (ExTES.zip, unpacked)",
        licence="none stated in its README (the ten dialogues in GitHub CAS-SIAT-XinHai/APTNESS: CC0 1.0)",
        paper="Zheng et al. 2023",
        read=read,
        table5=Sampled("MD", "ChatGPT", 500),
    ),
)
