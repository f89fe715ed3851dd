"""The sample corpora that this repository brings: written for it, in the form of our own records."""

from __future__ import annotations

from core.records import RolePlay, SupportDialogue
from core.rows import by_row

READERS = {
    "bundled_support": by_row(lambda value, _: SupportDialogue.model_validate(value)),
    "bundled_role_play": by_row(lambda value, _: RolePlay.model_validate(value)),
}
