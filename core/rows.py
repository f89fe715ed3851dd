"""Reading third-party corpora row by row: every row is counted, and unused rows leave a reason and a place."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from core.errors import UserError
from core.files import explain, json_line, numbered_lines, problems_in, read_json, read_text
from core.ledger import BuildStep
from core.names import Spellings
from core.people_tables import TABLES, Faults, changed_cell, csv_records, shortened, table_lines
from core.records import Count, Language, Post, RolePlay, SupportDialogue
from core.settings import Settings

CorpusItem = SupportDialogue | Post | RolePlay
M = TypeVar("M", bound=BaseModel)
MALFORMED = "malformed"
_LONGEST = 400  # characters of a problem, which may quote a row of any length
# Leftovers of web pages and invisible characters; joiners and direction marks count only in texts without other characters.
_UNTIDY = re.compile(
    r"<br ?/?>|&(?:#\d+|#x[0-9a-fA-F]+|[a-zA-Z]+);|\r\n?|[\xa0\x00\u200b\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
)
_UNSEEN = re.compile(r"[\s\u200c-\u200f]*")


def _plain(untidy: re.Match[str]) -> str:
    if untidy[0][0] in "<\r":
        return "\n"
    return html.unescape(untidy[0]).replace("\xa0", " ") if untidy[0][0] in "&\xa0" else ""


def unseen(text: str) -> bool:
    """Whether nothing of a text can be seen: it is empty, or has only spaces and invisible characters."""
    return bool(_UNSEEN.fullmatch(_UNTIDY.sub(_plain, text)))


class RowModel(BaseModel):
    """Base of the models of corpus rows: the fields that we use are validated, others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absence(cls, value: Any) -> Any:
        return without_nulls(cls, value)


def without_nulls(model: type[BaseModel], value: Any) -> Any:
    """An object without the nulls of a model's optional fields; any other value unchanged."""
    if not isinstance(value, dict):
        return value
    fields = [(field.validation_alias or name, field) for name, field in model.model_fields.items()]
    optional = {name for name, field in fields if isinstance(name, str) and not field.is_required()}
    return {key: entry for key, entry in value.items() if entry is not None or key not in optional}


class Malformed(Exception):
    """The fault of a row that cannot be read."""


class Dropped(Exception):
    """The reason to leave out a readable row, in words for readers of the manifest."""


@dataclass(frozen=True)
class CorpusRow:
    """A unit of a corpus and its place (`file:line`, or `file: entry n` in a JSON list)."""

    where: str
    value: Any


@dataclass
class CorpusReader:
    """Reads a corpus's files and counts their rows, each of which ends as one item or one drop. With `strict`, the first
    malformed row raises `UserError`; without `tidy`, texts are left unchanged (see `tidied`)."""

    step: BuildStep
    strict: bool = False
    tidy: bool = True
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def accounting(self, row: CorpusRow) -> Iterator[None]:
        """The block that makes an item from a row. `Dropped`, `Malformed`, `UserError` and `ValidationError` drop the row."""
        try:
            yield
        except Dropped as reason:
            self.step.drop(str(reason), row.where)
        except (Malformed, ValidationError) as error:
            self.malformed(row, explain(error))
        except UserError as error:
            self.malformed(row, str(error))

    def jsonl(self, path: Path, first: int = 1) -> Iterator[CorpusRow]:
        """The lines of a JSON-lines file that are not blank, from line `first` on."""
        for number, line in numbered_lines(path, "file"):
            if number >= first:
                row = self.row(f"{path}:{number}", None)
                with self.accounting(row):
                    yield CorpusRow(row.where, self.tidied(json_line(line)))

    def json_list(self, path: Path) -> Iterator[CorpusRow]:
        """The entries of the list in a JSON file."""
        value = self.json(path)
        if not isinstance(value, list):
            raise UserError(f"{path}: expected a JSON list, found {type(value).__name__}")
        for number, entry in enumerate(value):
            yield self.row(f"{path}: entry {number}", entry)

    def records(self, path: Path) -> Iterator[CorpusRow]:
        """The rows of a JSON list (`.json`) or of JSON lines."""
        return self.json_list(path) if path.suffix == ".json" else self.jsonl(path)

    def json(self, path: Path) -> Any:
        """A whole JSON file, not counted: for files whose units are nested deeper (count them with `row`)."""
        return self.tidied(read_json(path, "file"))

    def csv(self, path: Path, needed: Sequence[str] = ()) -> Iterator[CorpusRow]:
        """The records of a CSV file with a header, as dicts. Raises `UserError` if a `needed` column is missing."""
        records = csv_records(path, read_text(path, "file"))
        lines = [(f"{path}:{line}", cells) for line, cells in records if cells]  # no blank lines
        names = _columns(path, lines, needed)
        for where, cells in lines[1:]:
            row = self.row(where, dict(zip(names, cells, strict=False)))
            if len(cells) == len(names):
                yield row
            else:
                self.malformed(row, f"expected {len(names)} columns")

    def documents(self, path: Path, content: Callable[[], Any]) -> Iterator[CorpusRow]:
        """The rows of a JSON-lines file; for any other file, a single row with its `content`."""
        if path.suffix == ".jsonl":
            yield from self.jsonl(path)
        else:
            row = self.row(str(path), None)
            with self.accounting(row):
                yield CorpusRow(row.where, self.tidied(content()))

    def row(self, where: str, value: Any) -> CorpusRow:
        """A new row, which is counted."""
        self.step.taken += 1
        return CorpusRow(where, self.tidied(value))

    def tidied(self, value: Any) -> Any:
        """A value whose texts are free of leftovers from web pages (entities, `<br>`, carriage returns) and of invisible
        characters, which readers might take for a turn. Changes are counted. Texts that contain JSON stay unchanged."""
        if not self.tidy or value is None:
            return value
        if isinstance(value, dict):
            return {key: self.tidied(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.tidied(entry) for entry in value]
        if not isinstance(value, str) or value.startswith(("[", "{")):
            return value
        text = _UNTIDY.sub(_plain, value)
        if value.strip() and unseen(text):
            self.step.changed["invisible texts dropped"] += 1
            return ""
        if text != value:
            self.step.changed["texts cleaned (entities, tags, line ends, hidden signs)"] += 1
        return text

    def malformed(self, row: CorpusRow, problem: str) -> None:
        """Drop a row that cannot be read. Raises `UserError` under `strict`."""
        problem = problem if len(problem) <= _LONGEST else f"{problem[:_LONGEST]} …"
        problem = problem if problem.startswith(row.where) else f"{row.where}: {problem}"
        if self.strict:
            raise UserError(problem)
        self.problems.append(problem)
        self.step.drop(MALFORMED, row.where)


class Sampled(Settings):
    """A corpus's row in table 5 of ESC-Eval: QA or MD (multi-turn), its authors, the number of items drawn for role cards."""

    format: Literal["QA", "MD"]
    resource: Literal["Human", "ChatGPT"]
    count: Count


class RolePlayYield(Settings):
    """The number of dialogues in a language that a corpus contributes to the simulator's training set."""

    published: Annotated[int, Field(gt=0)]
    """Dialogues in the whole corpus, according to its authors."""
    read: Annotated[int, Field(ge=0)] = 0
    """The number of them that we had when this was measured; 0: none."""
    usable: Annotated[int, Field(ge=0)] = 0
    """The number of those that `role-sft` could use with configs/data/role_sft.yaml and ESC-Eval's own cards."""
    needs_cards: bool = False
    """Whether its dialogues state no situation, so that a model has to write the role cards (`cards extract`)."""

    @model_validator(mode="after")
    def _consistent(self) -> RolePlayYield:
        if not self.usable <= self.read <= self.published:
            raise ValueError("usable is more than read, or read more than published")
        return self

    @property
    def most(self) -> int:
        """An upper limit of usable dialogues: scaled from those that were read or, if none were, all published ones."""
        return self.published * self.usable // self.read if self.read else self.published


class Origin(Settings):
    """The source from which `fetch` gets a corpus: a GitHub repository or a dataset of the hub, at a commit."""

    github: str | None = None
    """OWNER/NAME."""
    hub: str | None = None
    """OWNER/NAME."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    """The commit, which fixes the content. Null: not looked up, so the user has to give one."""
    under: tuple[str, ...] = ("",)
    """Folders of the repository with the corpus's files, which are put into a single folder."""
    archive: str | None = None
    """A zip file in the repository that contains the corpus."""

    @model_validator(mode="after")
    def _one_place(self) -> Origin:
        if (self.github is None) == (self.hub is None):
            raise ValueError("give either github or hub")
        return self


class CorpusFacts(Settings):
    """A corpus, where users get it and its licence: an entry of configs/data/corpora.yaml."""

    reader: str | None = None
    """Its reader, as module:attribute of `data_prep.sources`."""
    about: str
    kind: Literal["support", "post", "role_play"]
    languages: tuple[Language, ...]
    files: tuple[str, ...]
    where: str
    licence: str
    share: str | None = None
    """The licence (the hub's identifier) under which records made from it may be passed on; null: they may not."""
    paper: str
    table5: Sampled | None = None
    beside: tuple[str, ...] = ()
    role_sft: dict[Language, RolePlayYield] = Field(default={})
    fetch: Origin | None = None


ReadCorpus = Callable[[list[Path], CorpusReader], Iterator[CorpusItem]]


class Source(CorpusFacts):
    """A corpus and its reader: `read` gets the sorted paths that match `files`, and yields items with its name as `source`."""

    name: str
    read: ReadCorpus


def by_row(
    make: Callable[[Any, str], CorpusItem],
    rows: Callable[[CorpusReader, Path], Iterable[CorpusRow]] = CorpusReader.records,
    named: Callable[[Path], str] = lambda file: file.stem,
) -> ReadCorpus:
    """A corpus's `read`, for files in which every row is one item or one drop. `make` gets a row's value and a source id, `file
    name/position`, for corpora without ids of their own; `named` gives a file's name, `rows` its rows."""

    def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
        for file in files:
            for position, row in enumerate(rows(reader, file)):
                with reader.accounting(row):
                    yield make(row.value, f"{named(file)}/{position}")

    return read


def read_table(path: Path, model: type[M], what: str, each: Callable[[str, M], None] = lambda *_: None) -> list[M]:
    """The rows of a `.jsonl`, `.csv`, `.tsv` or `.xlsx` file that people made (see `core.people_tables`), as records; `what`
    names its content, and `each`, called with every row's place and record, may raise `UserError`. An empty cell means that an
    optional field is missing. Raises `UserError` with place and field of all invalid rows, and for a file without rows."""
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", ".csv", ".tsv", ".xlsx"):
        raise UserError(f"{path}: {what} are read from .jsonl or .csv (or .xlsx)")
    reader, spellings = CorpusReader(BuildStep(path.name), strict=True, tidy=False), Spellings()
    records: list[M] = []
    with Faults() as faults:
        for row in reader.jsonl(path) if suffix == ".jsonl" else _typed_rows(path, model, reader):
            with faults.noting(), reader.accounting(row):
                if isinstance(row.value, Malformed):
                    raise row.value
                try:
                    record = model.model_validate(without_nulls(model, row.value))
                except ValidationError as error:
                    cells = {str(place["loc"][0]): str(place["input"]) for place in error.errors() if place["loc"]}
                    hints = {field: changed_cell(cell) for field, cell in cells.items()}
                    problems = [(problem.partition(":")[0], problem) for problem in problems_in(error)]
                    faults.found += [f"{row.where}: {problem}{hints.get(field, '')}" for field, problem in problems]
                    continue
                spellings.of(record, row.where)
                each(row.where, record)
                records.append(record)
    if not reader.step.taken:
        raise UserError(f"{path} is empty (columns: {', '.join(model.model_fields)})")
    return records


def dict_rows(path: Path, faults: Faults) -> list[CorpusRow]:
    """The rows of a table (see `core.people_tables`), JSON lines or a JSON list; `faults` gets those that cannot be read."""
    reader = CorpusReader(BuildStep(path.name), tidy=False)
    rows = list(_table_rows(path, reader) if path.suffix.lower() in (".txt", *TABLES) else reader.records(path))
    faults.found += reader.problems
    faults.found += [f"{row.where}: {row.value}" for row in rows if isinstance(row.value, Malformed)]
    if not reader.step.taken:
        raise UserError(f"{path}: no row")
    return [row for row in rows if not isinstance(row.value, Malformed)]


def _columns(path: Path, lines: Sequence[tuple[str, list[str]]], needed: Sequence[str]) -> list[str]:
    """The header of a table. Raises `UserError` if it lacks a needed column or has one twice."""
    where, names = lines[0] if lines else (f"{path}:1", [])
    missing = [name for name in needed if name not in names]
    if missing or len(set(names)) < len(names):
        fault = f"no column {', '.join(map(repr, missing))}" if missing else "duplicate column"
        raise UserError(f"{where}: {fault}; the columns are: {shortened(', '.join(names)) or 'none'}")
    return names


def _typed_rows(path: Path, model: type[BaseModel], reader: CorpusReader) -> Iterator[CorpusRow]:
    """The rows of a table as {column: cell}, without the empty cells of optional fields."""
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    nullable = [name for name in needed if type(None) in get_args(model.model_fields[name].annotation)]
    for row in _table_rows(path, reader, needed, model):
        if isinstance(row.value, dict):
            value = {name: cell for name, cell in row.value.items() if cell != "" or name in needed}
            row = CorpusRow(row.where, value | {name: None for name in nullable if value[name] == ""})
        yield row


def _table_rows(
    path: Path, reader: CorpusReader, needed: Sequence[str] = (), model: type[BaseModel] | None = None
) -> Iterator[CorpusRow]:
    """The rows of a table as {column: cell}; a row of another length is `Malformed`. A heading may spell a field of `model` in
    another case, or with spaces."""
    lines = table_lines(path)
    if model and lines:
        where, names = lines[0]
        spelt = {re.sub(r"\W", "_", name.strip().casefold()): name for name in names}
        exact = {name: spelt[name] for name in model.model_fields if name not in names and name in spelt}
        lines[0] = (where, names := [{head: name for name, head in exact.items()}.get(name, name) for name in names])
    names = _columns(path, lines, needed)
    if model and model.model_config.get("extra") == "forbid" and (unknown := {*names} - model.model_fields.keys()):
        columns = shortened(", ".join(name for name in names if name in unknown))
        raise UserError(f"{lines[0][0]}: unknown column {columns}: leave it out, or use one of {', '.join(model.model_fields)}")
    for place, cells in lines[1:]:
        wrong = Malformed(f"expected {len(names)} columns, found {len(cells)} (put texts with a comma in quotes)")
        yield reader.row(place, dict(zip(names, cells, strict=True)) if len(cells) == len(names) else wrong)
