"""Assignment of items to raters: items and raters in, tasks out, the same for the same seed."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from core.errors import UserError
from core.grouping import group_by
from core.records import Language, Order

Purpose = Literal["item", "check", "repeat", "talk", "profile"]


@dataclass(frozen=True)
class Item:
    """A dialogue, or two, shown together, and the `systems` behind them. All who read its language see a `check`."""

    id: str
    language: Language
    systems: tuple[str, ...] = ()
    check: bool = False


@dataclass(frozen=True)
class Person:
    """A rater and the languages that they read, the preferred one first."""

    code: str
    languages: tuple[Language, ...]


@dataclass(frozen=True)
class RaterTask:
    """An item for a rater, at a place in that rater's order; `order`: which of two dialogues is shown first."""

    rater: str
    item: str
    place: int
    order: Order
    purpose: Purpose
    details: Mapping[str, Any] = field(default_factory=dict)
    """A talk's supporter, language and turns."""


def assign(items: Sequence[Item], people: Sequence[Person], overlap: int, repeats: int, seed: int) -> list[RaterTask]:
    """Tasks, rater by rater. Each item goes to `overlap` people; if all read all languages, loads differ by one item at most.

    Each rater has a random order of their own, with checks among the items, and sees `repeats` items again at the end. Which of
    two dialogues is first alternates over the raters of an item, from a random start. Raises `UserError` for a language that
    fewer than `overlap` people read.
    """
    rng = random.Random(f"{seed}/people")
    loads: Counter[str] = Counter()
    system_loads: Counter[tuple[str, str]] = Counter()
    assigned: dict[str, list[tuple[Item, Order]]] = {person.code: [] for person in people}
    for language, block in group_by([item for item in items if not item.check], lambda item: item.language).items():
        readers = [person.code for person in people if language in person.languages]
        if len(readers) < overlap:
            raise UserError(f"overlap {overlap}: {len(readers)} raters read {language}: invite more, or lower the overlap")
        for item in rng.sample(block, len(block)):
            burdens = {code: (loads[code], sum(system_loads[code, s] for s in item.systems), rng.random()) for code in readers}
            start = rng.randrange(2)
            for number, code in enumerate(sorted(readers, key=burdens.__getitem__)[:overlap]):
                assigned[code].append((item, "ab" if (start + number) % 2 == 0 else "ba"))
                loads[code] += 1
                system_loads.update((code, system) for system in item.systems)
    return [task for person in people for task in _ordered(person, assigned[person.code], items, repeats, seed)]


def _ordered(
    person: Person, assigned: Sequence[tuple[Item, Order]], items: Sequence[Item], repeats: int, seed: int
) -> list[RaterTask]:
    """A rater's tasks, language by language in their order of preference."""
    rng = random.Random(f"{seed}/people/{person.code}")
    ordered: list[tuple[Item, Order, Purpose]] = []
    for language in person.languages:
        block: list[tuple[Item, Order, Purpose]] = [(i, order, "item") for i, order in assigned if i.language == language]
        rng.shuffle(block)
        for check in (item for item in items if item.check and item.language == language):
            # Not the first: attention can flag only after some work.
            block.insert(rng.randint(min(1, len(block)), len(block)), (check, rng.choice(("ab", "ba")), "check"))
        ordered += block
    candidates = [(item, order) for item, order, purpose in ordered if purpose == "item"]
    # From the first half, so that raters repeat their judgement and not their memory of it.
    half = (len(candidates) + 1) // 2
    for item, order in rng.sample(candidates[: max(1, half)], min(repeats, half)):
        ordered.append((item, "ba" if order == "ab" else "ab", "repeat"))
    return [RaterTask(person.code, item.id, place, order, purpose) for place, (item, order, purpose) in enumerate(ordered)]


def assign_talks(
    people: Sequence[Person], supporters: Sequence[str], cards: Sequence[Item], seed: int, profiled: bool = False
) -> list[RaterTask]:
    """A talk of every rater with every supporter, in their preferred language; if `profiled`, after a task about themselves.

    Blind and balanced: over the raters, each supporter has each place equally often. If there are `cards`, raters play them in
    turn; otherwise they speak for themselves. Raises `UserError` if a rater has no card to play.
    """
    rng = random.Random(f"{seed}/people/talks")
    order, tasks, played = rng.sample(list(supporters), len(supporters)), [], Counter[str]()
    for shift, person in enumerate(rng.sample(list(people), len(people))):
        language = person.languages[0]
        playable = [card for card in cards if card.language == language]
        if cards and not playable:
            raise UserError(f"rater {person.code}: no role card or profile in {language}, their first language")
        empty: dict[str, Any] = {"language": language, "turns": [], "ended": None, "help": False, "failed": None, "broken": ""}
        if profiled:
            tasks.append(RaterTask(person.code, "", 0, "ab", "profile", empty | {"supporter": ""}))
        for place in range(len(order)):
            card = playable[played[language] % len(playable)].id if playable else ""
            played[language] += 1
            supporter = order[(place + shift) % len(order)]
            tasks.append(RaterTask(person.code, card, place + profiled, "ab", "talk", empty | {"supporter": supporter}))
    return tasks
