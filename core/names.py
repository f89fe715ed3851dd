"""Names of people, models and things in records: one spelling each, so that nobody is counted twice. And numbers as people and
spreadsheets write them."""

import math
import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any, NamedTuple

from pydantic import BaseModel

from core.errors import UserError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_INVISIBLE = re.compile(r"[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_SPACE = re.compile(r"[\xa0\u2000-\u200a\u202f\u3000]")


def composed(text: str) -> str:
    """The text, stripped, with plain spaces, without invisible characters and in Unicode's composed form (NFC): `é` is one
    letter, however it was typed."""
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", _SPACE.sub(" ", text)).strip())


@lru_cache(maxsize=100_000)  # a run's records repeat the same few names
def plain_name(text: str) -> str:
    """The name, `composed`. Raises `ValueError` for control characters, which no spreadsheet or page shows."""
    if text.isascii() and text.isprintable():
        return text.strip()
    text = composed(text)
    if _CONTROL.search(text):
        raise ValueError("a control character (a line end, a tab or NUL) in a name")
    return text


def in_order(name: str) -> list[str]:
    """A sort key that takes numbers in names as numbers: 2 before 10."""
    return [part.zfill(20) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


class Spelt(NamedTuple):
    """Marks a field that names a person or a model: two names of one `kind` may not differ in case alone."""

    kind: str


class Spellings:
    """Refuses a name that differs from an earlier one of its kind only in case: a slip would turn one person into two."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[str, object]] = {}

    def add(self, kind: str, name: str, where: object) -> None:
        """Note a name. Raises `UserError` with both spellings and their places."""
        first, place = self._seen.setdefault((kind, name.casefold()), (name, where))
        if first != name:
            raise UserError(f"{where}: {kind} {name!r} is {first!r} ({place}) in another case: write one name in one way")

    def of(self, record: BaseModel, where: object) -> None:
        """Note every name of a record."""
        for field, kind in _spelt(type(record)):
            if (name := getattr(record, field)) is not None:
                self.add(kind, name, where)


def one_spelling(records: Iterable[BaseModel], where: object) -> None:
    """Raise `UserError` if records of several files spell a name in different cases."""
    spellings = Spellings()
    for record in records:
        spellings.of(record, where)


@cache
def _spelt(model: type[BaseModel]) -> list[tuple[str, str]]:
    fields: dict[str, Any] = model.model_fields
    return [(name, mark.kind) for name, field in fields.items() for mark in field.metadata if isinstance(mark, Spelt)]


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"^([+-]?\d*),(\d{1,2})$", re.ASCII)
_FULL_WIDTH = {ord(sign) + 0xFEE0: sign for sign in "0123456789.,+-"}


def number(text: str) -> float:
    """The number in a cell: digits 0 to 9, also full-width, with a point, an exponent and surrounding white space (`3`, `-0.5`,
    ` 1e2 `), or with a decimal comma and at most two digits after it (`1,5`; three might be thousands).

    Raises `ValueError` for anything else, even if `float` accepts it: `1_0`, `nan`, `inf`, digits of other scripts.
    """
    text = _COMMA.sub(r"\1.\2", text.strip().translate(_FULL_WIDTH))
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise ValueError("a number is expected")
    return value


def number_of(value: Any) -> Any:
    """A field's value before pydantic's validation, with text converted to a number. Raises `ValueError` for true and false."""
    if type(value) is float:  # the common case, first because very many are read
        return value
    if isinstance(value, bool):
        raise ValueError("a number is expected, not true or false")
    return number(value) if isinstance(value, str) else value
