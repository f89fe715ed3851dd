"""A held-out corpus: all its dialogues, with cards that do not reveal the scored lines.

Perplexity on seeker lines means little if the card in the system message summarises those very lines. So a corpus can be held
out only if its heuristic cards (data_prep.cards.heuristic) come from texts that were written independently of the dialogue:
ESConv's seekers filled in situation, kind of problem and emotion before the chat (Liu et al., ACL 2021, section 4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypedDict

from core.errors import UserError
from core.ledger import Build
from core.prompts import PromptPack
from core.records import RoleCard, SupportDialogue
from core.rows import CorpusItem
from data_prep.cards.heuristic import NO_SITUATION, card_of_situation, heuristic_card
from data_prep.role_play.examples import Draft, support_draft

CardsBySource = Mapping[tuple[str, str | None], RoleCard]  # given cards by source and source id
# Others describe the dialogue afterwards (ESCoT's annotation, ExTES's description), or give their seekers no situation.
BEFORE_CHAT = ("esconv", "esconv_failed", "esconv_multi", "bundled_support")
LEAST_HELD = 2  # turns: a line and an answer are the shortest possible example
RUN = 8  # words in a row (Chinese: characters) that a card and a seeker's line hardly share by chance
_WORD = re.compile(r"[a-z0-9]+(?:['’][a-z]+)*|[^\W_a-z0-9]")


class HeldOut(TypedDict):
    """The outcome for the held-out dialogues, by id: `cut` were shortened to the length cap, `left_out` gave no example (the
    steps have the reasons), `short_situation` have too short a situation for a training card, `shared` have at least `RUN`
    words in a row in both the system message and a seeker line."""

    sources: list[str]
    dialogues: int
    examples: int
    cut: list[str]
    left_out: list[str]
    short_situation: list[str]
    shared: list[str]


def check_source(name: str) -> None:
    """Raise `UserError` for a corpus whose cards may reveal the dialogue's own lines."""
    if name not in BEFORE_CHAT:
        raise UserError(
            f"--valid-source: {name}: as far as we know its seekers wrote no situation before the chat, so its cards may "
            f"reveal the scored lines; hold out one of {', '.join(BEFORE_CHAT)}"
        )


def held_drafts(
    corpora: Mapping[str, Sequence[CorpusItem]], cards: CardsBySource, prompts: PromptPack, build: Build
) -> list[Draft]:
    """A draft of every dialogue, as for training, but also with situations that are too short for a training card. Raises
    `UserError` for a given card that a model made from the dialogue."""

    def draft_of(item: CorpusItem) -> Draft | str:
        assert isinstance(item, SupportDialogue)
        card = cards.get((item.dialogue.source, item.dialogue.source_id))
        if card is None:  # the heuristic card, even of a short situation: it also has the corpus's labels
            situation = " ".join(item.situation.split())
            card = card_of_situation(item, situation) if situation else None
        if card is None:
            return f"no card ({NO_SITUATION})"
        if card.card_method == "llm":
            raise UserError(
                f"--cards: a model made {card.id} from the held-out dialogue {item.id}, whose lines are scored; leave it out "
                "(the dialogue then gets a card from its own situation)"
            )
        if card.quality == "invalid":
            return "its card is invalid"
        draft = support_draft(item, card, prompts)
        return f"fewer than {LEAST_HELD} turns" if draft.turns < LEAST_HELD else draft

    return build.step("held out: role cards").make((item for items in corpora.values() for item in items), draft_of)


def held_out_figures(corpora: Mapping[str, Sequence[CorpusItem]], drafts: Sequence[Draft], cut: Sequence[str]) -> HeldOut:
    """The account of held-out corpora. `drafts` are finished: their lines are the scored ones."""
    usable = {draft.id for draft in drafts}
    ids = [item.id for items in corpora.values() for item in items]
    heuristic = [draft for draft in drafts if draft.card and draft.card.card_method == "heuristic"]
    short = [
        draft.id
        for draft in heuristic
        if isinstance(draft.item, SupportDialogue) and isinstance(heuristic_card(draft.item), str)
    ]
    return {
        "sources": list(corpora),
        "dialogues": len(ids),
        "examples": len(drafts),
        "cut": list(cut),
        "left_out": [id for id in ids if id not in usable],
        "short_situation": short,
        "shared": [draft.id for draft in drafts if _shares_run(draft)],
    }


def _shares_run(draft: Draft) -> bool:
    """Whether a seeker's line shares `RUN` words in a row with the system message, apart from case and punctuation."""
    card_runs = _runs(draft.system["content"])
    return any(_runs(message["content"]) & card_runs for message in draft.messages if message["role"] == "assistant")


def _runs(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    return {" ".join(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}
