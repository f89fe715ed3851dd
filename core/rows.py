"""Reading third-party corpora row by row: every row is counted, and what is not used leaves a reason and a place."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from core.errors import UserError
from core.files import explain, load_json, read_bytes, read_json
from core.ledger import Step
from core.records import Language, Post, RolePlay, SupportDialogue

Item = SupportDialogue | Post | RolePlay
M = TypeVar("M", bound=BaseModel)
MALFORMED = "malformed"
_LONGEST = 300  # characters of a problem: what a row holds may be of any length


class Raw(BaseModel):
    """Base of the models of corpus rows: fields that we do not use are ignored, those we use are checked."""

    model_config = ConfigDict(extra="ignore", frozen=True)


@dataclass(frozen=True)
class Row:
    """One unit of a corpus and where it stands (`file:line`, or `file: entry n` in a JSON list)."""

    where: str
    value: Any


@dataclass
class Rows:
    """Reads a corpus's files and keeps the account. With `strict`, the first malformed row raises `UserError`.

    Every row that an iterator of this class hands out (or that `unit` makes) must end as exactly one item or one `drop`;
    `read_source` checks the balance.
    """

    step: Step
    strict: bool = False
    problems: list[str] = field(default_factory=list)

    def jsonl(self, path: Path, first: int = 1) -> Iterator[Row]:
        """Every line of a JSON-lines file, from line `first` on, that is not blank."""
        for number, line in enumerate(read_bytes(path, "corpus file").split(b"\n"), start=1):
            if number >= first and line.strip():
                row = self.unit(f"{path}:{number}", None)
                try:
                    value = load_json(line)
                except orjson.JSONDecodeError as error:
                    self.malformed(row, f"malformed JSON: {error.msg} (column {error.colno})")
                    continue
                yield Row(row.where, value)

    def json_list(self, path: Path) -> Iterator[Row]:
        """Every entry of a JSON file that holds one list."""
        value = self.json(path)
        if not isinstance(value, list):
            raise UserError(f"{path}: expected a JSON list, found {type(value).__name__}")
        for number, entry in enumerate(value):
            yield self.unit(f"{path}: entry {number}", entry)

    def json(self, path: Path) -> Any:
        """A whole JSON file, not counted: for files whose units lie deeper (`unit` counts those)."""
        return read_json(path, "corpus file")

    def csv(self, path: Path, needed: Sequence[str] = ()) -> Iterator[Row]:
        """Every record of a CSV file with a header, as a dict; its place is the line it begins on. Raises `UserError` for a
        header without one of the `needed` columns, or with one twice."""
        try:
            text = read_bytes(path, "corpus file").decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8: {error}") from None
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        line = 1
        try:
            names = reader.fieldnames or []
            missing = [name for name in needed if name not in names]
            if missing or len(set(names)) < len(names):
                what = f"no column {missing[0]!r}" if missing else "a column stands twice"
                raise UserError(f"{path}:1: {what}; found, parted by commas: {', '.join(names) or 'none'}")
            line = reader.line_num + 1
            for value in reader:
                row = self.unit(f"{path}:{line}", value)
                line = reader.line_num + 1
                if None in value or None in value.values():
                    self.malformed(row, f"expected {len(names)} columns")
                    continue
                yield row
        except csv.Error as error:  # an open quote swallows the rest of the file: nothing after it can be trusted
            raise UserError(f"{path}:{line}: malformed CSV: {error}") from None

    def unit(self, where: str, value: Any) -> Row:
        """Count one unit more."""
        self.step.taken += 1
        return Row(where, value)

    def parse(self, model: type[M], row: Row) -> M | None:
        """The row as a model; None (and a malformed drop with its place and field) when it is not one."""
        try:
            return model.model_validate(row.value)
        except ValidationError as error:
            self.malformed(row, explain(error))
            return None

    def record(self, model: type[M], row: Row, **fields: Any) -> M | None:
        """A record made of a row; None (and a malformed drop with its place and field) where the values do not fit."""
        return self.parse(model, Row(row.where, fields))

    def malformed(self, row: Row, problem: str) -> None:
        """Drop a row that cannot be read. Raises `UserError` under `strict`."""
        problem = problem if len(problem) <= _LONGEST else f"{problem[:_LONGEST]} …"
        if self.strict:
            raise UserError(f"{row.where}: {problem}")
        self.problems.append(f"{row.where}: {problem}")
        self.step.drop(MALFORMED, row.where)

    def drop(self, row: Row, reason: str) -> None:
        """Leave a readable row out, for a reason that a reader of the manifest understands."""
        self.step.drop(reason, row.where)


@dataclass(frozen=True)
class Sampled:
    """A corpus's line in table 5 of ESC-Eval: QA or MD (multi-turn), who made it, how many were drawn for role cards."""

    format: Literal["QA", "MD"]
    resource: Literal["Human", "ChatGPT"]
    count: int


@dataclass(frozen=True)
class Source:
    """A corpus: what it is, where a user gets it, under which licence (as stated upstream), and how its files are read.

    `files` are patterns in its folder; at least one file must match one of them. `read` gets those files, sorted, and yields
    items whose `source` is the corpus's name.
    """

    name: str
    about: str
    kind: Literal["support", "post", "role_play"]
    languages: tuple[Language, ...]
    files: tuple[str, ...]
    where: str
    licence: str
    paper: str
    read: Callable[[list[Path], Rows], Iterator[Item]]
    table5: Sampled | None = None
    beside: tuple[str, ...] = ()  # files that `read` looks for beside those


def by_row(make: Callable[[Row, Rows, str], Item | None]) -> Callable[[list[Path], Rows], Iterator[Item]]:
    """A corpus's `read`, for files of JSON lines or of one JSON list (`.json`) whose every row is one item or one drop.

    `make` gets the row and its source id, `file stem/position`: for corpora that have no ids of their own.
    """

    def read(files: list[Path], rows: Rows) -> Iterator[Item]:
        for file in files:
            for position, row in enumerate(rows.json_list(file) if file.suffix == ".json" else rows.jsonl(file)):
                item = make(row, rows, f"{file.stem}/{position}")
                if item is not None:
                    yield item

    return read
