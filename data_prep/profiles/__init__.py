"""Profiles of EmoHarbor's seekers (section 2.1), read from our JSONL or SAGE's file, and as text for models."""

from pathlib import Path

from core.files import check_unique, first_object, read_jsonl
from core.records import Language
from data_prep.bundled import BUNDLED
from data_prep.profiles.record import BigFive, Counselling, Demographics, Preferences, Profile, profile_text

__all__ = ["BigFive", "Counselling", "Demographics", "Preferences", "Profile", "profile_text"]


def load_profiles(path: Path) -> list[Profile]:
    """Profiles from a JSONL file of `Profile`s, or of SAGE's rows (`profiles.sage`); the first line tells which. Raises
    `UserError` with file, line and field; for an empty file; and for doubled ids."""
    from data_prep.profiles import sage  # runs on role cards load no profiles

    profiles = sage.load_profiles(path) if sage.is_sage(path) else read_jsonl(path, Profile, "profile file")
    check_unique(path, (profile.id for profile in profiles), "profile ids")
    return profiles


def is_profile_file(path: Path) -> bool:
    """Whether a file's first line is one that `load_profiles` reads."""
    from data_prep.profiles import sage

    return sage.is_sage(path) or "counselling" in first_object(path, "profile file")


def bundled_profiles(language: Language) -> Path:
    """The file of profiles written for this project, as `load_profiles` reads it."""
    return BUNDLED / f"profiles_{language}.jsonl"
