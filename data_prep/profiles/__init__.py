"""Profiles of seekers (EmoHarbor), read from our JSONL or SAGE's file; and the card or profile that a seeker plays, as text."""

from collections.abc import Sequence
from pathlib import Path

from core.errors import UserError, near
from core.files import check_unique, first_object, read_jsonl
from core.records import Dialogue, Language, RoleCard
from data_prep import BUNDLED
from data_prep.cards import card_text, load_cards
from data_prep.profiles.record import BigFive, Counselling, Demographics, Preferences, Profile, profile_text

__all__ = ["BigFive", "Counselling", "Demographics", "Preferences", "Profile", "profile_text"]

Played = RoleCard | Profile


def load_profiles(path: Path) -> list[Profile]:
    """Profiles from a JSONL file of `Profile`s, or of SAGE's rows (`profiles.published`); the first line tells which. Raises
    `UserError` with file, line and field; for an empty file; and for doubled ids."""
    from data_prep.profiles.published import is_sage, sage_profiles  # runs on role cards load no profiles

    profiles = sage_profiles(path) if is_sage(path) else read_jsonl(path, Profile, "profile file")
    check_unique(path, (profile.id for profile in profiles), "profile ids")
    return profiles


def is_profile_file(path: Path) -> bool:
    """Whether a file's first line is one that `load_profiles` reads."""
    from data_prep.profiles.published import is_sage

    return is_sage(path) or "counselling" in first_object(path, "profile file")


def bundled_profiles(language: Language) -> Path:
    """The file of profiles written for this project, as `load_profiles` reads it."""
    return BUNDLED / f"profiles_{language}.jsonl"


def load_played(cards: Sequence[Path], profiles: Sequence[Path]) -> dict[str, Played]:
    """Cards and profiles of files, by id. Raises `UserError` for one id with two different contents."""
    loaded: list[Played] = [card for path in cards for card in load_cards(path)]
    loaded += [profile for path in profiles for profile in load_profiles(path)]
    by_id: dict[str, Played] = {}
    for person in loaded:
        if by_id.setdefault(person.id, person) != person:
            raise UserError(f"{person.id} is given twice with other contents")
    return by_id


def played_text(dialogue: Dialogue, people: dict[str, Played]) -> str:
    """The card or profile that is played, as lines with headings. Raises `UserError` if the dialogue names none of them."""
    id = dialogue.card_id or dialogue.profile_id
    if id is None:
        raise UserError(f"dialogue {dialogue.id}: no card_id and no profile_id: its seeker cannot be rated against one")
    if id not in people:
        kind = "profile" if dialogue.profile_id else "card"
        raise UserError(f"dialogue {dialogue.id}: {kind} {id!r} is not among those given (--{kind}s): {near(id, people)}")
    person = people[id]
    return card_text(person) if isinstance(person, RoleCard) else profile_text(person, person.language)
