"""Role cards: read from our JSONL, from a user's own sheet or list, or from the JSON files that ESC-Eval published."""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import UserError, near, say
from core.files import CONFIGS, check_unique, digest, explain, first_object, problems_in, read_json, read_jsonl
from core.languages import lineage, words
from core.people_tables import Faults, changed_cell, shortened
from core.records import Language, RoleCard, Whole
from core.rows import CorpusRow, dict_rows
from core.settings import Settings, read_yaml
from data_prep import BUNDLED

Path3 = tuple[str, str, str]  # English names of levels 1 to 3


class Labelled(Settings):
    """Something with an English and a Chinese name; other languages use the English one."""

    en: Annotated[str, Field(min_length=1)]
    zh: Annotated[str, Field(min_length=1)]

    def label(self, language: Language) -> str:
        """Its name in a language; `en` is the name that records use."""
        return self.zh if lineage(language)[-1] == "zh" else self.en


class Leaf(Labelled):
    """A category of level 3 and the cards of high and middle quality printed for it (None where the cell is lost)."""

    high: Annotated[int, Field(ge=0)] | None = None
    middle: Annotated[int, Field(ge=0)] | None = None


class Group(Labelled):
    """A category of level 2."""

    children: Annotated[tuple[Leaf, ...], Field(min_length=1)]


class Area(Labelled):
    """A category of level 1."""

    children: Annotated[tuple[Group, ...], Field(min_length=1)]

    @property
    def leaves(self) -> list[tuple[Path3, Leaf]]:
        """(path, leaf) of every category of level 3 below, in the file's order."""
        return [((self.en, group.en, leaf.en), leaf) for group in self.children for leaf in group.children]


class Taxonomy(Settings):
    """The whole tree. English and Chinese names are unique in it, so a name alone identifies a category."""

    name: str
    source: str
    categories: Annotated[tuple[Area, ...], Field(min_length=1)]

    @cached_property
    def leaves(self) -> dict[Path3, Leaf]:
        """Every category of level 3 by its path, in the file's order (table 9's 35 rows)."""
        return {path: leaf for area in self.categories for path, leaf in area.leaves}


@lru_cache
def load_taxonomy() -> Taxonomy:
    return read_yaml(CONFIGS / "taxonomy.yaml", Taxonomy, "taxonomy")


Columns = Mapping[str, str]  # a file's column heading → the field of `RoleCard` that it holds, or "none"
PERSON = {"language", "age", "gender", "occupation", "problem"}  # the id of a row without one is a hash of these
_CARD_FIELDS = RoleCard.model_fields.keys() - {"details"}  # a mapping, which no cell holds
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
        field = mapped.get(key) or (key if key in _CARD_FIELDS else column)
        if field in fields.values():
            wrong.append(f"two columns are {field}: {column!r} is the second")
        elif field in _CARD_FIELDS:
            fields[column] = field
        elif field != "none":
            wrong.append(f"unknown column {shortened(field)!r}: {near(field[:100], _CARD_FIELDS)}")
    if headings and "problem" not in fields.values():
        wrong.append(f"no column problem (found: {shortened(', '.join(columns))})")
    if wrong and isinstance(where, Path):
        wrong.append(
            f"to map: esc-data cards import {quote(str(where))} --map problem=Situation --out DIR (none=Notes leaves one out)"
        )
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
    """Role cards from JSON lines of `RoleCard`, ESC-Eval's published JSON, or a user's own table or list (see `own_cards`), as
    the file's content shows. Raises `UserError` with line or entry and field; for an empty file; and for doubled ids."""
    entries = read_json(path, "role card file") if path.suffix == ".json" else None
    if isinstance(entries, list) and any(isinstance(entry, dict) and "base" in entry for entry in entries):
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
