"""The human filter between the model's filter and the annotation (third column of table 6): a CSV sheet out, decisions in.

Columns: `card_id`, `keep` (yes or no) and, free to use, `note`; further columns are for the reader and ignored on import.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_prep.ledger import Step
from data_prep.records import Language, RoleCard
from data_prep.sources.rows import Rows
from serve.errors import UserError
from serve.files import write_text

COLUMNS = ("card_id", "keep", "note", "language", "age", "gender", "occupation", "problem", "category", "source")
REJECTED = "rejected by a person"
_WORDS = {"yes": True, "no": False}


def write_sheet(path: Path, cards: Sequence[RoleCard]) -> None:
    """The cards as a CSV file (UTF-8 with a mark that spreadsheets know) with `keep` and `note` left empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for card in cards:
        shown = (
            card.language,
            card.age,
            card.gender,
            card.occupation,
            card.problem,
            " / ".join(card.category or ()),
            card.source,
        )
        writer.writerow([card.id, "", "", *map(_plain, shown)])
    write_text(path, "\ufeff" + buffer.getvalue())


def _plain(text: str) -> str:
    """Text that a spreadsheet does not run as a formula: an apostrophe goes before it."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "＝", "＋", "－", "＠")) else text


def read_decisions(path: Path, cards: Sequence[RoleCard]) -> dict[str, bool]:
    """Whether to keep each card, by its id.

    Raises `UserError` with file, line and field for an unknown or doubled card, an empty or other word in `keep`, and a card
    without a row: decisions cost a person's time, so none is guessed or left out.
    """
    known = {card.id for card in cards}
    decisions: dict[str, bool] = {}
    for row in Rows(Step("decisions"), strict=True).csv(path):
        missing = [column for column in ("card_id", "keep") if column not in row.value]
        if missing:
            raise UserError(f"{path}:1: no column {missing[0]}; found: {', '.join(map(str, row.value))} (parted by commas?)")
        card, word = row.value["card_id"].strip(), row.value["keep"].strip().lower()
        if card not in known:
            raise UserError(f"{row.where}: card_id: {card!r} is none of the {len(known)} cards given")
        if card in decisions:
            raise UserError(f"{row.where}: card_id: {card} has a decision already")
        if word not in _WORDS:
            raise UserError(f"{row.where}: keep: write yes or no" + (f", not {word[:40]!r}" if word else "; it is empty"))
        decisions[card] = _WORDS[word]
    undecided = [card.id for card in cards if card.id not in decisions]
    if undecided:
        raise UserError(f"{path}: card_id: no row for {', '.join(undecided[:3])} ({len(undecided)} cards without a decision)")
    return decisions


def apply_decisions(
    cards: Sequence[RoleCard], decisions: Mapping[str, bool], steps: Mapping[Language, Step]
) -> tuple[list[RoleCard], list[RoleCard]]:
    """(kept, dropped) cards in their order, counted into the step of their language."""
    for card in cards:
        step = steps[card.language]
        step.taken += 1
        if decisions[card.id]:
            step.kept += 1
        else:
            step.drop(REJECTED, card.id)
    return [card for card in cards if decisions[card.id]], [card for card in cards if not decisions[card.id]]
