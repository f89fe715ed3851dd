"""Sample data written for this repository: role cards, profiles, a questionnaire, dialogues, role play, and the raw material of
the synthetic score set."""

from pathlib import Path

BUNDLED = Path(__file__).resolve().parent
