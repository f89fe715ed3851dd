"""What the support corpora share: speakers as roles, turns as a dialogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.records import Language, Role, SupportDialogue, Turn
from core.rows import Dropped, Malformed

ROLES: dict[str, Role] = {"usr": "seeker", "seeker": "seeker", "speaker": "seeker"}
ROLES |= {"sys": "supporter", "supporter": "supporter", "listener": "supporter"}
NO_REPLY = "no reply"


def merged(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Turns stripped, without empty ones; consecutive turns of one side become one, their texts on lines of their own."""
    result: list[Turn] = []
    for turn in turns:
        text = turn.text.strip()
        if not text:
            continue
        if result and result[-1].role == turn.role:
            result[-1] = Turn(role=turn.role, text=f"{result[-1].text}\n{text}")
        else:
            result.append(Turn(role=turn.role, text=text))
    return tuple(result)


def support_dialogue(
    source: str, source_id: str, language: Language, turns: Iterable[tuple[Role, str]], **about: Any
) -> SupportDialogue:
    """Turns (merged as in `merged`) as a dialogue; `about` are further fields of `SupportDialogue`.

    Raises `Dropped` ("no reply") when fewer than two turns are left.
    """
    spoken = merged(Turn(role=role, text=text) for role, text in turns)
    if len(spoken) < 2:
        raise Dropped(NO_REPLY)
    dialogue = {"id": f"{source}-{source_id}", "language": language, "source": source, "source_id": source_id, "turns": spoken}
    return SupportDialogue.model_validate({"dialogue": dialogue, **about})


def by_role(spoken: Iterable[tuple[str, str]], roles: dict[str, Role]) -> list[tuple[Role, str]]:
    """(speaker, text) pairs with the corpus's names replaced. Raises `Malformed` for a name that is not in `roles`."""
    pairs = list(spoken)
    unknown = sorted({speaker for speaker, _ in pairs} - set(roles))
    if unknown:
        raise Malformed(f"unknown speaker {unknown[0]!r} (known: {', '.join(roles)})")
    return [(roles[speaker], text) for speaker, text in pairs]
