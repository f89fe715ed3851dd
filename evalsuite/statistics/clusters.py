"""What is drawn whole wherever an interval or a test is made: a card with all its dialogues and scores, unless told otherwise.

Scores of one card go together. Thirty cards with thirteen dialogues each are a sample of thirty; an interval over 390 scores is
half as wide as it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError, near
from core.records import Dialogue

CARD, DIALOGUE = "card", "dialogue"
USERS = ("user", "user_id")  # fields of given dialogues that say whose they are


@dataclass(frozen=True)
class Clusters:
    """The cluster of each dialogue by its id; a dialogue that is not among them is a cluster by itself. `name` is what tables
    call them."""

    of: Mapping[str, str] = field(default_factory=dict)
    name: str = "dialogues"

    def __getitem__(self, dialogue_id: str) -> str:
        return self.of.get(dialogue_id, dialogue_id)


DIALOGUES = Clusters()


def card_of(dialogue: Dialogue) -> str:
    """What dialogues are paired by: the card or profile, else the corpus item that the dialogue came from, else itself."""
    if dialogue.card_id or dialogue.profile_id:
        return f"card {dialogue.card_id or dialogue.profile_id}"
    return f"item {dialogue.source} {dialogue.source_id}" if dialogue.source_id else f"dialogue {dialogue.id}"


def cards_of(dialogues: Iterable[Dialogue]) -> int:
    """The number of cards, of each language its own."""
    return len({(dialogue.language, card_of(dialogue)) for dialogue in dialogues})


def cluster_key(by: str | None = None) -> Callable[[Dialogue], str]:
    """The cluster of a dialogue: its card (`card_of`; so without `by`), itself (`dialogue`), or what it has in a field of its
    record, where it has anything. Raises `UserError` for what is no field."""
    if by is None or by == CARD:
        return card_of
    if by not in (fields := {DIALOGUE, *Dialogue.model_fields, *USERS}):
        raise UserError(f"--cluster {by}: no field of a dialogue: {near(by, {CARD, *fields})}")

    def key(one: Dialogue) -> str:
        value = one.fields.get(by, getattr(one, by, None))
        return f"{DIALOGUE} {one.id}" if value is None else f"{by} {value}"

    return key


def users_of(dialogues: Iterable[Dialogue]) -> str | None:
    """The field that says whose given dialogues are, whom intervals draw with all of theirs; None where nothing says it."""
    return next((name for dialogue in dialogues for name in USERS if name in dialogue.fields), None)


def clusters_of(dialogues: Iterable[Dialogue], by: str | None = None) -> Clusters:
    """The clusters of these dialogues by `cluster_key`. They are called dialogues where none of them has two."""
    key = cluster_key(by)
    of = {dialogue.id: key(dialogue) for dialogue in dialogues}
    name = "cards" if by in (None, CARD) else f"dialogues of one {by}"
    return Clusters(of, name) if len(set(of.values())) < len(of) else DIALOGUES


_WITHIN = "\x1f"  # between the cluster and the card in the name of a row


def row_key(by: str | None = None) -> Callable[[Dialogue], str]:
    """What dialogues are paired by, with their cluster before it where that is not the card."""
    key = cluster_key(by)
    return key if by in (None, CARD, DIALOGUE) else lambda dialogue: f"{key(dialogue)}{_WITHIN}{card_of(dialogue)}"


def clusters_in(rows: Iterable[str]) -> NDArray[np.intp] | None:
    """The cluster of each row by its name (`row_key`), from 0; None where every row is one."""
    names = [row.partition(_WITHIN) for row in rows]
    if not any(card for _, _, card in names):
        return None
    return np.unique([cluster for cluster, _, _ in names], return_inverse=True)[1]
