"""Corpora read into records, and the role cards, profiles and training sets that are built from them."""
