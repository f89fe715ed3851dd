"""Manual inspection by random sampling (EmoHarbor appendix B): profiles as a sheet for a person, and what came back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_prep.cards.sheets import YES_OR_NO, Choice, Layout, read_filled, write_both
from data_prep.profiles.check import Finding
from data_prep.profiles.record import Profile, profile_text

NAME = "inspection"
REJECTED = "rejected by a person"
LAYOUT = Layout(
    "profiles", ("profile_id", "language", "profile", "findings", "keep", "note"), ("keep", "note"), "profile_id", "profile"
)
_RULES = (
    "keep",
    *YES_OR_NO,
    "yes: one believable person, the parts fit together, nothing tells who a real person is. no: anything else.",
    "yes：一个可信的人，各部分对得上，看不出真实个人。no：其他情况。",
)


def draw(profiles: Sequence[Profile], count: int, seed: int) -> list[Profile]:
    """A seeded random sample in the file's order; all where there are no more than `count`."""
    places = random.Random(f"{seed}/profiles/inspect").sample(range(len(profiles)), min(count, len(profiles)))
    return [profiles[place] for place in sorted(places)]


def write_inspection(folder: Path, profiles: Sequence[Profile], findings: Sequence[Finding]) -> list[str]:
    """The profiles as inspection.csv and inspection.xlsx with what the checks found and empty answers; returns the names."""
    rows = [
        {
            "profile_id": profile.id,
            "language": profile.language,
            "profile": _shown(profile),
            "findings": "\n".join(f"{one.field}: {one.problem}" for one in findings if one.profile_id == profile.id),
        }
        for profile in profiles
    ]
    choices = [Choice("keep", 0, len(rows) - 1, "rules!$A$2:$A$3")]
    return write_both(folder, NAME, LAYOUT, rows, choices, {"rules": [[line] for line in _RULES]})


def read_inspection(path: Path, profiles: Sequence[Profile]) -> Mapping[str, bool]:
    """Whether to keep each inspected profile, by its id; profiles without a row were not inspected.

    Raises `UserError` with file, line and column for an unknown or doubled profile, one whose text has changed since, and a
    `keep` that is empty or another word than yes or no.
    """
    shown = {profile.id: _shown(profile) for profile in profiles}
    return read_filled(path, LAYOUT, shown, "profile", lambda _, row: row.keep)


def _shown(profile: Profile) -> str:
    return profile_text(profile, profile.language)
