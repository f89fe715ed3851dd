"""Dialogues that repeat another one: word for word, nearly, or as a part of it; within the training set, and between it and the
held-out set.

Near duplicates: an index of MinHash signatures finds candidates, the true shingle sets decide. A token is a Latin word or
number, or a single character of any other script; a shingle is three tokens in a row. So English is compared by word triples
and Chinese by character triples. Time grows linearly with the texts.

Parts: corpora cut several windows from one scene, which repeat its lines word for word but are no near duplicates of the whole.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache

from core.files import digest
from core.ledger import Build
from data_prep.role_play.examples import Draft

_Finder = Callable[[Sequence[Draft]], list[int | None]]  # for each draft the index of the one that it repeats
_TOKEN = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]")
_SHINGLE = 3
# 32 bands of 4 values find a pair of similarity 0.7 with probability 1 - (1 - 0.7^4)^32 > 0.9998.
_BANDS = (32, 4)
_CACHED = 1024  # shingle sets kept for comparisons: bounds memory
_SPACE = re.compile(r"\W+")
_SHORT = 6  # letters: lines up to this length ("Yes.", "好的") say nothing about their origin
_COMMON = 20  # nor do lines that occur in more dialogues than this


def near_duplicates(texts: Sequence[str], threshold: float = 0.8) -> list[int | None]:
    """For each text the index of the most similar earlier text that it repeats (shingle Jaccard >= `threshold`, above 0 and at
    most 1; from about 0.7 on the search misses next to none), or None if it is kept. Texts are compared with kept ones only."""
    from datasketch import MinHash, MinHashLSH

    @lru_cache(maxsize=_CACHED)
    def shingles(place: int) -> frozenset[str]:
        tokens = _TOKEN.findall(texts[place].lower())
        return frozenset(" ".join(tokens[start : start + _SHINGLE]) for start in range(max(1, len(tokens) - _SHINGLE + 1)))

    values = _BANDS[0] * _BANDS[1]
    empty = MinHash(num_perm=values, seed=1)
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
        best = max((pair for pair in scored if pair[0] >= threshold), default=None)
        result.append(None if best is None else -best[1])
        if best is None:
            index.insert(place, signature, check_duplication=False)
    return result


def parts_of_others(dialogues: Sequence[Sequence[str]], share: float = 0.5) -> list[int | None]:
    """For each dialogue, given as its lines, the index of a longer kept one that has at least `share` (0 to 1) of its letters
    in equal lines; None if it is kept. Case, white space, punctuation and speakers do not count. Longer dialogues come first,
    then earlier ones, so that the whole is kept and not its part. Time is linear in the lines."""
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


def distinct(drafts: Sequence[Draft], threshold: float, build: Build) -> list[Draft]:
    """The drafts without repetitions of others: word for word, near (Jaccard of shingles at or above `threshold`), or parts."""
    step = build.step("duplicates")
    step.taken = len(drafts)
    kept = list(drafts)
    finders: tuple[tuple[str, _Finder], ...] = (
        ("exact duplicate", _equal),
        ("near duplicate", lambda drafts: near_duplicates([draft.text for draft in drafts], threshold)),
        ("part of another dialogue", _parts),
    )
    for reason, find in finders:
        candidates, kept = kept, []
        for draft, other in zip(candidates, find(candidates), strict=True):
            if other is None:
                kept.append(draft)
            else:
                step.drop(reason, f"{draft.id} of {candidates[other].id}")
    step.kept = len(kept)
    return kept


def _equal(drafts: Sequence[Draft]) -> list[int | None]:
    """For each draft the index of an earlier one with the same words."""
    first: dict[str, int] = {}
    keys = (digest(" ".join(draft.text.lower().split()), 32) for draft in drafts)
    return [other if (other := first.setdefault(key, place)) < place else None for place, key in enumerate(keys)]


def _parts(drafts: Sequence[Draft]) -> list[int | None]:
    return parts_of_others([draft.lines for draft in drafts])


def apart(drafts: Sequence[Draft], held_out: Sequence[Draft], threshold: float, build: Build) -> list[Draft]:
    """The drafts that repeat no held-out one: not word for word, nearly, as a part of it, or as a whole around it. `drafts` are
    `distinct`: no two of them repeat each other, so a repetition is of a held-out one."""
    step = build.step("apart from held out")
    repeated = _across(drafts, held_out, lambda drafts: near_duplicates([draft.text for draft in drafts], threshold))
    repeated |= _across(drafts, held_out, _parts)
    return step.sieve(
        drafts,
        lambda draft: "repeats a held-out dialogue" if draft.id in repeated else None,
        lambda draft: f"{draft.id} of {repeated[draft.id]}",
    )


def _across(drafts: Sequence[Draft], held_out: Sequence[Draft], find: _Finder) -> dict[str, str]:
    """Draft id → id of the held-out dialogue that it repeats. `find` compares only with what it keeps; held-out dialogues that
    repeat each other are compared again in a further round."""
    repeated: dict[str, str] = {}
    while held_out:
        combined = [*held_out, *(draft for draft in drafts if draft.id not in repeated)]
        others = find(combined)
        for place, other in enumerate(others):
            if other is not None and min(place, other) < len(held_out) <= max(place, other):
                repeated[combined[max(place, other)].id] = combined[min(place, other)].id
        held_out = [draft for draft, other in zip(held_out, others, strict=False) if other is not None]
    return repeated
