"""Role cards as people have them: a sheet or a list with a problem in each row and what else is known of the person."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.errors import UserError, near, say
from core.files import digest, problems_in
from core.people_tables import Faults, changed_cell, shortened
from core.records import RoleCard
from core.rows import CorpusRow, dict_rows
from data_prep.cards.taxonomy import load_taxonomy

PERSON = {"language", "age", "gender", "occupation", "problem"}
"""What a row without an id is known by: the hash of these fields."""
# The commonest words of English: every third word of an English text is one of them, and hardly any of another language's.
_ENGLISH = re.compile(
    "the|and|to|of|is|was|with|that|for|my|her|his|she|they|it|not|but|from|at|on|when|are|have|i|you|this|who"
)


def read_own_cards(path: Path, language: str | None = None, columns: Mapping[str, str] | None = None) -> list[RoleCard]:
    """The cards of a table (CSV, TSV, XLSX), of JSON lines or of a JSON list. `language`: that of rows which name none.
    `columns`: how the file heads its columns → which field of `RoleCard` each holds, "" for one to leave out.

    Raises one `UserError` with all faults of the file, by row and column.
    """
    with Faults() as faults:
        rows = dict_rows(path, "role cards", faults)
        cards = own_cards(rows, path, faults, language, columns)
    return cards


def own_cards(
    rows: Sequence[CorpusRow],
    where: Path | str,
    faults: Faults,
    language: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[RoleCard]:
    """The cards of rows as `read_own_cards` has them, without those that have faults; `where` names them all together."""
    faults.found += [f"{row.where}: expected a JSON object" for row in rows if not isinstance(row.value, Mapping)]
    rows = [row for row in rows if isinstance(row.value, Mapping)]
    names = _fields_of(rows, where, faults, columns or {})
    headings = {field: column for column, field in names.items()}
    cards: dict[str, tuple[str, RoleCard]] = {}
    unsaid: list[str] = []
    for row in rows if "problem" in headings else ():
        values = {names[key]: _text(value) for key, value in row.value.items() if key in names and not _empty(value)}
        problems: list[str] = []
        if "language" not in values:
            values["language"] = language or "en"
            unsaid.append(str(values.get("problem", "")))
        if isinstance(category := values.get("category"), str):
            try:
                values["category"] = category_of(category)
            except UserError as error:
                problems.append(f"category: {error}")
                del values["category"]
        if changed := changed_cell(str(values.get("age", ""))):
            problems.append(f"age:{changed}")
        source = where.stem if isinstance(where, Path) else "own"
        try:
            card = RoleCard.model_validate({"id": "-", "source": source, "card_method": "written"} | values)
        except ValidationError as error:
            problems += problems_in(error)
        else:
            if "id" not in values:
                card = card.model_copy(update={"id": f"card-{digest(card.model_dump(include=PERSON), 12)}"})
            first, _ = cards.setdefault(card.id, (row.where, card))
            if first != row.where:
                problems.append(
                    f"id: {card.id} is also that of {first}" if "id" in values else f"problem: the same card as {first}"
                )
        for field, _, problem in (text.replace("Field required", "is missing").partition(": ") for text in problems):
            faults.found.append(f"{row.where}, column {headings.get(field, field)}: {problem}")
    if unsaid and (language or "en").partition("-")[0] == "en":
        if not _reads_as_english(unsaid):
            faults.found.append(
                f"{where}: no language is named, and the problems are not in English: say which one in a column language, or "
                "by --language (in Python: languages=[…])"
            )
        elif language is None and not faults.found:
            _tell(f"{where}: {len(unsaid)} cards name no language: taken as en (a column language says another)")
    return [card for _, card in cards.values()]


@cache  # a run reads its cards more than once
def _tell(text: str) -> None:
    say(text, err=True)


def _fields_of(rows: Sequence[CorpusRow], where: Path | str, faults: Faults, given: Mapping[str, str]) -> dict[str, str]:
    """Which field of `RoleCard` each column holds, without columns that hold none."""
    found = list(dict.fromkeys(str(key) for row in rows for key in row.value))
    told = {column.strip().casefold(): field for column, field in given.items()}
    spelled = {column.strip().casefold() for column in found}
    problems = [f"no column {name!r} to map: {near(name, spelled)}" for name in told if name not in spelled]
    problems += [
        f"a column cannot be mapped to {name!r}: {near(name, RoleCard.model_fields)}"
        for name in told.values()
        if name not in {*RoleCard.model_fields, ""}
    ]
    fields: dict[str, str] = {}
    for column in found:
        key = column.strip().casefold()
        field = told.get(key, key)
        if field in fields.values():
            problems.append(f"two columns are {field}: {column!r} is the second")
        elif field in RoleCard.model_fields:
            fields[column] = field
        elif field and key not in told and any(not _empty(row.value.get(column)) for row in rows):
            problems.append(f"unknown column {shortened(column)!r}: {near(key[:100], RoleCard.model_fields)}")
    if rows and "problem" not in fields.values():
        problems.append(f"no column problem (found: {shortened(', '.join(found)) or 'none'})")
    if problems and isinstance(where, Path):
        problems.append(
            f"to map columns: esc-data import --cards {where} --map problem=Situation --out DIR (--map =Notes leaves one out)"
        )
    faults.found += [f"{where}: {problem}" for problem in problems]
    return fields


def category_of(text: str) -> tuple[str, ...]:
    """The path of a category of configs/taxonomy.yaml: from its name, or from a path with `/`. Raises `UserError` with near
    names."""
    paths = dict.fromkeys(path[:depth] for path in load_taxonomy().leaves for depth in (1, 2, 3))
    named = {name.casefold(): path for path in paths for name in (path[-1], "/".join(path))}
    wanted = "/".join(part.strip() for part in text.split("/")).casefold()
    if wanted not in named:
        close = near(text[:100], (path[-1] for path in paths))
        raise UserError(
            f"unknown category {shortened(text)!r}: "
            + (close if close.startswith("did") else near("", (path[0] for path in paths if len(path) == 1)))
        )
    return named[wanted]


def _empty(value: Any) -> bool:
    """Whether a value says nothing: null, a frame's NaN, or no text."""
    return value is None or (isinstance(value, float) and value != value) or (isinstance(value, str) and not value.strip())


def _text(value: Any) -> Any:
    """A number as text (an age of 34.0 is 34), a text without white space around it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return value.strip() if isinstance(value, str) else value


def _reads_as_english(texts: Iterable[str]) -> bool:
    """Whether texts may be English: in Latin letters and, of 20 words and more, with some of its commonest ones."""
    words = re.findall(r"[^\W\d_]+", " ".join(texts).casefold())
    latin = sum(word[0] < "\u0250" for word in words)
    return latin * 2 >= len(words) and (
        len(words) < 20 or sum(bool(_ENGLISH.fullmatch(word)) for word in words) > len(words) / 12
    )
