"""The prompts of both sides of a dialogue, and each side's view of it. Simulators play by the prompts of their training."""

from collections.abc import Sequence

from core.prompts import PromptPack
from core.records import Language, Message, Role, RoleCard, RolePlay, Turn

SUPPORTER_PAPER = "supporter_paper_system.j2"


def seeker_system(prompts: PromptPack, card: RoleCard, paper: bool = False) -> str:
    """A seeker's system message (ESC-Eval figure 11; the wording is the pack's). `paper`: the published strategy (table 11)."""
    return prompts.render(card.language, "seeker_system.j2", card=card, paper=paper)


def supporter_system(prompts: PromptPack, language: Language) -> str:
    """The supporter's system message in paper mode: the published script puts one before every chat without one."""
    return prompts.render(language, SUPPORTER_PAPER)


def chat(turns: Sequence[Turn], role: Role, system: str | None = None, lead: str | None = None) -> list[Message]:
    """A dialogue as a side's own chat: its turns are `assistant`. `lead`: the other side's line, if this side begins."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": lead}] if lead else []
    return messages + [{"role": "assistant" if turn.role == role else "user", "content": turn.text} for turn in turns]


def greeting(prompts: PromptPack, language: Language) -> str:
    """The supporter's fixed first line."""
    return prompts.render(language, "greeting.txt")


def character_system(prompts: PromptPack, item: RolePlay) -> str:
    """The system message of a general role-play dialogue: the character and the scene, from the corpus."""
    return prompts.render(item.language, "character_system.j2", item=item)


def opening(prompts: PromptPack, language: Language) -> str:
    """A substitute for the partner's line if the character speaks first: chat templates require a user message first."""
    return prompts.render(language, "opening.txt")
