"""Differences between two configs: the leaves of two JSON values, side by side."""

from collections.abc import Iterator
from typing import Any

import orjson

SHOWN = 60  # characters of a value


def changed_leaves(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The leaves in which two JSON values differ: path, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            yield from changed_leaves(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        yield where, old, new


def differing_leaves(old: Any, new: Any) -> list[str]:
    """The leaves in which two JSON values differ, as `path: old → new`."""
    return [f"{where}: {_short(before)} → {_short(after)}" for where, before, after in changed_leaves(old, new)]


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "…"
