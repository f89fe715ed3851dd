"""Corpora read into records, and the role cards, profiles and training sets that are built from them."""

from pathlib import Path

BUNDLED = Path(__file__).resolve().parent / "bundled"  # sample data written for this repository
