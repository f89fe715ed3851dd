"""CoSER (Wang et al. 2025): conversations from books with each character's thoughts; English, many characters in a scene.

Two published forms: a book (`plots`, each with `conversation`: a list, or that list written out as a string;
`character_datasets` with profiles) and the test set (a list of scenes with `character_profiles`).

An inner thought stands in [brackets] before the words. Thoughts are removed from all lines: the partners' because the character
cannot hear them, and the character's own because a seeker's inner state is no part of what it says; otherwise the model would
learn to write its thoughts out to whoever it talks to. Actions in (parentheses) stay.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, ValidationError

from core.files import explain
from core.records import RolePlay
from core.rows import CorpusItem, CorpusReader, CorpusRow, Dropped, Malformed, RowModel
from data_prep.sources.play import PERSONA, play, shortened

NARRATOR = "Environment"
_THOUGHT = re.compile(r"\[[^\[\]]*\]")


class _Name(RowModel):
    name: str


class _Said(RowModel):
    character: str
    message: str


class _Scene(RowModel):
    scenario: str = ""
    key_characters: list[_Name]
    dialogues: list[_Said]
    character_profiles: dict[str, str] = Field(default={})


class _Portrait(RowModel):
    profile: str = ""


class _Plot(RowModel):
    conversation: list[Any] | str


class _Book(RowModel):
    plots: list[Any]
    character_datasets: dict[str, _Portrait] = Field(default={})


def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every conversation; `source_id` is `file stem/plot/conversation`, or `file stem/position` in a test set."""
    for file in files:
        value = reader.json(file)
        scenes = _test_set(file, value, reader) if isinstance(value, list) else _book(file, value, reader)
        for row, source_id, profiles in scenes:
            with reader.accounting(row):
                yield _item(row.value, source_id, profiles)


def _test_set(file: Path, scenes: list[Any], reader: CorpusReader) -> Iterator[tuple[CorpusRow, str, Mapping[str, str]]]:
    for number, scene in enumerate(scenes):
        yield reader.row(f"{file}: entry {number}", scene), f"{file.stem}/{number}", {}


def _book(file: Path, value: Any, reader: CorpusReader) -> Iterator[tuple[CorpusRow, str, Mapping[str, str]]]:
    try:
        book = _Book.model_validate(value)
    except ValidationError as error:
        reader.malformed(reader.row(str(file), None), f"neither a book nor a list of scenes: {explain(error)}")
        return
    profiles = {name: portrait.profile for name, portrait in book.character_datasets.items()}
    for number, plot in enumerate(book.plots):
        where = f"{file}: plot {number}"
        try:
            conversations = _conversations(_Plot.model_validate(plot).conversation)
        except (ValidationError, Malformed) as error:
            problem = explain(error) if isinstance(error, ValidationError) else str(error)
            reader.malformed(reader.row(where, None), problem)
            continue
        for position, conversation in enumerate(conversations):
            yield reader.row(f"{where}, conversation {position}", conversation), f"{file.stem}/{number}/{position}", profiles


def _conversations(value: list[Any] | str) -> list[Any]:
    """The conversations of a plot; a string is read as JSON or as a Python literal, and never run. Raises `Malformed`."""
    conversations = _written_out(value) if isinstance(value, str) else value
    if not isinstance(conversations, list):
        raise Malformed(f"conversation: expected a list, found {type(conversations).__name__}")
    return conversations


def _written_out(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise Malformed("conversation: a string that is neither JSON nor a Python literal") from None


def _item(value: Any, source_id: str, profiles: Mapping[str, str]) -> RolePlay:
    raw = _Scene.model_validate(value)
    said = [(line.character.strip(), " ".join(_THOUGHT.sub(" ", line.message).split())) for line in raw.dialogues]
    counts = Counter(name for name, text in said if text)
    keys = [key.name.strip() for key in raw.key_characters if key.name.strip() not in ("", NARRATOR)]
    if not keys:
        raise Dropped("no key character")
    character = max(keys, key=lambda name: counts[name])  # the first of those with most lines
    portrait = raw.character_profiles.get(character) or profiles.get(character, "")
    return play(
        source="coser",
        source_id=source_id,
        language="en",
        character=character,
        said=said,
        persona=shortened(_plain(portrait), PERSONA),
        scene=raw.scenario.strip(),
    )


def _plain(markdown: str) -> str:
    """A profile without its marks of emphasis and empty lines."""
    return "\n".join(line.strip() for line in markdown.replace("*", "").splitlines() if line.strip())


READERS = {"coser": read}
