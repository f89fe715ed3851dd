"""Sheets on which a person keeps or drops: role cards between the model's filter and the annotation (third column of ESC-Eval's
table 6), or a random sample of profiles to look at (EmoHarbor, appendix B)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.files import check_unique
from core.records import RoleCard
from data_prep.cards.sheets import YES_OR_NO, SheetChoice, SheetLayout, read_filled, write_both
from data_prep.profiles.check import ProfileFinding
from data_prep.profiles.record import Profile, profile_text

NAME = "keep"
REJECTED = "rejected by a person"
_CARD = ("language", "age", "gender", "occupation", "problem")
CARDS = SheetLayout("cards", ("card_id", "keep", "note", *_CARD, "category", "source"), ("keep", "note"), "card_id", "problem")
PROFILES = SheetLayout(
    "profiles", ("profile_id", "language", "profile", "findings", "keep", "note"), ("keep", "note"), "profile_id", "profile"
)
_RULES = {
    CARDS: (
        "yes: it tells what happened, to one person. no: feelings without an event, or what does not fit together.",
        "yes：写明了一个人遇到的事。no：只有情绪没有事件，或前后不符。",
    ),
    PROFILES: (
        "yes: one believable person, the parts fit together, nothing tells who a real person is. no: anything else.",
        "yes：一个可信的人，各部分对得上，看不出真实个人。no：其他情况。",
    ),
}


def card_rows(cards: Sequence[RoleCard]) -> list[dict[str, str]]:
    """A row per card, without an answer."""
    return [
        {name: getattr(card, name) for name in (*_CARD, "source")}
        | {"card_id": card.id, "category": " / ".join(card.category or ())}
        for card in cards
    ]


def draw(profiles: Sequence[Profile], count: int, seed: int) -> list[Profile]:
    """A seeded random sample in the file's order; all where there are no more than `count`."""
    places = random.Random(f"{seed}/profiles/inspect").sample(range(len(profiles)), min(count, len(profiles)))
    return [profiles[place] for place in sorted(places)]


def profile_rows(profiles: Sequence[Profile], findings: Sequence[ProfileFinding]) -> list[dict[str, str]]:
    """A row per profile, with what the checks found and without an answer."""
    return [
        {
            "profile_id": profile.id,
            "language": profile.language,
            "profile": shown(profile),
            "findings": "\n".join(f"{found.field}: {found.problem}" for found in findings if found.profile_id == profile.id),
        }
        for profile in profiles
    ]


def write_keep(folder: Path, layout: SheetLayout, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """keep.csv and keep.xlsx; returns the two names."""
    rules = [[line] for line in ("keep", *YES_OR_NO, *_RULES[layout])]
    return write_both(folder, NAME, layout, rows, [SheetChoice("keep", 0, len(rows) - 1, "rules!$A$2:$A$3")], {"rules": rules})


def shown(profile: Profile) -> str:
    """What a sheet shows of a profile."""
    return profile_text(profile, profile.language)


def read_keep(paths: Sequence[Path], layout: SheetLayout, texts: Mapping[str, str]) -> dict[str, bool]:
    """Whether to keep each card or profile of the sheets, by its id; what has no row was not looked at. `texts` maps the ids
    that can be there to what the sheets show of them.

    Raises `UserError` with file, line and column for an unknown or doubled id, a text that has changed since, and a `keep` that
    is empty or another word than yes or no.
    """
    kind = layout.sheet.removesuffix("s")
    sheets = [read_filled(path, layout, texts, kind, lambda _, row: row.keep) for path in paths]
    check_unique(", ".join(map(str, paths)), (id for sheet in sheets for id in sheet), layout.sheet)
    return {id: keep for sheet in sheets for id, keep in sheet.items()}
