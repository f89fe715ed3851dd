"""Replies on real histories: where the supporter of a dialogue spoke, what another one replied there, and comparable pairs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from core.errors import UserError
from core.files import check_unique, read_jsonl
from core.names import one_spelling
from core.records import LOST, Count, Dialogue, Identifier, Language, Record, Stopped, System, Turn, Usage
from serve.failures import Lost


class Response(Record):
    """One reply of a supporter, with the real supporter's reply as the reference. `turn` is the index, in the given dialogue,
    of the supporter turn that it replaces (the first of several in a row). `termination` says why there is no proper reply
    (null: there is one); `text` is then what arrived, mostly ""."""

    dialogue_id: Identifier
    language: Language
    turn: Count
    supporter: System
    text: str
    reference: Annotated[str, Field(min_length=1)] | None = None
    termination: Stopped | Lost | None = None
    usage: Usage | None = None

    @property
    def lost(self) -> bool:
        """Whether the service failed, so that the reply is missing."""
        return self.termination in LOST

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.termination is None and not self.text.strip():
            raise ValueError("text: a reply without text needs a termination with the reason")
        return self


@dataclass(frozen=True)
class Answered:
    """A place where the supporter spoke: the turn's index, the history (begun by the seeker), and the text."""

    turn: int
    history: tuple[Turn, ...]
    text: str


def answered(turns: Sequence[Turn]) -> list[Answered]:
    """Every place where the supporter answered a seeker. Empty turns are skipped."""
    nonempty = [(index, turn) for index, turn in enumerate(turns) if turn.text.strip()]
    runs: list[tuple[int, Turn]] = []
    for role, run in groupby(nonempty, key=lambda pair: pair[1].role):
        members = list(run)
        runs.append((members[0][0], Turn(role=role, text="\n".join(turn.text.strip() for _, turn in members))))
    runs = runs[1:] if runs and runs[0][1].role == "supporter" else runs
    spoken_turns = tuple(turn for _, turn in runs)
    return [
        Answered(index, spoken_turns[:place], turn.text) for place, (index, turn) in enumerate(runs) if turn.role == "supporter"
    ]


def read_responses(paths: Sequence[Path]) -> list[Response]:
    """Responses from JSONL files, in order; `UserError` if a supporter answers a turn twice."""
    responses = [response for path in paths for response in read_jsonl(path, Response, "responses")]
    places = (f"{r.supporter} on {r.dialogue_id} turn {r.turn}" for r in responses)
    check_unique(", ".join(map(str, paths)), places, "responses")
    one_spelling(responses, "responses")
    return responses


def paired(dialogues: Iterable[Dialogue], references: Iterable[Dialogue]) -> list[Response]:
    """The supporter's replies in whole dialogues paired with those of reference dialogues, the k-th with the k-th (if any). A
    dialogue's partner has the same id or else, in the same language, the same card_id, profile_id or source_id (the first of
    these that finds one). Raises `UserError` for a dialogue without a partner, or with several."""
    by_id: dict[str, Dialogue] = {}
    by_item: dict[tuple[Language, str, str], list[Dialogue]] = defaultdict(list)
    for reference in references:
        by_id[reference.id] = reference
        for name in _ITEMS:
            if item := getattr(reference, name):
                by_item[reference.language, name, item].append(reference)
    responses = []
    for dialogue in dialogues:
        partner = by_id.get(dialogue.id) or _of_item(dialogue, by_item)
        texts = [place.text for place in answered(partner.turns)]
        for number, place in enumerate(answered(dialogue.turns)):
            responses.append(
                Response(
                    dialogue_id=dialogue.id,
                    language=dialogue.language,
                    turn=place.turn,
                    supporter=dialogue.supporter or dialogue.source,
                    text=place.text,
                    reference=texts[number] if number < len(texts) else None,
                )
            )
    return responses


_ITEMS = ("card_id", "profile_id", "source_id")


def _of_item(dialogue: Dialogue, by_item: Mapping[tuple[Language, str, str], list[Dialogue]]) -> Dialogue:
    for name in _ITEMS:
        if matches := by_item.get((dialogue.language, name, getattr(dialogue, name)), []):
            if len(matches) > 1:
                about = f"its {name} {getattr(dialogue, name)!r}: {matches[0].id}, {matches[1].id} …"
                raise UserError(f"dialogue {dialogue.id}: {len(matches)} references have {about}")
            return matches[0]
    raise UserError(f"dialogue {dialogue.id}: no reference dialogue has its id, card, profile or source id")
