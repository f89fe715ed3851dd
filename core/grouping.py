"""Records in groups."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_by(records: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The records of each key, both in the order of the input."""
    groups: dict[K, list[T]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups
