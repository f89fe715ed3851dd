"""Keys stay out of all files and messages: they are masked in text, and refused in addresses."""

import json
import re
from functools import lru_cache
from typing import Annotated
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator

SECRET_FROM = 8  # shortest key that is masked in answers: "x", "1" or "EMPTY" are ordinary text there
MASK = "***"
# A token in a URL's path begins as keys do, or is long, has digits and no hyphen.
_BEGUN = r"(?:(?:sk|pk|hf|gsk|xai|gh[opsu]|glpat|key|token)[-_=]|eyJ)[\w.-]{8,}"
_TOKEN = re.compile(rf"(?<=[^/]/)(?:{_BEGUN}|(?=[a-z_]*\d)\w{{24,}}(?![-.]))", re.I)


@lru_cache(maxsize=64)
def _forms(key: str) -> list[str]:
    """The ways to write a key: plain, in JSON (also nested), and in a URL; longest first."""
    forms, in_url = {key}, quote(key, safe="")
    for _ in range(2):
        forms |= {json.dumps(form)[1:-1] for form in forms} | {form.replace("/", r"\/") for form in forms}
    return sorted(forms | {in_url, in_url.lower()}, key=len, reverse=True)


def _replace(text: str, key: str) -> str:
    for form in _forms(key):
        text = text.replace(form, MASK)
    return text


def mask_answer(text: str, key: str | None) -> str:
    """Model text without the key, also in JSON or a URL; a key shorter than `SECRET_FROM` stays, since it may be a word."""
    return text if key is None or not SECRET_FROM <= len(key) <= len(text) else _replace(text, key)


def mask_message(text: str, key: str | None) -> str:
    """An error message without the key, also in JSON or a URL; a key shorter than `SECRET_FROM` only as a separate word."""
    if key is None:
        return text
    if len(key) >= SECRET_FROM:
        return _replace(text, key)
    forms = "|".join(map(re.escape, _forms(key)))
    return re.sub(rf"(?<![A-Za-z0-9])(?:{forms})(?![A-Za-z0-9])", MASK, text)


def mask_paths(text: str) -> str:
    """Text with parts of URL paths that look like tokens masked."""
    return re.sub(r"https?://\S+", lambda url: _TOKEN.sub(MASK, url[0]), text)


def problem_of(url: str) -> str | None:
    """What is wrong with a server's address that may contain a password or key, without repeating it; None for a plain one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "not an address"
    try:
        _ = parts.port
    except ValueError:
        return "the port is a number from 0 to 65535"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "an address has no user, password or query: name the key's variable in endpoint.api_key_env or NAME@URL#VARIABLE"
    if parts.path.rstrip("/").endswith("/chat/completions"):
        return "leave out /chat/completions, which is added to the address"
    return None


def _plain(url: str) -> str:
    if problem := problem_of(url):
        raise ValueError(problem)
    return url


PlainUrl = Annotated[str, AfterValidator(_plain)]
