"""What a server that we launch inherits: this process's environment without its secrets.

A server runs code from a checkpoint's publisher and from many packages, and needs none of the keys that a shell holds. The
hub's token is left to those that download from the hub. One that needs another secret (weights in a bucket) has to be started
by hand and named with --endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HUB = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"})
_NAME = re.compile(
    r"(?:^|_)(?:(?:\w*API)?KEYS?|TOKENS?|SECRETS?|PASSW(?:OR)?DS?|PASSPHRASE|PWD|CREDENTIALS?|AUTH|PAT|COOKIE|DSN)(?:_|$)"
    r"|(?:KEY|TOKEN|SECRET|PASSWORD)$",
    re.I,
)
_VALUE = re.compile(r"(?:sk-|hf_|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA|AIza|Bearer )|.*-----BEGIN", re.S)
_IN_ADDRESS = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
_SWITCHES = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off"})
_PLAIN = frozenset({"PWD", "OLDPWD"})  # folders


def without_secrets(given: Mapping[str, str], named: Iterable[str] = (), hub: bool = False) -> dict[str, str]:
    """The variables that hold no secret: by their name, by what their value looks like, and by `named` (those that hold keys of
    endpoints). With `hub`, the hub's token stays, and a proxy's password."""
    keys = set(named)
    return {
        name: value
        for name, value in given.items()
        if (hub and (name in HUB or name.lower().endswith("_proxy"))) or not (name in keys or _secret(name, value))
    }


def _secret(name: str, value: str) -> bool:
    if name in _PLAIN or value.lower() in _SWITCHES:
        return False
    return bool(_NAME.search(name) or _VALUE.match(value) or _IN_ADDRESS.search(value))
