"""Lists of regular expressions that are searched in many texts and match few."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from pydantic import RootModel

from core.settings import Pattern


class Patterns(RootModel[tuple[Pattern, ...]]):
    """Patterns in order. Each is searched only in texts with its signs, strings in every match, since most texts match few."""

    def __len__(self) -> int:
        return len(self.root)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The spans of all matches, pattern by pattern."""
        return [match.span() for place in self.candidates(text) for match in self.root[place].finditer(text)]

    def candidates(self, text: str) -> list[int]:
        """The places of the patterns that may match, since the text contains their signs."""
        folded = _folded(text)
        first, further = self._signs
        present = {place for sign, places in first.items() if sign in folded for place in places}
        return sorted(place for place in present if all(any(sign in folded for sign in choices) for choices in further[place]))

    @cached_property
    def _signs(self) -> tuple[dict[str, list[int]], list[list[set[str]]]]:
        """Sign → the places of its patterns, for the first set of each pattern's signs; and every pattern's other sets."""
        places: dict[str, list[int]] = {}
        further = []
        for place, pattern in enumerate(self.root):
            first, *others = _signs(parser.parse(pattern.pattern, pattern.flags)) or [{""}]
            for sign in _shortest(first):
                places.setdefault(sign, []).append(place)
            further.append([_shortest(choices) for choices in others])
        return places, further


def _shortest(signs: set[str]) -> set[str]:
    """The signs without those that contain another."""
    return {sign for sign in signs if not any(other in sign for other in signs - {sign})}


def _signs(parsed: Iterable[tuple[Any, Any]]) -> list[set[str]]:
    """Sets of strings, `_folded`, such that every match of a parsed pattern contains a string of each set; a small set of
    strings of at least three letters first, since few texts contain one and the search for them is short."""
    sets, run = [], ""
    for op, value in [*_ungrouped(parsed), (ops.AT, None)]:
        letter = chr(value).lower() if op is ops.LITERAL else ""
        if letter and (letter.isascii() or letter == letter.upper()):
            run += letter
            continue
        before, run = run, ""
        sets += [{before}] if before else []
        if op is ops.BRANCH:
            # The parser takes out the common beginning of alternatives: "thanks|thank you" is "thank" and "s| you".
            words = [_word(alternative) for alternative in value[1]]
            sets += [{before + word for word in words}] if before and all(words) else []
            alternatives = [_signs(alternative) for alternative in value[1]]
            sets += [set().union(*(signs[0] for signs in alternatives))] if all(alternatives) else []
        elif op is ops.IN and all(letters := [_word([item]) for item in value]):
            sets.append(set(letters))
        elif op in parser._REPEATCODES and value[0]:
            sets += _signs(value[-1])
    return sorted(sets, key=lambda signs: (-min(3, *map(len, signs)), len(signs)))


def _ungrouped(parsed: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """A parsed pattern with what is in its groups in their place."""
    for op, value in parsed:
        yield from _ungrouped(value[-1]) if op is ops.SUBPATTERN else [(op, value)]


def _word(parsed: Iterable[tuple[Any, Any]]) -> str:
    """The text of a parsed pattern that consists of plain letters; "" for any other."""
    letters = [chr(value).lower() if op is ops.LITERAL else "" for op, value in parsed]
    return "".join(letters) if all(letter and (letter.isascii() or letter == letter.upper()) for letter in letters) else ""


def _folded(text: str) -> str:
    """The text in lower case, with the three other letters that case-insensitive patterns match as Latin ones."""
    if text.isascii():
        return text.lower()
    return text.replace("İ", "i").replace("ı", "i").replace("ſ", "s").lower()
