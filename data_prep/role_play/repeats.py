"""Dialogues that repeat another one: within the training set, and across its border with the held-out set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.files import digest
from core.ledger import Build
from data_prep.role_play.examples import Draft
from data_prep.role_play.near_duplicates import near_duplicates
from data_prep.role_play.overlap import parts_of_others


def distinct(drafts: Sequence[Draft], threshold: float, build: Build) -> list[Draft]:
    """Without dialogues that repeat another one: word for word, nearly (Jaccard of shingles at or above `threshold`), or as a
    window of it."""
    step = build.step("duplicates")
    step.taken = len(drafts)
    first: dict[str, str] = {}
    unique = []
    for draft in drafts:
        key = digest(" ".join(draft.text.lower().split()), 32)
        if key in first:
            step.drop("exact duplicate", draft.id)
        else:
            first[key] = draft.id
            unique.append(draft)
    repeated = near_duplicates([draft.text for draft in unique], threshold)
    different = []
    for draft, earlier in zip(unique, repeated, strict=True):
        if earlier is None:
            different.append(draft)
        else:
            step.drop("near duplicate", f"{draft.id} of {unique[earlier].id}")
    kept = []
    for draft, whole in zip(different, parts_of_others([draft.lines for draft in different]), strict=True):
        if whole is None:
            kept.append(draft)
        else:
            step.drop("part of another dialogue", f"{draft.id} of {different[whole].id}")
    step.kept = len(kept)
    return kept


def apart(drafts: Sequence[Draft], held: Sequence[Draft], threshold: float, build: Build) -> list[Draft]:
    """Without dialogues that repeat a held-out one: the same words, nearly the same, a window of it or a whole around it.

    `drafts` are `distinct`: no two of them repeat each other, so what one of them repeats is held out.
    """
    step = build.step("apart from held out")
    repeated = _across(drafts, held, lambda every: near_duplicates([draft.text for draft in every], threshold))
    repeated |= _across(drafts, held, lambda every: parts_of_others([draft.lines for draft in every]))
    return step.sieve(
        drafts,
        lambda draft: "repeats a held-out dialogue" if draft.id in repeated else None,
        lambda draft: f"{draft.id} of {repeated[draft.id]}",
    )


def _across(
    drafts: Sequence[Draft], held: Sequence[Draft], find: Callable[[Sequence[Draft]], list[int | None]]
) -> dict[str, str]:
    """Ids of drafts that repeat a held-out one, and its id.

    `find` compares only with what it keeps, and held-out dialogues may repeat each other: those that do are asked about again.
    Each round has fewer of them, or fewer drafts.
    """
    repeated: dict[str, str] = {}
    while held:
        every = [*held, *(draft for draft in drafts if draft.id not in repeated)]
        others = find(every)
        for place, other in enumerate(others):
            if other is not None and min(place, other) < len(held) <= max(place, other):
                repeated[every[max(place, other)].id] = every[min(place, other)].id
        held = [draft for draft, other in zip(held, others, strict=False) if other is not None]
    return repeated
