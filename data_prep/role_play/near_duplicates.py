"""Texts that nearly repeat an earlier one: an index of MinHash signatures finds candidates, the true shingle sets decide.

A token is a Latin word or number, or a single character of any other script; a shingle is three tokens in a row. So English is
compared by word triples and Chinese by character triples. Time grows linearly with the texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_TOKEN = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]")
_SHINGLE = 3
# 32 bands of 4 values find a pair of similarity 0.7 with probability 1 - (1 - 0.7^4)^32 > 0.9998.
_BANDS = (32, 4)
_CACHED = 1024  # shingle sets kept for comparisons: bounds memory


def _shingles(text: str) -> frozenset[str]:
    """The text's shingles; a text of fewer tokens than a shingle is one shingle."""
    tokens = _TOKEN.findall(text.lower())
    return frozenset(" ".join(tokens[start : start + _SHINGLE]) for start in range(max(1, len(tokens) - _SHINGLE + 1)))


def near_duplicates(texts: Sequence[str], threshold: float = 0.8, seed: int = 0) -> list[int | None]:
    """For each text the index of the earlier text that it repeats (shingle Jaccard >= `threshold`), None for what is kept.

    Only kept texts are compared with, so every repeat points at one that is kept, and no two kept texts are near duplicates.
    Among several it is the most similar, then the earliest. Case, white space and punctuation do not count. `threshold` is
    above 0 and at most 1; from about 0.7 the search misses next to none.
    """
    from datasketch import MinHash, MinHashLSH

    if not 0 < threshold <= 1:
        raise ValueError(f"threshold {threshold} is not above 0 and at most 1")
    shingles = lru_cache(maxsize=_CACHED)(lambda place: _shingles(texts[place]))
    values = _BANDS[0] * _BANDS[1]
    empty = MinHash(num_perm=values, seed=seed + 1)
    index = MinHashLSH(num_perm=values, params=_BANDS)
    result: list[int | None] = []
    for place in range(len(texts)):
        place_shingles = shingles(place)
        signature = empty.copy()
        signature.update_batch([shingle.encode() for shingle in sorted(place_shingles)])
        scored = []
        for other in index.query(signature):
            theirs = shingles(other)
            shared = len(place_shingles & theirs)
            scored.append((shared / (len(place_shingles) + len(theirs) - shared), -other))
        best = max((one for one in scored if one[0] >= threshold), default=None)
        result.append(None if best is None else -best[1])
        if best is None:
            index.insert(place, signature, check_duplication=False)
    return result
