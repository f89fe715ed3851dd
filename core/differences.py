"""What differs between two configs: the leaves of two JSON values, side by side."""

from __future__ import annotations

from typing import Any

import orjson


def differing_leaves(old: Any, new: Any, where: str = "") -> list[str]:
    """The leaves in which two JSON values differ, as `path: old → new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted(set(old) | set(new)):
            lines += differing_leaves(old.get(key), new.get(key), f"{where}.{key}" if where else key)
        return lines
    return [] if old == new else [f"{where}: {_short(old)} → {_short(new)}"]


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"
