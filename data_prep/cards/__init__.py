"""Role cards: read from our JSONL, from a user's own sheet or list, or from the JSON files that ESC-Eval published."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from core.errors import UserError
from core.files import check_unique, explain, first_object, read_json, read_jsonl
from core.languages import words
from core.people_tables import Faults
from core.records import Language, RoleCard, Whole
from core.rows import dict_rows
from data_prep.bundled import BUNDLED
from data_prep.cards.own import Columns, own_cards

PUBLISHED: dict[Language, int] = {"en": 331, "zh": 324}  # ESC-Eval's cards of high quality, with which it was run
_FIELDS = {
    "age": ("Age", "年龄"),
    "gender": ("Gender", "性别"),
    "occupation": ("Occupation", "职业"),
    "problem": ("Problem", "问题"),
}
_MARKS = re.compile(r"^[\s>#*•-]+")  # of lists and headings, at the start of a line
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


def load_cards(path: Path, language: str | None = None, columns: Columns | None = None) -> list[RoleCard]:
    """Role cards from JSON lines of `RoleCard`, from ESC-Eval's published JSON, or from a user's own table or list
    (`data_prep.cards.own` explains `language` and `columns`). The file's content decides which it is. Raises `UserError` with
    file, line (JSONL) or entry (JSON) and field; for an empty file; and for doubled ids."""
    if path.suffix == ".json" and _is_published(entries := read_json(path, "role card file")):
        cards = []
        for number, entry in enumerate(entries):
            try:
                cards.append(_card(_Published.model_validate(entry)))
            except ValueError as error:
                raise UserError(f"{path}: entry {number}: {explain(error)}") from None
    elif path.suffix == ".jsonl" and {"source", "card_method"} <= first_object(path, "role card file").keys() and not columns:
        cards = read_jsonl(path, RoleCard, "role card file")
    else:
        with Faults() as faults:
            return own_cards(dict_rows(path, faults), path, faults, language, columns or {})
    check_unique(path, (card.id for card in cards), "card ids")
    return cards


def is_card_file(path: Path) -> bool:
    """Whether `load_cards` reads this file, by its ending (a sheet, a JSON list) or its first line."""
    return path.suffix != ".jsonl" or "card_method" in first_object(path, "role card file")


def bundled_cards(language: Language) -> Path:
    """The cards written for this project."""
    return BUNDLED / f"cards_{language}.jsonl"


def card_text(card: RoleCard) -> str:
    """The card as people read it: one line per field that it has, each with its heading."""
    wording = words(card.language)
    return "\n".join(f"{wording[name]}{wording.colon}{text}" for name in _FIELDS if (text := getattr(card, name)))


def cardless(name: str, place: str = "PLACE") -> str:
    """The message for a corpus whose dialogues give no cards, with the command by which a model writes them."""
    command = f"python -m data_prep cards extract --source {name}={place} --model MODEL --out cards/{name}"
    return f"{name}: no dialogue has a card. To have a model write them: {command}"


def _is_published(entries: Any) -> bool:
    return isinstance(entries, list) and any(isinstance(entry, dict) and "base" in entry for entry in entries)


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
    """The fields age, gender, occupation and problem of a card's text, whose lines begin with English or Chinese headings. A
    field that is "not mentioned" is empty. Raises `ValueError` as `headed` does."""
    return {field: "" if value.lower() in _UNKNOWN else value for field, value in headed(text, _FIELDS).items()}


def headed(text: str, headings: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The text after each field's heading (any of its `headings`, in any case), which begins a line; list marks and bold type
    are allowed. Raises `ValueError` unless each field has exactly one."""
    fields = {heading.lower(): field for field, names in headings.items() for heading in names}
    found: dict[str, list[str]] = {field: [] for field in headings}
    current: list[str] = []
    for line in text.splitlines():
        plain = _MARKS.sub("", line).replace("**", "")
        heading, colon, value = re.match(r"([^:：]*)([:：]?)(.*)", plain, re.S).groups()  # type: ignore[union-attr]
        if colon and (field := fields.get(heading.strip().lower())):
            current = found[field]
            current.append(value)
        elif current:
            current[-1] += f"\n{plain}"
    for field, values in found.items():
        if len(values) != 1:
            raise ValueError(f"{len(values)} headings {headings[field][0]}, expected one")
    return {field: values[0].strip() for field, values in found.items()}
