"""Models behind a URL, as command lines and configs name them: NAME@URL, or NAME@URL#VARIABLE with a key."""

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
    """A model behind a URL: `name` is the server's name or a spec's, `key_variable` the environment variable with the key."""

    name: str
    url: str
    key_variable: str | None


def named_part(text: str) -> str:
    """The text before the URL, or all of it if there is no URL. A served name may itself contain an @."""
    return re.split(r"@(?=https?://)", text, maxsplit=1, flags=re.IGNORECASE)[0]


def address_of(text: str) -> Address | None:
    """The parts of NAME@URL; None for the name of a spec or a file. Raises `UserError` for a malformed address."""
    name = named_part(text)
    if name == text:
        before, sign, _ = text[1:].partition("@")  # the rest may hold a password, so the message leaves it out
        if re.match(r"https?://", text, re.IGNORECASE):
            raise UserError(f"put the model's name before its address: {FORM}")
        if sign and not text.endswith(SPEC_FILES):
            raise UserError(f"model {text[:1]}{before[:100]}@…: no http:// or https:// after the @: expected {FORM}")
        return None
    place, sign, variable = text[len(name) + 1 :].partition("#")
    if not name:
        raise UserError(f"put the model's name before its address: {FORM}")
    if problem := url_problem(place):
        raise UserError(f"model {name}: {problem}")
    if sign:
        check_key_variable(variable, f"model {name}: the part after #")
    return Address(name, place.rstrip("/"), variable or None)


def url_problem(url: str) -> str | None:
    """Why a text is not a server's address; None if it is one."""
    if problem := problem_of(url):
        return problem
    return None if re.match(r"https?://[^/\s]+", url, re.IGNORECASE) else "expected http://HOST:PORT/v1"


def check_key_variable(variable: str, where: str) -> None:
    """Raise `UserError` for a text that is not the name of a variable, without repeating it: it may be the key itself."""
    named = variable in os.environ or re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable)  # keys have small letters: gsk_…, hf_…
    if not named or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise UserError(f"{where} takes the name of an environment variable that is set, never the key itself")


def secret_of(variable: str, where: str) -> str:
    """The key (or another header's value) in an environment variable. Raises `UserError` if it is unset or unfit."""
    value = os.environ.get(variable)
    if not value:
        raise UserError(f"{where}: set the environment variable {variable} to its API key")
    if not re.fullmatch(r"[!-~]+", value):
        raise UserError(f"{where}: the key in {variable} contains a space, a line break or a character forbidden in headers")
    return value


def is_loopback(address: str) -> bool:
    """Whether a host name or address means this machine."""
    try:
        return address == "localhost" or ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:  # another name, or "" (all addresses)
        return False


def record_name(served: str, fallback: str) -> str:
    """A name for records and files, made from the server's name for a model."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", served).strip("-._")[:100].rstrip("-._") or fallback
