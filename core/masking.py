"""Keys stay out of everything that is kept or shown: they are masked in text, and refused in addresses."""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

SECRET_FROM = 8  # characters from which a key is masked in answers too: "x", "1" or "EMPTY" are ordinary text there
MASK = "***"
# A part of a path that is a token: it begins as keys do, or is long, without a word's hyphen, and has digits.
_BEGUN = r"(?:(?:sk|pk|hf|gsk|xai|gh[opsu]|glpat|key|token)[-_=]|eyJ)[\w.-]{8,}"
_TOKEN = re.compile(rf"(?<=[^/]/)(?:{_BEGUN}|(?=[a-z_]*\d)\w{{24,}}(?![-.]))", re.I)


@lru_cache(maxsize=64)
def _spelled(key: str) -> str:
    """A regular expression for a key in which every character may be escaped, as JSON, URLs, HTML and Python do. Backslashes
    are bounded, so that a text full of them is read in linear time."""
    parts = []
    for c in key:
        code = ord(c)
        ways = [re.escape(c), rf"\\{{1,4}}(?:{re.escape(c)}|(?i:u{code:04x}|x{code:02x}))", f"(?i:%{code:02x})"]
        ways += [f"&#0*{code};", f"(?i:&#x0*{code:x};)"]
        if html.escape(c) != c:
            ways.append(html.escape(c))
        parts.append("(?:" + "|".join(ways) + ")")
    return "".join(parts)


def _replace(text: str, key: str) -> str:
    if any(mark in text for mark in "\\%&"):
        return re.sub(_spelled(key), MASK, text)
    return text.replace(key, MASK)


def mask_answer(text: str, key: str | None) -> str:
    """Model text without the key, however it is escaped. A key of less than `SECRET_FROM` characters is left: it would
    take ordinary words, or a verdict, out of the text."""
    return text if key is None or not SECRET_FROM <= len(key) <= len(text) else _replace(text, key)


def mask_message(text: str, key: str | None) -> str:
    """An error message without the key, however it is escaped; a key of less than `SECRET_FROM` characters is masked as a
    word of its own."""
    if key is None:
        return text
    if len(key) >= SECRET_FROM:
        return _replace(text, key)
    return re.sub(rf"(?<![A-Za-z0-9]){_spelled(key)}(?![A-Za-z0-9])", MASK, text)


def mask_paths(text: str) -> str:
    """Text whose addresses do not show what looks like a token in their path."""
    return re.sub(r"https?://\S+", lambda url: _TOKEN.sub(MASK, url[0]), text)


def problem_of(url: str) -> str | None:
    """What is wrong with a server's address that holds, or may hold, a password or key, without repeating it; None for a plain
    one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "not an address"
    try:
        _ = parts.port
    except ValueError:
        return "the port is a number from 0 to 65535"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return (
            "an address takes no user, password or query: put the key into an environment variable and name that in "
            "endpoint.api_key_env, or behind the address: NAME@URL#VARIABLE"
        )
    return None


def _plain(url: str) -> str:
    if problem := problem_of(url):
        raise ValueError(problem)
    return url


PlainUrl = Annotated[str, AfterValidator(_plain)]
