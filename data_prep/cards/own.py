"""Role cards in a user's own sheet or list: a problem in each row, and whatever else the file says about the person."""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.errors import UserError, near, say
from core.files import digest, problems_in
from core.people_tables import Faults, changed_cell, shortened
from core.records import RoleCard
from core.rows import CorpusRow
from data_prep.cards.taxonomy import load_taxonomy

Columns = Mapping[str, str]  # a file's column heading → the field of `RoleCard` that it holds, or "none"
PERSON = {"language", "age", "gender", "occupation", "problem"}  # the id of a row without one is a hash of these
_FIELDS = RoleCard.model_fields.keys() - {"details"}  # a mapping, which no cell holds
# The commonest English words: every third word of an English text is one of them, and hardly any of another language's.
_ENGLISH = re.compile(
    "the|and|to|of|is|was|with|that|for|my|her|his|she|they|it|not|but|from|at|on|when|are|have|i|you|this|who"
)


def own_cards(
    rows: Sequence[CorpusRow], where: Path | str, faults: Faults, language: str | None, columns: Columns
) -> list[RoleCard]:
    """The cards of the rows of `where`; problems go to `faults`. `language` is that of rows that name none (default: en)."""
    faults.found += [f"{row.where}: not an object with a problem" for row in rows if not isinstance(row.value, Mapping)]
    tidied = {row.where: _tidied(row.value) for row in rows if isinstance(row.value, Mapping)}
    fields = _fields_of([column for row in tidied.values() for column in row], where, faults, columns)
    headings = {field: column for column, field in fields.items()}
    source = Path(where).stem
    cards: dict[str, tuple[str, RoleCard]] = {}
    unlabelled: list[str] = []  # the problems of rows without a language
    for place, row in tidied.items() if "problem" in headings else ():
        given = {fields[column]: value for column, value in row.items() if column in fields}
        unlabelled += [] if "language" in given else [str(given.get("problem", ""))]
        problems: list[str] = []
        try:
            if isinstance(given.get("category"), str):
                given["category"] = category_of(given["category"])
            values = {"id": "-", "language": language or "en", "source": source, "card_method": "written"} | given
            card = RoleCard.model_validate(values)
        except UserError as error:
            problems.append(str(error))
        except ValidationError as error:
            problems += [text.replace("Field required", "is empty") for text in problems_in(error)]
        else:
            if "id" not in given:
                card = card.model_copy(update={"id": f"card-{digest(card.model_dump(include=PERSON), 12)}"})
            first, _ = cards.setdefault(card.id, (place, card))
            if first != place:
                problems.append(
                    f"id: {card.id} is also that of {first}" if "id" in given else f"problem: the same card as {first}"
                )
            changed = {field: changed_cell(getattr(card, field)) for field in ("problem", "age", "gender", "occupation")}
            problems += [f"{field}:{hint}" for field, hint in changed.items() if hint]
        for field, _, problem in (text.partition(": ") for text in problems):
            faults.found.append(f"{place}, column {headings.get(field, field)}: {problem}")
    if unlabelled and (language or "en").partition("-")[0] == "en":
        if not _reads_as_english(" ".join(unlabelled)):
            how = "name it in a column language or by --language (in Python: languages=[…])"
            faults.found.append(f"{where}: no language is named, and the problems are not in English: {how}")
        elif language is None and not faults.found:
            cards_read = f"{len(unlabelled)} cards name no language and are read as en"
            say(f"{where}: {cards_read} (to change that, add a column language)", err=True)
    return [card for _, card in cards.values()]


def _tidied(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row without its empty cells (null, a data frame's NaN or NaT, "  "); numbers and dates as text (34.0 is 34)."""
    tidied = {}
    for column, value in row.items():
        value = value.item() if hasattr(value, "item") else value  # a number of numpy
        if isinstance(value, date):
            value = value.isoformat() if value == value else None
        if isinstance(value, float):
            value = f"{value:.0f}" if value.is_integer() else "" if value != value else str(value)
        elif isinstance(value, int | str) and not isinstance(value, bool):
            value = str(value).strip()
        if value is not None and value != "":
            tidied[str(column)] = value
    return tidied


def _fields_of(headings: Sequence[str], where: Path | str, faults: Faults, given: Columns) -> dict[str, str]:
    """Column → the field of `RoleCard` that it holds; columns without one go to `faults`."""
    columns = {column: column.strip().casefold() for column in headings}
    mapped = {column.strip().casefold(): field for column, field in given.items()}
    wrong = [
        f"no column {name!r} to map, or it is empty: {near(name, columns.values())}"
        for name in mapped
        if name not in columns.values()
    ]
    fields: dict[str, str] = {}
    for column, key in columns.items():
        field = mapped.get(key) or (key if key in _FIELDS else column)
        if field in fields.values():
            wrong.append(f"two columns are {field}: {column!r} is the second")
        elif field in _FIELDS:
            fields[column] = field
        elif field != "none":
            wrong.append(f"unknown column {shortened(field)!r}: {near(field[:100], _FIELDS)}")
    if headings and "problem" not in fields.values():
        wrong.append(f"no column problem (found: {shortened(', '.join(columns))})")
    if wrong and isinstance(where, Path):
        wrong.append(f"to map: esc-data cards import {where} --map problem=Situation --out DIR (none=Notes leaves one out)")
    faults.found += [f"{where}: {problem}" for problem in wrong]
    return fields


def category_of(text: str) -> tuple[str, ...]:
    """The path of a category in configs/taxonomy.yaml, given by name or as a path with `/`. Raises `UserError` for others."""
    paths = [path[:depth] for path in load_taxonomy().leaves for depth in (1, 2, 3)]
    named = {name.casefold(): path for path in paths for name in (path[-1], "/".join(path))}
    wanted = "/".join(part.strip() for part in text.split("/")).casefold()
    if wanted not in named:
        raise UserError(f"category: unknown category {shortened(text)!r}: {near(text[:100], {path[0] for path in paths})}")
    return named[wanted]


def _reads_as_english(text: str) -> bool:
    """Whether a text may be English: mostly Latin letters and, from 20 words on, enough of the commonest English words."""
    words = re.findall(r"[^\W\d_]+", text.casefold())
    common = sum(bool(_ENGLISH.fullmatch(word)) for word in words)
    return sum(word[0] < "\u0250" for word in words) * 2 >= len(words) and (len(words) < 20 or common > len(words) / 12)
