"""Profiles: who the seeker is in EmoHarbor (section 2.1), read from JSONL and told to models as text."""

from __future__ import annotations

from data_prep.profiles.record import BigFive, Counselling, Demographics, Preferences, Profile
from data_prep.profiles.store import bundled_profiles, load_profiles
from data_prep.profiles.text import profile_text

__all__ = [
    "BigFive",
    "Counselling",
    "Demographics",
    "Preferences",
    "Profile",
    "bundled_profiles",
    "load_profiles",
    "profile_text",
]
