"""Training dialogues for the simulator from corpus items.

The trained side is `assistant` (the seeker of a support dialogue, the character of a general one), its partner is `user`, and
the system message is the one that simulation sends (core.prompts).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from core.errors import UserError, need_modules
from core.files import digest
from core.languages import words
from core.ledger import Build
from core.markers import markers_in
from core.prompts import PromptPack, character_system, greeting, opening, seeker_system
from core.records import Identifier, Language, Message, Name, Record, RoleCard, RolePlay, SupportDialogue, Whole
from serve.checkpoints.places import local_path, materialise

Kind = Literal["support", "role_play"]
EMBEDDED = "embedded"


class RoleExample(Record):
    """One training dialogue of the role-play set: a system message, then user and assistant in turn, ending with assistant.
    `turns` counts the corpus's own turns (without an added greeting), `tokens` the whole dialogue in ChatML."""

    id: Identifier
    language: Language
    kind: Kind
    source: Name
    source_id: Name
    card_id: Name | None = None
    card_method: Literal["llm", "heuristic", "written"] | None = None
    turns: Annotated[Whole, Field(ge=2)]
    tokens: Annotated[Whole, Field(gt=0)]
    messages: tuple[Message, ...]


@dataclass
class Draft:
    """An example under construction. `messages` lack the system message; the first `placed` (0 or 1) are not the corpus's."""

    item: SupportDialogue | RolePlay
    card: RoleCard | None
    pack: PromptPack
    """The pack of its system message."""
    messages: list[Message]
    placed: int
    tokens: int = 0

    def __post_init__(self) -> None:
        support = isinstance(self.item, SupportDialogue)
        origin = self.item.dialogue if isinstance(self.item, SupportDialogue) else self.item
        self.id, self.language = self.item.id, self.item.language
        self.kind: Kind = "support" if support else "role_play"
        self.source, self.source_id = origin.source, origin.source_id or self.item.id

    @property
    def turns(self) -> int:
        return len(self.messages) - self.placed

    @property
    def text(self) -> str:
        """The corpus's own messages, in which duplicates are searched for."""
        return "\n".join(message["content"] for message in self.messages[self.placed :])

    @property
    def lines(self) -> list[str]:
        """The corpus's own lines, of both sides."""
        if isinstance(self.item, SupportDialogue):
            return [turn.text for turn in self.item.dialogue.turns]
        return [line.text for line in self.item.lines]

    @property
    def system(self) -> Message:
        """The system message, rendered on demand: it is longer than many dialogues."""
        if isinstance(self.item, SupportDialogue):
            assert self.card is not None
            return {"role": "system", "content": seeker_system(self.pack, self.card)}
        return {"role": "system", "content": character_system(self.pack, self.item)}

    def example(self) -> RoleExample:
        return RoleExample(
            id=self.id,
            language=self.language,
            kind=self.kind,
            source=self.source,
            source_id=self.source_id,
            card_id=self.card.id if self.card else None,
            card_method=self.card.card_method if self.card else None,
            turns=self.turns,
            tokens=self.tokens,
            messages=(self.system, *self.messages),
        )


def support_draft(item: SupportDialogue, card: RoleCard, prompts: PromptPack) -> Draft:
    """A support dialogue from the seeker's side. If the seeker speaks first, the simulation's greeting is put before it."""
    lines = [("assistant" if turn.role == "seeker" else "user", turn.text) for turn in item.dialogue.turns]
    return _draft(item, card, prompts, lines, greeting(prompts, item.language))


def role_play_draft(item: RolePlay, general: PromptPack) -> Draft:
    """A general dialogue from the character's side. Partners' lines begin with their names if there are several partners."""
    several = len({line.name for line in item.lines if line.role == "partner"}) > 1
    colon = words(item.language).colon
    lines = []
    for line in item.lines:
        role = "assistant" if line.role == "character" else "user"
        lines.append((role, f"{line.name}{colon}{line.text}" if several and role == "user" else line.text))
    return _draft(item, None, general, lines, opening(general, item.language))


def _draft(
    item: SupportDialogue | RolePlay, card: RoleCard | None, pack: PromptPack, lines: Iterable[tuple[str, str]], before: str
) -> Draft:
    """Messages in turn, one for consecutive lines of a side; `before` opens a dialogue that the trained side begins."""
    messages: list[Message] = [
        {"role": role, "content": "\n".join(text for _, text in group)} for role, group in groupby(lines, key=itemgetter(0))
    ]
    placed = int(bool(messages) and messages[0]["role"] == "assistant")
    if placed:
        messages.insert(0, {"role": "user", "content": before})
    if messages and messages[-1]["role"] == "user":
        messages.pop()  # an unanswered message trains nothing
    return Draft(item, card, pack, messages, placed)


def fit(draft: Draft, system_tokens: int, counts: Sequence[int], limit: int) -> bool:
    """Cut whole exchanges off the end until the dialogue fits `limit` tokens, and set `tokens`; True if something was cut.
    `counts` are the tokens of its messages. No message is left if not even the first answer fits."""
    total, kept = system_tokens, 0
    for index, count in enumerate(counts):
        total += count
        if total > limit:
            break
        if draft.messages[index]["role"] == "assistant":
            kept, draft.tokens = index + 1, total
    cut = kept < len(draft.messages)
    del draft.messages[kept:]
    return cut


class TokenCounter:
    """Counts tokens of chat messages with a checkpoint's tokenizer: `embedded`, a folder (or its tokenizer.json), or a hub id.
    Raises `UserError` if there is no readable tokenizer.json."""

    def __init__(self, place: str = EMBEDDED) -> None:
        need_modules("tokenizers", purpose="counting tokens")
        from tokenizers import Tokenizer

        folder = materialise() if place == EMBEDDED else local_path(place, "tokenizer")
        try:
            if folder is None:
                self._tokenizer = Tokenizer.from_pretrained(place)
            else:
                self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json" if folder.is_dir() else Path(folder)))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"tokenizer {place}: cannot be read: {error}") from None
        self._markers = markers_in(folder)

    def count(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of each message in ChatML, the form that we train on, with turn markers and role. The markers are special
        tokens, so nothing merges across messages and the counts of a dialogue add up exactly."""
        texts = [f"<|im_start|>{m['role']}\n{self._markers.neutral(m['content'])[0]}<|im_end|>\n" for m in messages]
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


# --- repetitions ------------------------------------------------------------------------------------------------------------

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


def parts_of_others(dialogues: Sequence[Sequence[str]]) -> list[int | None]:
    """For each dialogue, given as its lines, the index of a longer (or earlier) kept one that has at least half of its letters
    in equal lines; None if it is kept. Case, white space, punctuation and speakers do not count. Time is linear."""
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
        if best is not None and 2 * shared[best] >= letters[place]:
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
