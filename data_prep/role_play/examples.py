"""Training dialogues for the simulator from corpus items.

The trained side is `assistant` (the seeker of a support dialogue, the character of a general one), its partner is `user`, and
the system message is the one that simulation sends (core.prompts).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from core.errors import UserError, need_modules
from core.languages import words
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
