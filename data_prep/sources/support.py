"""What the support corpora share: speakers as roles, turns as a dialogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.records import Language, Role, SupportDialogue, Turn
from core.rows import Row, Rows

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
    rows: Rows,
    row: Row,
    source: str,
    source_id: str,
    language: Language,
    turns: Iterable[tuple[Role, str]],
    **about: Any,
) -> SupportDialogue | None:
    """A row's turns as a dialogue (merged as in `merged`); None, and the drop "no reply", when fewer than two are left.

    `about` are further fields of `SupportDialogue`. None, and a malformed drop, where the row's values do not fit the record.
    """
    spoken = merged(Turn(role=role, text=text) for role, text in turns)
    if len(spoken) < 2:
        rows.drop(row, NO_REPLY)
        return None
    dialogue = {"id": f"{source}-{source_id}", "language": language, "source": source, "source_id": source_id, "turns": spoken}
    return rows.record(SupportDialogue, row, dialogue=dialogue, **about)


def by_role(rows: Rows, row: Row, spoken: Iterable[tuple[str, str]], roles: dict[str, Role]) -> list[tuple[Role, str]] | None:
    """(speaker, text) pairs with the corpus's names replaced; None, and a malformed drop, for a name not in `roles`."""
    pairs = list(spoken)
    unknown = sorted({speaker for speaker, _ in pairs} - set(roles))
    if unknown:
        rows.malformed(row, f"unknown speaker {unknown[0]!r} (known: {', '.join(roles)})")
        return None
    return [(roles[speaker], text) for speaker, text in pairs]
