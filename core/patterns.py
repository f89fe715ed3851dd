"""Lists of regular expressions that are searched in many texts and match few."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from pydantic import RootModel

from core.settings import Pattern


class Patterns(RootModel[tuple[Pattern, ...]]):
    """Patterns in order. Each is searched only in texts that contain one of its signs, strings that every match contains: most
    texts match none of dozens of patterns."""

    def __len__(self) -> int:
        return len(self.root)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The spans of all matches, pattern by pattern."""
        return [match.span() for place in self.candidates(text) for match in self.root[place].finditer(text)]

    def candidates(self, text: str) -> list[int]:
        """The places of the patterns that may match, since the text contains one of their signs."""
        folded = _folded(text)
        present = [places for sign, places in self._signs.items() if sign in folded]
        return sorted({place for places in present for place in places}) if present else []

    @cached_property
    def _signs(self) -> dict[str, list[int]]:
        """Sign → the places of its patterns."""
        places: dict[str, list[int]] = {}
        for place, pattern in enumerate(self.root):
            for sign in (signs := _signs(parser.parse(pattern.pattern, pattern.flags))):
                if not any(other in sign for other in signs - {sign}):
                    places.setdefault(sign, []).append(place)
        return places


def _signs(parsed: Iterable[tuple[Any, Any]]) -> set[str]:
    """Strings, `_folded`, of which every match of a parsed pattern contains at least one; {""} if there are none."""
    choices, run = [{""}], ""
    joined: list[set[str]] = []
    for op, value in [*parsed, (ops.AT, None)]:
        letter = chr(value).lower() if op is ops.LITERAL else ""
        if letter and (letter.isascii() or letter == letter.upper()):
            run += letter
            continue
        before, choices, run = run, [*choices, {run}], ""
        if op is ops.BRANCH:
            # The parser takes out the common beginning of alternatives: "thanks|thank you" is "thank" and "s| you".
            words = [_word(alternative) for alternative in value[1]]
            joined += [{before + word for word in words}] if all(words) else []
            choices.append(set().union(*map(_signs, value[1])))
        elif op is ops.SUBPATTERN or (op in parser._REPEATCODES and value[0]):
            choices.append(_signs(value[-1]))
    return max([*choices, *joined], key=lambda strings: min(map(len, strings)))


def _word(parsed: Iterable[tuple[Any, Any]]) -> str:
    """The text of a parsed pattern that consists of plain letters; "" for any other."""
    letters = [chr(value).lower() if op is ops.LITERAL else "" for op, value in parsed]
    return "".join(letters) if all(letter and (letter.isascii() or letter == letter.upper()) for letter in letters) else ""


def _folded(text: str) -> str:
    """The text in lower case, with the three other letters that case-insensitive patterns match as Latin ones."""
    if text.isascii():
        return text.lower()
    return text.replace("İ", "i").replace("ı", "i").replace("ſ", "s").lower()
