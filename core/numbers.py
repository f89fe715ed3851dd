"""Numbers as people and spreadsheets write them."""

import math
import re
from typing import Any

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
