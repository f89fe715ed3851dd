"""What the two sides of a dialogue are told, and what each is shown of it. A simulator is told the same words when it is
trained and when it plays a role card."""

from __future__ import annotations

from collections.abc import Sequence

from core.prompts import PromptPack
from core.records import Language, Message, Role, RoleCard, RolePlay, Turn

SUPPORTER_PAPER = "supporter_paper_system.j2"


def seeker_system(prompts: PromptPack, card: RoleCard, paper: bool = False) -> str:
    """The system message of a seeker: the role card and how to play it (ESC-Eval figure 11; the wording is the pack's).
    `paper`: as the published strategy is, where ours differs (table 11)."""
    return prompts.render(card.language, "seeker_system.j2", card=card, paper=paper)


def supporter_system(prompts: PromptPack, language: Language) -> str:
    """What a supporter is told in paper mode: the published script puts a system message before every chat that has none."""
    return prompts.render(language, SUPPORTER_PAPER)


def chat(turns: Sequence[Turn], role: Role, system: str | None = None, lead: str | None = None) -> list[Message]:
    """A dialogue as a side's own chat: its lines are `assistant`, the other side's are `user`. `lead` is a line of the other
    side's that stands before everything, where this side speaks first."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": lead}] if lead else []
    for turn in turns:
        messages.append({"role": "assistant" if turn.role == role else "user", "content": turn.text})
    return messages


def greeting(prompts: PromptPack, language: Language) -> str:
    """The supporter's fixed first line, which the seeker answers."""
    return prompts.render(language, "greeting.txt")


def character_system(prompts: PromptPack, item: RolePlay) -> str:
    """The system message of a general role-play dialogue: the character, and what its corpus says about it and the scene."""
    return prompts.render(item.language, "character_system.j2", item=item)


def opening(prompts: PromptPack, language: Language) -> str:
    """What stands in for the partner where the character speaks first: chat templates want a user message first."""
    return prompts.render(language, "opening.txt")
