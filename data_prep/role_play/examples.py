"""From corpus items to training dialogues for the simulator: who is trained, what it is told, what it answers.

The trained side is `assistant` (the seeker of a support dialogue, the character of a general one), whoever talks to it is
`user`; the system message is what simulation sends (data_prep.seeker_prompts).
"""

from __future__ import annotations

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
from core.prompts import PromptPack
from core.records import Identifier, Language, Message, Name, Record, RoleCard, RolePlay, SupportDialogue, Whole
from core.side_prompts import character_system, greeting, opening, seeker_system
from serve.checkpoints.embedded import materialise
from serve.checkpoints.places import local_path

Kind = Literal["support", "role_play"]
EMBEDDED = "embedded"


class RoleExample(Record):
    """One training dialogue of the role-play set: a system message, then user and assistant in turn, ending with assistant.

    `turns` counts what the corpus holds (a greeting put before it does not count), `tokens` the whole dialogue in ChatML.
    """

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
    """An example in the making.

    `messages` are without the system message; the first `placed` of them (0 or 1) were put before the corpus's own.
    """

    item: SupportDialogue | RolePlay
    card: RoleCard | None
    pack: PromptPack
    """What its system message is made from."""
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
        """What was said, without what was put before it: duplicates are looked for in this."""
        return "\n".join(message["content"] for message in self.messages[self.placed :])

    @property
    def lines(self) -> list[str]:
        """The corpus's own lines, whoever said them."""
        if isinstance(self.item, SupportDialogue):
            return [turn.text for turn in self.item.dialogue.turns]
        return [line.text for line in self.item.lines]

    @property
    def system(self) -> Message:
        """The system message, rendered when it is needed: it is longer than many dialogues."""
        if isinstance(self.item, SupportDialogue):
            assert self.card is not None
            return {"role": "system", "content": seeker_system(self.pack, self.card)}
        return {"role": "system", "content": character_system(self.pack, self.item)}

    def example(self) -> RoleExample:
        """The finished example."""
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
    """A support dialogue as the seeker sees it. Where the seeker speaks first, the simulation's greeting stands before it."""
    lines = [("assistant" if turn.role == "seeker" else "user", turn.text) for turn in item.dialogue.turns]
    return _draft(item, card, prompts, lines, greeting(prompts, item.language))


def role_play_draft(item: RolePlay, general: PromptPack) -> Draft:
    """A general dialogue as the character sees it. Partners' lines carry their names where there is more than one partner."""
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
    """Messages in turn: several lines of one side become one message; `before` opens what the trained side would begin."""
    messages: list[Message] = [
        {"role": role, "content": "\n".join(text for _, text in group)} for role, group in groupby(lines, key=itemgetter(0))
    ]
    placed = int(bool(messages) and messages[0]["role"] == "assistant")
    if placed:
        messages.insert(0, {"role": "user", "content": before})
    if messages and messages[-1]["role"] == "user":
        messages.pop()  # nothing is learnt from what nobody answers
    return Draft(item, card, pack, messages, placed)


def fit(draft: Draft, system_tokens: int, counts: Sequence[int], limit: int) -> bool:
    """Cut whole exchanges off the end until the dialogue fits `limit` tokens; True when something was cut.

    `counts` are the tokens of its messages. Sets `tokens`; nothing is left when not even the first answer fits.
    """
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

    Raises `UserError` when there is no tokenizer.json to read.
    """

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
        """Tokens of each message in ChatML, the form that we train on: turn markers and role included.

        The markers are special tokens, so nothing merges across messages and the counts of a dialogue add up exactly.
        """
        texts = [f"<|im_start|>{m['role']}\n{self._markers.neutral(m['content'])[0]}<|im_end|>\n" for m in messages]
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
