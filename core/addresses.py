"""How a command line and a config name a model that is served somewhere: NAME@URL, or NAME@URL#VARIABLE with a key."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass

from core.errors import UserError
from core.masking import problem_of

FORM = "NAME@http://HOST:PORT/v1"
SPEC_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Address:
    """A model behind a URL. `name` is what the server knows it by, or what a spec is found by; `key_variable` names the
    environment variable that holds the key."""

    name: str
    url: str
    key_variable: str | None


def named_part(text: str) -> str:
    """What stands before the URL: the whole text where there is none. A served name may itself hold an @."""
    return re.split(r"@(?=https?://)", text, maxsplit=1, flags=re.IGNORECASE)[0]


def address_of(text: str) -> Address | None:
    """What NAME@URL says; None for a text that names a spec or a file. Raises `UserError` for one that is malformed."""
    name = named_part(text)
    if name == text:
        before, sign, _ = text[1:].partition("@")  # what follows is not repeated: it may hold a password
        if re.match(r"https?://", text, re.IGNORECASE):
            raise UserError(f"the address of a model stands behind its name: {FORM}")
        if sign and not text.endswith(SPEC_FILES):
            raise UserError(f"model {text[:1]}{before[:100]}@…: no http:// or https:// after the @: expected {FORM}")
        return None
    place, sign, variable = text[len(name) + 1 :].partition("#")
    if not name:
        raise UserError(f"the address of a model stands behind its name: {FORM}")
    if problem := url_problem(place):
        raise UserError(f"model {name}: {problem}")
    if sign:
        check_key_variable(variable, f"model {name}: what follows #")
    return Address(name, place.rstrip("/"), variable or None)


def url_problem(url: str) -> str | None:
    """What keeps a text from being a server's address; None where it is one."""
    if problem := problem_of(url):
        return problem
    return None if re.match(r"https?://[^/\s]+", url, re.IGNORECASE) else "expected http://HOST:PORT/v1"


def check_key_variable(variable: str, where: str) -> None:
    """Raise `UserError` for what is not the name of a variable. It is not repeated: it may be the key itself."""
    named = variable in os.environ or re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable)  # small letters: a key, as gsk_… and hf_…
    if not named or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise UserError(f"{where} takes the name of an environment variable that is set, never the key itself")


def secret_of(variable: str, where: str) -> str:
    """The key, or another header's value, that an environment variable holds. Raises `UserError` where that is not set, or no
    header may carry it."""
    value = os.environ.get(variable)
    if not value:
        raise UserError(f"{where}: set the environment variable {variable} to its API key")
    if not re.fullmatch(r"[!-~]+", value):
        raise UserError(f"{where}: the key in {variable} holds a space, a line break or what no header may carry")
    return value


def is_loopback(address: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    try:
        return address == "localhost" or ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:  # a name, or nothing (which means all addresses)
        return False


def record_name(served: str, fallback: str) -> str:
    """The name in records and of files for a model that a server knows as `served`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", served).strip("-._")[:100].rstrip("-._") or fallback
