"""Patterns of YAML files: searched by their signs, they match just what each of them matches by itself."""

import re
import string
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from core.languages import PAPER_LANGUAGES
from core.settings import Patterns, _folded
from evalsuite.checks.risk import load_lexicon

STRANGE = {"i": "iI\u0130\u0131", "s": "sS\u017f", "k": "kK\u212a"}


@cache
def lists() -> list[Patterns]:
    """All of configs/risk."""

    def inside(value: object) -> Iterator[Patterns]:
        if isinstance(value, Patterns):
            yield value
        elif isinstance(value, BaseModel | dict):
            for _, part in value.items() if isinstance(value, dict) else value:
                yield from inside(part)

    return [patterns for language in PAPER_LANGUAGES for patterns in inside(load_lexicon(language))]


def one_by_one(patterns: Patterns, text: str) -> list[tuple[int, int]]:
    return [match.span() for pattern in patterns.root for match in pattern.finditer(text)]


@pytest.mark.slow
@given(st.data())
def test_texts_that_patterns_match_are_found_by_their_signs(data: st.DataObject) -> None:
    patterns = data.draw(st.sampled_from(lists()))
    pattern = data.draw(st.sampled_from(patterns.root))
    text = data.draw(st.from_regex(pattern))
    text = "".join(data.draw(st.sampled_from(STRANGE.get(letter.lower(), letter + letter.swapcase()))) for letter in text)
    for each in lists():
        assert each.spans(text) == one_by_one(each, text)


@given(st.from_regex(r"(it|[aes]b?|\.)*", fullmatch=True))
def test_every_kind_of_expression(text: str) -> None:
    patterns = Patterns(
        (
            *("it", "s?it", "[ie]t", "(s|i)t", "(it)*", "(it)+?s", "(?:it){2,}", "i(?=t)", "(?<!s)it", r"\bit\b"),
            *("(?>it|a)s", "a++b"),
            *("sit|a", "(it|)e", "(i)t(?(1)s|e)", "(?P<x>e)(?P=x)", "(?-i:I)t|e", "é?it", "éit", r"\.", ".", "", "^$"),
        )
    )
    assert patterns.spans(text) == one_by_one(patterns, text)


EVERYTHING = "".join(map(chr, range(0x110000)))


@pytest.mark.slow
@pytest.mark.parametrize("letter", string.ascii_lowercase)
def test_letters_that_stand_for_a_latin_one(letter: str) -> None:
    found = re.findall(letter, EVERYTHING, re.IGNORECASE)
    assert len(found) >= 2 and {_folded(sign) for sign in found} == {letter}


def test_most_texts_are_searched_by_no_pattern() -> None:
    """What the signs are for: a seeker's ordinary sentence has few of them."""
    for language, text in (
        ("en", "My sister says I am lazy and that everyone gets tired."),
        ("zh", "三月份搬过来，每天一个人吃饭。"),
    ):
        for patterns in load_lexicon(language).seeker.values():
            assert not patterns.candidates(text)
