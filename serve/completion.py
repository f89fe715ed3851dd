"""What the body of a chat completion says. Servers agree on the text of an answer and on little else, so everything around it
is read forgivingly: a good text is not lost to odd token counts or broken probabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

MOST = 2**53  # tokens that a count may claim
ROUNDING = 0.02  # by how much rounded probabilities may sum to more than 1
_NO_MASS = -9999.0  # what vLLM writes for a log-probability of minus infinity
Tokens = list[tuple[str, dict[str, float]]]


def parse(raw: bytes) -> Any:
    """A body as JSON. What Python's writer lets through and JSON forbids is mended: NaN becomes null, half a surrogate pair
    U+FFFD. Raises `ValueError` for anything else that is not JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(raw.decode("utf-8"), parse_constant=_constant, parse_float=_finite, parse_int=_short)
            text = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return orjson.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _constant(name: str) -> float | None:
    return _NO_MASS if name == "-Infinity" else None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _short(text: str) -> int | None:
    return int(text) if len(text) < 20 else None


def text_of(content: Any) -> str:
    """A message's text: a string, nothing, or a list of parts of which those of text count. Raises `TypeError` for others."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError(f"content is {type(content).__name__}")
    parts = (part if isinstance(part, Mapping) else {"text": part} for part in content)
    texts = (part.get("text") for part in parts if part.get("type", "text") in ("text", "output_text"))
    return "".join(text for text in texts if isinstance(text, str))


def count_of(usage: Any, name: str) -> int:
    """A number of tokens from a usage object, 0 where it holds none that can be one."""
    value = usage.get(name) if isinstance(usage, Mapping) else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return min(max(int(value), 0), MOST)


def tokens_of(logprobs: Any) -> Tokens | None:
    """Each token of an answer with its alternatives' log-probabilities, its own among them.

    None where the server reported none; empty where what it reported is no list of tokens. A token with a log-probability that
    is not a finite number has no alternatives.
    """
    if not logprobs or (isinstance(logprobs, Mapping) and not logprobs.get("content")):
        return None
    listed = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(listed, list) or not all(_is_token(token) for token in listed):
        return []
    return [(token["token"], _alternatives(token)) for token in listed]


def _is_token(token: Any) -> bool:
    return isinstance(token, Mapping) and isinstance(token.get("token"), str)


def _alternatives(token: Mapping[str, Any]) -> dict[str, float]:
    others = token.get("top_logprobs") or []
    found = {}
    for one in [*(others if isinstance(others, list) else [None]), token]:
        value = one.get("logprob") if _is_token(one) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return {}
        found[one["token"]] = float(value)
    return found


def sound(token: str, alternatives: Mapping[str, float]) -> bool:
    """Whether these can be log-probabilities of what could have stood where `token` stands: finite, together no more than a
    probability of 1, and the token itself possible."""
    if token not in alternatives or not all(math.isfinite(value) and value <= ROUNDING for value in alternatives.values()):
        return False
    return math.exp(alternatives[token]) > 0 and sum(map(math.exp, alternatives.values())) <= 1 + ROUNDING
