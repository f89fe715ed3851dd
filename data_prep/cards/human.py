"""The human filter between the model's filter and the annotation (third column of table 6): a CSV sheet out, decisions in.

Columns: `card_id`, `keep` (yes or no) and, free to use, `note`; further columns are for the reader and ignored on import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import UserError
from core.ledger import Step
from core.people_tables import shortened
from core.records import Language, RoleCard
from data_prep.cards.sheets import SheetRow, named, read_sheet, write_csv

COLUMNS = ("card_id", "keep", "note", "language", "age", "gender", "occupation", "problem", "category", "source")
SHEET = "cards"  # of a workbook that somebody made of the file
REJECTED = "rejected by a person"


def write_sheet(path: Path, cards: Sequence[RoleCard]) -> None:
    """The cards as a CSV file (`sheets.write_csv`) with `keep` and `note` left empty."""
    write_csv(path, COLUMNS, [_cells(card) for card in cards])


def _cells(card: RoleCard) -> dict[str, str]:
    shown = {name: getattr(card, name) for name in ("language", "age", "gender", "occupation", "problem", "source")}
    return shown | {"card_id": card.id, "category": " / ".join(card.category or ())}


def read_decisions(path: Path, cards: Sequence[RoleCard]) -> dict[str, bool]:
    """Whether to keep each card, by its id.

    Raises `UserError` with file, line and field for an unknown or doubled card, an empty or other word in `keep`, and a card
    without a row: decisions cost a person's time, so none is guessed or left out.
    """
    known = {card.id for card in cards}
    decisions: dict[str, bool] = {}

    def decide(row: SheetRow) -> None:
        card = named(row.cells["card_id"], known)
        if card not in known:
            raise row.fault("card_id", f"{shortened(card)!r} is none of the {len(known)} cards given")
        if card in decisions:
            raise row.fault("card_id", f"{card} has a decision already")
        decisions[card] = row.keep

    read_sheet(path, SHEET, ("card_id", "keep"), decide, others=True)
    undecided = [card.id for card in cards if card.id not in decisions]
    if undecided:
        raise UserError(f"{path}: card_id: no row for {', '.join(undecided[:3])} ({len(undecided)} cards without a decision)")
    return decisions


def apply_decisions(
    cards: Sequence[RoleCard], decisions: Mapping[str, bool], steps: Mapping[Language, Step]
) -> tuple[list[RoleCard], list[RoleCard]]:
    """(kept, dropped) cards in their order, counted into the step of their language."""
    for language, step in steps.items():
        of_language = [card for card in cards if card.language == language]
        step.sieve(of_language, lambda card: None if decisions[card.id] else REJECTED)
    return [card for card in cards if decisions[card.id]], [card for card in cards if not decisions[card.id]]
