"""A held-out corpus: all its dialogues, with cards that do not reveal the scored lines.

Perplexity on seeker lines means little if the card in the system message summarises those very lines. So a corpus can be held
out only if its heuristic cards (data_prep.cards.heuristic) come from texts that were written independently of the dialogue:
ESConv's seekers filled in situation, kind of problem and emotion before the chat (Liu et al., ACL 2021, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.errors import UserError
from core.ledger import Build
from core.prompts import PromptPack
from core.records import RoleCard, SupportDialogue
from core.rows import CorpusItem
from data_prep.cards.heuristic import NO_SITUATION, card_of_situation
from data_prep.role_play.examples import Draft, support_draft

CardsBySource = Mapping[tuple[str, str | None], RoleCard]  # given cards by source and source id
# Others describe the dialogue afterwards (ESCoT's annotation, ExTES's description), or give their seekers no situation.
BEFORE_CHAT = ("esconv", "esconv_failed", "esconv_multi", "bundled_support")
LEAST_HELD = 2  # turns: a line and an answer are the shortest possible example


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
