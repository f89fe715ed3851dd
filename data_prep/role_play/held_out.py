"""A held-out corpus: every one of its dialogues, on cards that do not give away the lines that are scored.

Perplexity on seeker lines means little when the card in the system message was summed up from those very lines. So a corpus can
be held out only if its heuristic cards (data_prep.cards.heuristic) come from what was written apart from the dialogue: ESConv's
seekers filled in situation, kind of problem and emotion before the chat began (Liu et al., ACL 2021, section 4).
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

Made = Mapping[tuple[str, str | None], RoleCard]  # given cards by source and source id
# Others describe the dialogue after the fact (ESCoT's annotation, ExTES's description), or give their seekers no situation.
BEFORE_CHAT = ("esconv", "esconv_failed", "esconv_multi", "bundled_support")
LEAST_HELD = 2  # turns: one line and one answer, all that an example can do with
RUN = 8  # words in a row (Chinese: characters) that a card and a seeker's line share by copying, hardly by chance
_WORD = re.compile(r"[a-z0-9]+(?:['’][a-z]+)*|[^\W_a-z0-9]")


class HeldOut(TypedDict):
    """What became of the held-out dialogues, by id: `cut` were shortened to the length cap, of `left_out` no example could be
    made (the steps tell why), `short_situation` are those whose situation is too thin for a training card, `shared` those whose
    system message and seeker lines share at least `RUN` words in a row."""

    sources: list[str]
    dialogues: int
    examples: int
    cut: list[str]
    left_out: list[str]
    short_situation: list[str]
    shared: list[str]


def check_source(name: str) -> None:
    """Raise `UserError` for a corpus whose cards would tell of the dialogue's own lines."""
    if name not in BEFORE_CHAT:
        raise UserError(
            f"--valid-source: {name} is not known to have a situation that its seekers wrote before the chat, so its cards may "
            f"tell of the lines that are scored; hold out one of {', '.join(BEFORE_CHAT)}"
        )


def held_drafts(held: Mapping[str, Sequence[CorpusItem]], made: Made, prompts: PromptPack, build: Build) -> list[Draft]:
    """A draft of every dialogue, made as for training, but for the choice: situations too thin for a training card serve too.

    Raises `UserError` for a given card that a model made from the dialogue.
    """

    def draft_of(item: CorpusItem) -> Draft | str:
        assert isinstance(item, SupportDialogue)
        card = made.get((item.dialogue.source, item.dialogue.source_id))
        if card is None:  # the heuristic card, of a thin situation too: the corpus's labels are in it as well
            situation = " ".join(item.situation.split())
            card = card_of_situation(item, situation) if situation else None
        if card is None:
            return f"no card ({NO_SITUATION})"
        if card.card_method == "llm":
            raise UserError(
                f"--cards: {card.id} was made by a model from the held-out dialogue {item.id}, whose lines are scored; "
                "leave it out (the dialogue then gets a card from its own situation)"
            )
        if card.quality == "invalid":
            return "its card is invalid"
        draft = support_draft(item, card, prompts)
        return f"fewer than {LEAST_HELD} turns" if draft.turns < LEAST_HELD else draft

    return build.step("held out: role cards").make((item for items in held.values() for item in items), draft_of)


def held_out_figures(held: Mapping[str, Sequence[CorpusItem]], drafts: Sequence[Draft], cut: Sequence[str]) -> HeldOut:
    """The account of a held-out corpus. `drafts` are finished: their lines are those that are scored."""
    made = {draft.id for draft in drafts}
    ids = [item.id for items in held.values() for item in items]
    return {
        "sources": list(held),
        "dialogues": len(ids),
        "examples": len(drafts),
        "cut": list(cut),
        "left_out": [id for id in ids if id not in made],
        "short_situation": [draft.id for draft in drafts if _thin(draft)],
        "shared": [draft.id for draft in drafts if _shares_run(draft)],
    }


def _shares_run(draft: Draft) -> bool:
    """Whether a seeker's line shares `RUN` words in a row with the system message.

    Case and punctuation do not count, and a run does not cross from one message into the next.
    """
    card_runs = _runs(draft.system["content"])
    return any(_runs(message["content"]) & card_runs for message in draft.messages if message["role"] == "assistant")


def _runs(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    return {" ".join(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}


def _thin(draft: Draft) -> bool:
    assert isinstance(draft.item, SupportDialogue) and draft.card is not None
    return draft.card.card_method == "heuristic" and isinstance(heuristic_card(draft.item), str)
