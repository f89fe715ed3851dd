"""Draws: trials with identical texts, as at temperature 0, are one dialogue and count once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from core.records import Dialogue
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.summary import supporter_of


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
