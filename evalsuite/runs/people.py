"""Who is played in a run folder: role cards or profiles, each kind in a file of its own."""

from __future__ import annotations

from pathlib import Path

from core.files import read_jsonl
from core.records import RoleCard
from data_prep.played import Played
from data_prep.profiles import Profile

RECORDS: dict[str, type[Played]] = {"cards.jsonl": RoleCard, "profiles.jsonl": Profile}
PEOPLE = tuple(RECORDS)


def read_people(folder: Path) -> list[Played]:
    """Everybody in a run folder; none where its dialogues were given."""
    return [
        person
        for name, record in RECORDS.items()
        if (folder / name).exists()
        for person in read_jsonl(folder / name, record, name.removesuffix(".jsonl"), allow_empty=True)
    ]
