"""Draws: trials in which the very same was said, as at temperature 0, are one dialogue and count once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from core.records import Dialogue
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.summary import supporter_of


def first_draws(dialogues: Iterable[Dialogue]) -> dict[str, str]:
    """Dialogue id → the first dialogue of the same supporter and card in which the very same was said: mostly itself."""
    seen: dict[tuple[object, ...], str] = {}
    first: dict[str, str] = {}
    for dialogue in dialogues:
        said = dialogue.language, supporter_of(dialogue), card_of(dialogue), tuple(turn.text for turn in dialogue.turns)
        first[dialogue.id] = seen.setdefault(said, dialogue.id)
    return first


def distinct(dialogues: Sequence[Dialogue]) -> list[Dialogue]:
    """The dialogues without those that repeat an earlier one."""
    first = first_draws(dialogues)
    return [dialogue for dialogue in dialogues if first[dialogue.id] == dialogue.id]


def repeats(dialogues: Sequence[Dialogue], floors: Collection[str]) -> Iterator[str]:
    """A sentence where dialogues repeat earlier trials; those with floors, which never vary, are not told of."""
    with_models = [dialogue for dialogue in dialogues if supporter_of(dialogue) not in floors]
    first = first_draws(with_models)
    again = [dialogue for dialogue in with_models if first[dialogue.id] != dialogue.id]
    if again:
        names = ", ".join(sorted({supporter_of(dialogue) for dialogue in again}))
        yield (
            f"{len(again):,} of {len(with_models):,} dialogues repeat an earlier trial word for word ({names}), as happens at "
            "temperature 0: they count once. For other draws, give the supporters a temperature (--set temperature=0.7)."
        )
