"""Checks of lines written by a simulator: phrases that no seeker says, length, repetition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from core.files import CONFIGS
from core.languages import PAPER_LANGUAGES, cut, lineage
from core.patterns import Patterns
from core.records import Language
from core.yaml_files import load_yaml

_PHRASES = load_yaml(CONFIGS / "line_checks.yaml", "phrases of line checks")
MACHINE: tuple[str, ...] = tuple(_PHRASES["machine"])
"""Phrases that give the machine away."""
SUPPORTER: tuple[str, ...] = tuple(_PHRASES["supporter"])
"""Phrases of a supporter rather than a seeker."""


def phrase(patterns: tuple[str, ...], line: str) -> str | None:
    """The part of a line that matches one of the phrases (`MACHINE`, `SUPPORTER`), the first that does; None if none does. Case
    and the form of apostrophes do not matter."""
    plain = line.replace("’", "'")
    span = next(iter(searched(patterns).spans(plain)), None)
    return plain[slice(*span)] if span else None


@lru_cache
def searched(patterns: tuple[str, ...]) -> Patterns:
    """The compiled phrases, with ASCII word characters, so that a word ends where Chinese begins."""
    return Patterns.model_validate([f"(?a){pattern}" for pattern in patterns])


def says(patterns: tuple[str, ...], line: str) -> bool:
    """Whether a line holds one of the phrases."""
    return phrase(patterns, line) is not None


def units(line: str, language: Language) -> list[str]:
    """The units of length and distinct-n: lower-cased words (en); Chinese characters and runs of Latin letters or digits (zh);
    for other languages those of `core.languages.cut`."""
    if language == "en":
        return re.findall(r"\w+(?:'\w+)*", line.lower().replace("’", "'"))
    return re.findall(r"[一-鿿]|[a-z0-9]+", line.lower()) if language == "zh" else cut(line, language)


def knows(language: Language) -> bool:
    """Whether there are phrases in the language, so that finding none means something."""
    return lineage(language)[-1] in PAPER_LANGUAGES


def distinct(lines: Sequence[Sequence[str]], n: int) -> float | None:
    """Distinct n-grams as a share of all n-grams of all lines together (none crosses the end of a line); None without any."""
    grams = [tuple(line[i : i + n]) for line in lines for i in range(len(line) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None
