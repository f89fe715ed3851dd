"""What a simulator is told: the same words when it is trained and when it plays a role card."""

from __future__ import annotations

from core.prompts import PromptPack
from core.records import Language, RoleCard, RolePlay


def seeker_system(prompts: PromptPack, card: RoleCard, paper: bool = False) -> str:
    """The system message of a seeker: the role card and how to play it (ESC-Eval figure 11; the wording is the pack's).
    `paper`: as the published strategy is, where ours differs (table 11)."""
    return prompts.render(card.language, "seeker_system.j2", card=card, paper=paper)


def greeting(prompts: PromptPack, language: Language) -> str:
    """The supporter's fixed first line, which the seeker answers."""
    return prompts.render(language, "greeting.txt")


def character_system(prompts: PromptPack, item: RolePlay) -> str:
    """The system message of a general role-play dialogue: the character, and what its corpus says about it and the scene."""
    return prompts.render(item.language, "character_system.j2", item=item)


def opening(prompts: PromptPack, language: Language) -> str:
    """What stands in for the partner where the character speaks first: chat templates want a user message first."""
    return prompts.render(language, "opening.txt")
