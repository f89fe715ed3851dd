"""RPBench-Auto (Boson AI): characters and scenes for a role-play benchmark, English.

JSON lines `npc_profile` and `conversation` (`from`, `sentences`), in two forms: `rpbench_character.jsonl` (a chat profile)
and `rpbench_scene.jsonl` (a profile by fields, and a story so far in `plot_recap`). The published conversations hold the
character's first words and nothing else, so none has a partner yet; a set that asks for several turns takes none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from core.records import RolePlay
from core.rows import Malformed, RowModel, by_row
from data_prep.sources.play import filled, play, profile, shortened

SHORTENED = 800  # characters of persona and of scene
_PLAYED = "npc"
_PARTNER = "Player"
_CHAT = ("long_definition_text", "description", "definition_text")  # the first that says something


class _Said(RowModel):
    speaker: str = Field(validation_alias="from")
    sentences: list[str]


class _Row(RowModel):
    npc_profile: dict[str, Any]
    conversation: list[_Said]
    plot_recap: str = ""


def _item(value: Any, source_id: str) -> RolePlay:
    """Every character and scene; `source_id` is `file stem/position`."""
    raw = _Row.model_validate(value)
    about = raw.npc_profile
    character = str(about.get("name") or about.get("name_text") or "").strip()
    if not character:
        raise Malformed("npc_profile: neither name nor name_text")
    said = [(character if line.speaker == _PLAYED else _PARTNER, " ".join(line.sentences)) for line in raw.conversation]
    return play(
        source="rpbench",
        source_id=source_id,
        language="en",
        character=character,
        said=[(name, filled(text, character)) for name, text in said],
        persona=filled(_persona(about), character),
        scene=filled(shortened(raw.plot_recap.replace("**", ""), SHORTENED), character),
        alone=True,
    )


def _persona(about: Mapping[str, Any]) -> str:
    """A chat profile's traits and longest description, or the fields of the other form."""
    if "name_text" not in about:
        return profile({key: value for key, value in about.items() if key != "name"}, SHORTENED, ": ", "; ")
    texts = (str(about.get(key) or "").strip() for key in _CHAT)
    parts = [str(about.get("short_definition_text") or "").strip(), next((text for text in texts if text), "")]
    return shortened("\n".join(dict.fromkeys(part for part in parts if part)), SHORTENED)


READERS = {"rpbench": by_row(_item)}
