"""Role cards: read from our JSONL or from the JSON files that ESC-Eval published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from core.errors import UserError
from core.files import check_unique, explain, first_object, read_json, read_jsonl
from core.records import Language, RoleCard, Whole
from data_prep.bundled import BUNDLED

_FIELDS = {
    "age": ("Age", "年龄"),
    "gender": ("Gender", "性别"),
    "occupation": ("Occupation", "职业"),
    "problem": ("Problem", "问题"),
}
# White space of the heading's own line only: over line ends, a reply of blank lines would take the square of its length.
_HEADING = re.compile(r"^[^\S\n]*(" + "|".join(name for names in _FIELDS.values() for name in names) + r")\s*[:：]\s*", re.M)
_UNKNOWN = frozenset({"not mentioned", "not mentioned.", "未提及", "未提及。"})
# The published files name the taxonomy's top level in Chinese, in both languages.
_TOP_LEVEL = {"家庭生活": "Family and Life", "工作学习": "Work and Study", "社会与其他": "Social Interaction and Others"}


class _Published(BaseModel):
    """One entry of ESC-Eval's card_high_*.json: `base` the card, `res` its category, `base_biaozhu` the annotators' text."""

    model_config = ConfigDict(extra="forbid")
    id: Whole
    base: str
    base_biaozhu: str
    res: str
    source: str
    language: Literal["english", "chinese"]


def load_cards(path: Path) -> list[RoleCard]:
    """Role cards from a `.jsonl` file of RoleCards, or a `.json` list in ESC-Eval's published form.

    Raises `UserError` with file, line (JSONL) or entry (JSON) and field; for an empty file; and for doubled ids.
    """
    cards = _published(path) if path.suffix == ".json" else read_jsonl(path, RoleCard, "role card file")
    check_unique(path, (card.id for card in cards), "card ids")
    return cards


def is_card_file(path: Path) -> bool:
    """Whether `load_cards` reads this file, by its ending (ESC-Eval's JSON) or its first line."""
    return path.suffix == ".json" or "card_method" in first_object(path, "role card file")


def bundled_cards(language: Language) -> Path:
    """The cards written for this project."""
    return BUNDLED / f"cards_{language}.jsonl"


def card_text(card: RoleCard) -> str:
    """The card as people read it: a headed line for each field that it has."""
    place, colon = (0, ": ") if card.language == "en" else (1, "：")
    return "\n".join(f"{names[place]}{colon}{text}" for name, names in _FIELDS.items() if (text := getattr(card, name)))


def cardless(name: str, place: str = "PLACE") -> str:
    """What to say of a corpus of which no dialogue gives a card, and how a model makes cards of it."""
    command = f"python -m data_prep cards extract --source {name}={place} --model MODEL --out cards/{name}"
    return f"{name}: no dialogue has a card. A model makes them: {command}"


def _published(path: Path) -> list[RoleCard]:
    entries = read_json(path, "role card file")
    if not isinstance(entries, list):
        raise UserError(f"{path}: expected a JSON list of cards, found {type(entries).__name__}")
    if not entries:
        raise UserError(f"role card file is empty: {path}")
    cards = []
    for number, entry in enumerate(entries):
        try:
            cards.append(_card(_Published.model_validate(entry)))
        except ValueError as error:
            raise UserError(f"{path}: entry {number}: {explain(error)}") from None
    return cards


def _card(published: _Published) -> RoleCard:
    if published.res not in _TOP_LEVEL:
        raise ValueError(f"res: unknown category {published.res[:60]!r} (known: {', '.join(_TOP_LEVEL)})")
    try:
        fields = parse_card_text(published.base)
    except ValueError as error:
        raise ValueError(f"base: {error}") from None
    return RoleCard(
        id=f"esc-eval-{published.id}",
        language="en" if published.language == "english" else "zh",
        **fields,
        source=published.source,
        source_id=str(published.id),
        card_method="llm",
        category=(_TOP_LEVEL[published.res],),
        quality="high",
        text=published.base,
    )


def parse_card_text(text: str) -> dict[str, str]:
    """The fields age, gender, occupation and problem of a card's text, English or Chinese headings, one at a line's start each.

    What is "not mentioned" is empty. Raises `ValueError` unless all four headings are there, once each.
    """
    parts = _HEADING.split(text)[1:]
    fields = list(zip(parts[::2], parts[1::2], strict=True))
    values = {}
    for field, names in _FIELDS.items():
        matching = [value.strip() for heading, value in fields if heading in names]
        if len(matching) != 1:
            raise ValueError(f"{len(matching)} headings for {field}, expected one")
        values[field] = "" if matching[0].lower() in _UNKNOWN else matching[0]
    return values
