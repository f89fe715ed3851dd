"""Checks of lines written by a simulator: phrases that no seeker says, length, repetition."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from core.files import CONFIGS
from core.languages import PAPER_LANGUAGES, counts, cut, lineage
from core.records import Language
from core.settings import Patterns, load_yaml

_PHRASES = load_yaml(CONFIGS / "line_checks.yaml", "phrases of line checks")
MACHINE: tuple[str, ...] = tuple(_PHRASES["machine"])
"""Phrases that give the machine away."""
SUPPORTER: tuple[str, ...] = tuple(_PHRASES["supporter"])
"""Phrases of a supporter rather than a seeker."""

_WORD = re.compile(r"[a-z0-9]+")
_HAN = re.compile(r"[一-鿿]+")
# Function words, and words that cards use of every seeker.
_STOP_WORDS = """
a about advice after again against ain all also am an and any are aren as at be because been before being between both
but by can considering cope could couldn dealing despite did didn do does doesn doing don down due during each
experiencing feel feeling feelings feels felt few for from further get gets getting go going got had hadn has hasn have
haven having he help her here hers him his how i if im in into is isn it its just know lack like ll look looking m make
makes making may me might mine more most must my no nor not now of off on once one only or other our out over own re
really s same seek seeker seeking shall she should so some struggle struggling such t than that the their them then
there these they think thinking this those though thought through to too try trying under unsure until up us ve very
want wants was wasn we well were what when where which while who whom why will with would you your yours
"""
_STOP_EN = frozenset(_STOP_WORDS.split())
_STOP_ZH = frozenset("的了是我你他她它们在和就都也不有这那很吗呢吧啊着过说会要对把被让给跟与而但又还以及其")


def phrase(patterns: tuple[str, ...], line: str) -> str | None:
    """The first part of a line that matches one of the phrases, or None. Case and the form of apostrophes do not matter."""
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


def terms(text: str, language: Language) -> list[str]:
    """The words (en) or character pairs (zh, with its Latin words) to search, in order, without stop words. Other languages are
    cut in one of these ways, and have no stop words here."""
    if language not in PAPER_LANGUAGES:
        parts = cut(text, language)
        return parts if counts(language) == "words" else [a + b for a, b in pairwise(parts)]
    text = text.lower()
    words = [word for word in _WORD.findall(text) if word not in _STOP_EN]
    if language == "en":
        return words
    for run in _HAN.findall(text):
        words += [a + b for a, b in pairwise(run) if a not in _STOP_ZH or b not in _STOP_ZH]
    return words


def knows(language: Language) -> bool:
    """Whether there are phrases in the language, so that finding none means something."""
    return lineage(language)[-1] in PAPER_LANGUAGES


def distinct(lines: Sequence[Sequence[str]], n: int) -> float | None:
    """Distinct n-grams as a share of all n-grams of all lines together (none crosses the end of a line); None without any."""
    grams = [tuple(line[i : i + n]) for line in lines for i in range(len(line) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None
