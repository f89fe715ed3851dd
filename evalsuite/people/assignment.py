"""Who sees what, and in which order: overlap by design, a mix of systems for everybody, repeated items and attention checks.

Nothing here knows a database or a page: items and raters go in, tasks come out, the same for the same seed.
"""

from __future__ import annotations

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
    """What is shown at once: a dialogue, or two. `systems` made it. Everybody who reads its language sees a `check`."""

    id: str
    language: Language
    systems: tuple[str, ...] = ()
    check: bool = False


@dataclass(frozen=True)
class Person:
    """A rater and what they read."""

    code: str
    languages: tuple[Language, ...]


@dataclass(frozen=True)
class RaterTask:
    """An item for a rater, at a place of that rater's order; `order` says which of two stands first."""

    rater: str
    item: str
    place: int
    order: Order
    purpose: Purpose
    details: Mapping[str, Any] = field(default_factory=dict)
    """Of a talk: its supporter, its language and what was said."""


def assign(items: Sequence[Item], people: Sequence[Person], overlap: int, repeats: int, seed: int) -> list[RaterTask]:
    """Tasks, rater by rater. Each item goes to `overlap` people; loads differ by one item at most where all read all languages.

    A rater sees items in an order drawn for them alone, checks among them, and `repeats` of them again after all others. Which
    of two stands first alternates over the raters of an item, from a drawn start. Raises `UserError` for a language that fewer
    than `overlap` people read.
    """
    rng = random.Random(f"{seed}/people")
    loads: Counter[str] = Counter()
    of_system: Counter[tuple[str, str]] = Counter()
    given: dict[str, list[tuple[Item, Order]]] = {person.code: [] for person in people}
    for language, block in group_by([item for item in items if not item.check], lambda item: item.language).items():
        readers = [person.code for person in people if language in person.languages]
        if len(readers) < overlap:
            raise UserError(f"overlap {overlap}: {len(readers)} raters read {language}: invite more, or lower the overlap")
        for item in rng.sample(block, len(block)):
            ties = {code: rng.random() for code in readers}

            def burden(code: str, item: Item = item, ties: dict[str, float] = ties) -> tuple[float, ...]:
                return loads[code], sum(of_system[code, system] for system in item.systems), ties[code]

            start = rng.randrange(2)
            for number, code in enumerate(sorted(readers, key=burden)[:overlap]):
                given[code].append((item, "ab" if (start + number) % 2 == 0 else "ba"))
                loads[code] += 1
                of_system.update((code, system) for system in item.systems)
    return [task for person in people for task in _ordered(person, given[person.code], items, repeats, seed)]


def _ordered(
    person: Person, given: Sequence[tuple[Item, Order]], items: Sequence[Item], repeats: int, seed: int
) -> list[RaterTask]:
    """A rater's tasks: one language after the other, as a rater reads them."""
    rng = random.Random(f"{seed}/people/{person.code}")
    found: list[tuple[Item, Order, Purpose]] = []
    for language in person.languages:
        own: list[tuple[Item, Order, Purpose]] = [(i, order, "item") for i, order in given if i.language == language]
        rng.shuffle(own)
        for check in (item for item in items if item.check and item.language == language):
            # Not the first: a rater has to be at work before attention can flag.
            own.insert(rng.randint(min(1, len(own)), len(own)), (check, rng.choice(("ab", "ba")), "check"))
        found += own
    again = [one for one in found if one[2] == "item"]
    # From the first half: the longer ago, the less is it memory that agrees.
    for item, order, _ in rng.sample(again[: max(1, (len(again) + 1) // 2)], min(repeats, (len(again) + 1) // 2)):
        found.append((item, "ba" if order == "ab" else "ab", "repeat"))
    return [RaterTask(person.code, item.id, place, order, purpose) for place, (item, order, purpose) in enumerate(found)]


def assign_talks(
    people: Sequence[Person], supporters: Sequence[str], cards: Sequence[Item], seed: int, profiled: bool = False
) -> list[RaterTask]:
    """A talk with every supporter for every rater, in the language that they read first; before it, if they are `profiled`, a
    task in which they tell who they are.

    Blind and balanced: over the raters, each supporter stands in each place equally often. `cards`, where there are any, go
    round: who is played. Without them people speak for themselves. Raises `UserError` where somebody has no card to play.
    """
    rng = random.Random(f"{seed}/people/talks")
    order, tasks, given = rng.sample(list(supporters), len(supporters)), [], Counter[str]()
    for shift, person in enumerate(rng.sample(list(people), len(people))):
        language = person.languages[0]
        own = [card for card in cards if card.language == language]
        if cards and not own:
            raise UserError(f"rater {person.code}: no role card or profile is in {language}, which they read first")
        nothing: dict[str, Any] = {
            "language": language,
            "turns": [],
            "ended": None,
            "help": False,
            "failed": None,
            "broken": "",
        }
        if profiled:
            tasks.append(RaterTask(person.code, "", 0, "ab", "profile", nothing | {"supporter": ""}))
        for place in range(len(order)):
            card = own[given[language] % len(own)].id if own else ""
            given[language] += 1
            supporter = order[(place + shift) % len(order)]
            tasks.append(RaterTask(person.code, card, place + profiled, "ab", "talk", nothing | {"supporter": supporter}))
    return tasks
