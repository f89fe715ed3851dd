"""Clusters: what every interval and test draws whole. By default, a card with all its dialogues and scores.

Scores on one card are correlated: an interval that took thirty cards with thirteen dialogues each as 390 independent scores
could be half as wide as it should be.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError, near
from core.records import Dialogue
from evalsuite.statistics.summary import supporter_of

CARD, DIALOGUE = "card", "dialogue"
USERS = ("user", "user_id")  # fields of given dialogues that say whose they are


@dataclass(frozen=True)
class Clusters:
    """Dialogue id → cluster; a dialogue that is not listed is its own cluster. `name` is what tables call the clusters."""

    of: Mapping[str, str] = field(default_factory=dict)
    name: str = "dialogues"

    def __getitem__(self, dialogue_id: str) -> str:
        return self.of.get(dialogue_id, dialogue_id)


DIALOGUES = Clusters()


def card_of(dialogue: Dialogue) -> str:
    """What dialogues are paired by: the card or profile, else the corpus item, else the dialogue itself."""
    if dialogue.card_id or dialogue.profile_id:
        return f"card {dialogue.card_id or dialogue.profile_id}"
    return f"item {dialogue.source} {dialogue.source_id}" if dialogue.source_id else f"dialogue {dialogue.id}"


def cards_of(dialogues: Iterable[Dialogue]) -> int:
    """The number of cards; the same card in two languages counts twice."""
    return len({(dialogue.language, card_of(dialogue)) for dialogue in dialogues})


def cluster_key(by: str | None = None) -> Callable[[Dialogue], str]:
    """The cluster of a dialogue: its card (the default), itself (`dialogue`), or the value of the field `by`, without which it
    is its own cluster. Raises `UserError` if dialogues have no such field."""
    if by is None or by == CARD:
        return card_of
    if by not in (fields := {DIALOGUE, *Dialogue.model_fields, *USERS}):
        raise UserError(f"--cluster {by}: not a field of a dialogue: {near(by, {CARD, *fields})}")

    def key(dialogue: Dialogue) -> str:
        value = dialogue.fields.get(by, getattr(dialogue, by, None))
        return f"{DIALOGUE} {dialogue.id}" if value is None else f"{by} {value}"

    return key


def users_of(dialogues: Iterable[Dialogue]) -> str | None:
    """The field that names the user of given dialogues, by which intervals cluster them; None if there is none."""
    return next((name for dialogue in dialogues for name in USERS if name in dialogue.fields), None)


def clusters_of(dialogues: Iterable[Dialogue], by: str | None = None) -> Clusters:
    """The clusters of these dialogues by `cluster_key`; called dialogues if no cluster has two of them."""
    key = cluster_key(by)
    by_id = {dialogue.id: key(dialogue) for dialogue in dialogues}
    name = "cards" if by in (None, CARD) else f"dialogues of one {by}"
    return Clusters(by_id, name) if len(set(by_id.values())) < len(by_id) else DIALOGUES


_WITHIN = "\x1f"  # between the cluster and the card in the name of a row


def row_key(by: str | None = None) -> Callable[[Dialogue], str]:
    """What dialogues are paired by, prefixed with their cluster where that is not the card."""
    key = cluster_key(by)
    return key if by in (None, CARD, DIALOGUE) else lambda dialogue: f"{key(dialogue)}{_WITHIN}{card_of(dialogue)}"


def clusters_in(rows: Iterable[str]) -> NDArray[np.intp] | None:
    """The cluster of each row from 0, by its name (`row_key`); None if every row is its own cluster."""
    names = [row.partition(_WITHIN) for row in rows]
    if not any(card for _, _, card in names):
        return None
    return np.unique([cluster for cluster, _, _ in names], return_inverse=True)[1]


def first_draws(dialogues: Iterable[Dialogue]) -> dict[str, str]:
    """Dialogue id → id of the first dialogue of the same supporter and card with the same texts: mostly itself."""
    first: dict[str, str] = {}
    ids: dict[tuple[object, ...], str] = {}
    for d in dialogues:
        first[d.id] = ids.setdefault((d.language, supporter_of(d), card_of(d), *(turn.text for turn in d.turns)), d.id)
    return first


def distinct(dialogues: Sequence[Dialogue]) -> list[Dialogue]:
    """The dialogues that do not repeat an earlier one."""
    kept = {*first_draws(dialogues).values()}
    return [dialogue for dialogue in dialogues if dialogue.id in kept]


def repeats(dialogues: Sequence[Dialogue], floors: Collection[str]) -> Iterator[str]:
    """A sentence if dialogues repeat earlier trials; dialogues with floors, which never vary, do not count."""
    with_models = [dialogue for dialogue in dialogues if supporter_of(dialogue) not in floors]
    first = first_draws(with_models)
    if again := [dialogue for dialogue in with_models if first[dialogue.id] != dialogue.id]:
        names = ", ".join(sorted({supporter_of(dialogue) for dialogue in again}))
        yield (
            f"{len(again):,} of {len(with_models):,} dialogues repeat an earlier trial word for word ({names}), as happens at "
            "temperature 0: they count once. For different draws, give the supporters a temperature (--set temperature=0.7)."
        )
