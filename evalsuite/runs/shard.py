"""The part of a run that is in one folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Shard:
    """Part `index` (from 1) of `of` equal parts."""

    index: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `I/N`; `ValueError` for anything else."""
        match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text, re.ASCII)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError("expected I/N with I from 1 to N, as in 2/4")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    def take(self, jobs: Sequence[T]) -> list[T]:
        """This shard's share of all jobs; shares differ by one at most."""
        return list(jobs[len(jobs) * (self.index - 1) // self.of : len(jobs) * self.index // self.of])


def called(shard: Shard | None) -> str:
    """A folder's part of a run, in words."""
    return f"shard {shard}" if shard else "a whole run"
