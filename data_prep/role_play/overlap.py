"""Dialogues that are part of another one: corpora cut several windows from one scene, and a window repeats its lines word for
word without being a near duplicate of the whole."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_SPACE = re.compile(r"\W+")
_SHORT = 6  # letters: shorter lines ("Yes.", "好的") say nothing about where they come from
_COMMON = 20  # nor do lines that stand in so many dialogues


def parts_of_others(dialogues: Sequence[Sequence[str]], share: float = 0.5) -> list[int | None]:
    """For each dialogue, given as its lines, the index of a longer kept one that holds at least `share` (0 to 1) of its letters
    in equal lines; None for what is kept.

    Case, white space and punctuation do not count, nor who said a line. Longer dialogues are looked at first, of equally long
    ones the earlier, so what is kept is the whole and not its part. Linear in the lines.
    """
    lines = [{line: None for line in (_SPACE.sub("", text.lower()) for text in dialogue)} for dialogue in dialogues]
    letters = [sum(map(len, texts)) for texts in lines]
    holders: dict[str, list[int]] = defaultdict(list)
    result: list[int | None] = [None] * len(dialogues)
    for place in sorted(range(len(dialogues)), key=lambda i: (-letters[i], i)):
        shared: Counter[int] = Counter()
        telling = [line for line in lines[place] if len(line) > _SHORT]
        for line in telling:
            if len(holders[line]) <= _COMMON:
                for other in holders[line]:
                    shared[other] += len(line)
        best = min(shared, key=lambda other: (-shared[other], other), default=None)
        if best is not None and shared[best] >= share * letters[place]:
            result[place] = best
            continue
        for line in telling:
            holders[line].append(place)
    return result
