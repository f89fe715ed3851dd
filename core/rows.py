"""Reading third-party corpora row by row: every row is counted, and what is not used leaves a reason and a place."""

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
from core.people_tables import Faults, csv_records, shortened, table_lines
from core.records import Count, Language, Post, RolePlay, SupportDialogue
from core.settings import Settings

CorpusItem = SupportDialogue | Post | RolePlay
M = TypeVar("M", bound=BaseModel)
MALFORMED = "malformed"
_LONGEST = 400  # characters of a problem: what a row holds may be of any length


# What web pages leave in texts, and signs that nobody sees; joiners and marks of direction are seen beside other letters.
_UNTIDY = re.compile(
    r"<br ?/?>|&(?:#\d+|#x[0-9a-fA-F]+|[a-zA-Z]+);|\r\n?|[\xa0\x00\u200b\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
)
_UNSEEN = re.compile(r"[\s\u200c-\u200f]*")


def _plain(found: re.Match[str]) -> str:
    """What stands for an untidy part of a text."""
    if found[0][0] in "<\r":
        return "\n"
    return html.unescape(found[0]).replace("\xa0", " ") if found[0][0] in "&\xa0" else ""


class RowModel(BaseModel):
    """Base of the models of corpus rows: fields that we do not use are ignored, those we use are checked."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absence(cls, value: Any) -> Any:
        """A null in a field that may be missing says that it is missing."""
        if not isinstance(value, dict):
            return value
        fields = [(field.validation_alias or name, field) for name, field in cls.model_fields.items()]
        optional = {name for name, field in fields if isinstance(name, str) and not field.is_required()}
        return {key: one for key, one in value.items() if one is not None or key not in optional}


class Malformed(Exception):
    """What is wrong with a row that cannot be read."""


class Dropped(Exception):
    """Why a readable row is left out, in words that a reader of the manifest understands."""


@dataclass(frozen=True)
class CorpusRow:
    """One unit of a corpus and where it stands (`file:line`, or `file: entry n` in a JSON list)."""

    where: str
    value: Any


@dataclass
class CorpusReader:
    """Reads a corpus's files and keeps the account. With `strict`, the first malformed row raises `UserError`; without `tidy`,
    texts stay as they are (see `tidied`).

    Every row that an iterator of this class hands out (or that `row` makes) must end as exactly one item or one drop;
    `read_source` checks the balance.
    """

    step: BuildStep
    strict: bool = False
    tidy: bool = True
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def accounting(self, row: CorpusRow) -> Iterator[None]:
        """A block that makes an item of a row. `Dropped`, `Malformed`, `UserError` and a model's `ValidationError` end it as a
        drop."""
        try:
            yield
        except Dropped as reason:
            self.step.drop(str(reason), row.where)
        except (Malformed, ValidationError) as error:
            self.malformed(row, explain(error))
        except UserError as error:
            self.malformed(row, str(error))

    def jsonl(self, path: Path, first: int = 1) -> Iterator[CorpusRow]:
        """Every line of a JSON-lines file, from line `first` on, that is not blank."""
        for number, line in numbered_lines(path, "corpus file"):
            if number >= first:
                row = self.row(f"{path}:{number}", None)
                with self.accounting(row):
                    yield CorpusRow(row.where, self.tidied(json_line(line)))

    def json_list(self, path: Path) -> Iterator[CorpusRow]:
        """Every entry of a JSON file that holds one list."""
        value = self.json(path)
        if not isinstance(value, list):
            raise UserError(f"{path}: expected a JSON list, found {type(value).__name__}")
        for number, entry in enumerate(value):
            yield self.row(f"{path}: entry {number}", entry)

    def records(self, path: Path) -> Iterator[CorpusRow]:
        """The rows of a file that holds one JSON list (`.json`) or JSON lines."""
        return self.json_list(path) if path.suffix == ".json" else self.jsonl(path)

    def json(self, path: Path) -> Any:
        """A whole JSON file, not counted: for files whose units lie deeper (`row` counts those)."""
        return self.tidied(read_json(path, "corpus file"))

    def csv(self, path: Path, needed: Sequence[str] = ()) -> Iterator[CorpusRow]:
        """Every record of a CSV file with a header, as a dict; its place is the line it begins on. Raises `UserError` for a
        header without one of the `needed` columns, or with one twice."""
        records = csv_records(path, read_text(path, "corpus file"))
        lines = [(f"{path}:{line}", cells) for line, cells in records if cells]  # none of a blank line
        names = _columns(path, lines, needed)
        for where, cells in lines[1:]:
            row = self.row(where, dict(zip(names, cells, strict=False)))
            if len(cells) == len(names):
                yield row
            else:
                self.malformed(row, f"expected {len(names)} columns")

    def documents(self, path: Path, content: Callable[[], Any]) -> Iterator[CorpusRow]:
        """The rows of a JSON-lines file; of another file the one that `content` makes of it."""
        if path.suffix == ".jsonl":
            yield from self.jsonl(path)
        else:
            row = self.row(str(path), None)
            with self.accounting(row):
                yield CorpusRow(row.where, self.tidied(content()))

    def row(self, where: str, value: Any) -> CorpusRow:
        """Count one unit more."""
        self.step.taken += 1
        return CorpusRow(where, self.tidied(value))

    def tidied(self, value: Any) -> Any:
        """A value without what web pages left in its texts (entities, `<br>`, carriage returns) and without signs that nobody
        sees: no reader takes them for a turn. Both are counted. A text that holds JSON stays as it is."""
        if not self.tidy or value is None:
            return value
        if isinstance(value, dict):
            return {key: self.tidied(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.tidied(one) for one in value]
        if not isinstance(value, str) or value.startswith(("[", "{")):
            return value
        text = _UNTIDY.sub(_plain, value)
        if value.strip() and _UNSEEN.fullmatch(text):
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
    """A corpus's line in table 5 of ESC-Eval: QA or MD (multi-turn), who made it, how many were drawn for role cards."""

    format: Literal["QA", "MD"]
    resource: Literal["Human", "ChatGPT"]
    count: Count


class RolePlayYield(Settings):
    """How many dialogues of one language a corpus gives the simulator's training set."""

    published: Annotated[int, Field(gt=0)]
    """Dialogues of the whole corpus, as its authors state them."""
    read: Annotated[int, Field(ge=0)] = 0
    """How many of them were at hand when this was written; 0: none."""
    usable: Annotated[int, Field(ge=0)] = 0
    """How many of those `role-sft` could use, on the settings of configs/data/role_sft.yaml and ESC-Eval's own cards."""
    needs_cards: bool = False
    """Its dialogues state no situation: a model has to write the role cards (`cards extract`)."""

    @model_validator(mode="after")
    def _consistent(self) -> RolePlayYield:
        if not self.usable <= self.read <= self.published:
            raise ValueError("usable is more than read, or read more than published")
        return self

    @property
    def most(self) -> int:
        """The most that can be asked of it: counted, scaled from what was read, or, where nothing was, all of it."""
        return self.published * self.usable // self.read if self.read else self.published


class Origin(Settings):
    """Where `fetch` gets a corpus: a repository on GitHub or a dataset of the hub, at one commit."""

    github: str | None = None
    """OWNER/NAME."""
    hub: str | None = None
    """OWNER/NAME."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    """The commit: the content is what it hashes to. Null: no commit was looked up, so one has to be given."""
    under: tuple[str, ...] = ("",)
    """Folders of the repository in which the corpus's files are; what they hold is put into one folder."""
    archive: str | None = None
    """A zip file of the repository that holds the corpus."""

    @model_validator(mode="after")
    def _one_place(self) -> Origin:
        if (self.github is None) == (self.hub is None):
            raise ValueError("one of github and hub")
        return self


class CorpusFacts(Settings):
    """What a corpus is, where a user gets it and under which licence: an entry of configs/data/corpora.yaml."""

    reader: str | None = None
    """What reads its files, as module:attribute of `data_prep.sources`."""
    about: str
    kind: Literal["support", "post", "role_play"]
    languages: tuple[Language, ...]
    files: tuple[str, ...]
    where: str
    licence: str
    share: str | None = None
    """The licence, as the hub writes it, under which records made from it may be passed on; null: they may not."""
    paper: str
    table5: Sampled | None = None
    beside: tuple[str, ...] = ()
    role_sft: dict[Language, RolePlayYield] = Field(default={})
    fetch: Origin | None = None


ReadCorpus = Callable[[list[Path], CorpusReader], Iterator[CorpusItem]]


class Source(CorpusFacts):
    """A corpus and how its files are read: `read` gets those that match `files`, sorted, and yields items whose `source` is the
    corpus's name."""

    name: str
    read: ReadCorpus


def by_row(
    make: Callable[[Any, str], CorpusItem],
    rows: Callable[[CorpusReader, Path], Iterable[CorpusRow]] = CorpusReader.records,
    named: Callable[[Path], str] = lambda file: file.stem,
) -> ReadCorpus:
    """A corpus's `read`, for files whose every row is one item or one drop.

    `make` gets a row's value and its source id, `name of the file/position`, for corpora that have no ids of their own; `named`
    says what a file is called, `rows` how files are read.
    """

    def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
        for file in files:
            for position, row in enumerate(rows(reader, file)):
                with reader.accounting(row):
                    yield make(row.value, f"{named(file)}/{position}")

    return read


def read_table(path: Path, model: type[M], what: str, each: Callable[[str, M], None] = lambda *_: None) -> list[M]:
    """The rows of a `.jsonl`, `.csv`, `.tsv` or `.xlsx` file that people made (see `core.people_tables`), as records; `what`
    says what is in it. `each` is given every one with its place.

    An empty cell of a table is a missing value where the field may be missing. Every row must be right: raises `UserError`
    with file, line and field (or column) of all that are not or that `each` refuses (a `UserError`), and for a file of another
    kind or without a row.
    """
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
                    record = model.model_validate(row.value)
                except ValidationError as error:
                    faults.found += [f"{row.where}: {problem}" for problem in problems_in(error)]
                    continue
                spellings.of(record, row.where)
                each(row.where, record)
                records.append(record)
    if not reader.step.taken:
        raise UserError(f"{path} is empty (columns: {', '.join(model.model_fields)})")
    return records


def dict_rows(path: Path, faults: Faults) -> list[CorpusRow]:
    """The rows of a table (see `core.people_tables`), of JSON lines or of a JSON list; `faults` has what cannot be read."""
    reader = CorpusReader(BuildStep(path.name), tidy=False)
    rows = list(reader.records(path) if path.suffix.lower() in (".json", ".jsonl") else _table_rows(path, reader))
    faults.found += reader.problems
    faults.found += [f"{row.where}: {row.value}" for row in rows if isinstance(row.value, Malformed)]
    if not reader.step.taken:
        raise UserError(f"{path}: no row")
    return [row for row in rows if not isinstance(row.value, Malformed)]


def _columns(path: Path, lines: Sequence[tuple[str, list[str]]], needed: Sequence[str]) -> list[str]:
    """The header of a table. Raises `UserError` for one without a needed column, or with one twice."""
    where, names = lines[0] if lines else (f"{path}:1", [])
    missing = [name for name in needed if name not in names]
    if missing or len(set(names)) < len(names):
        fault = f"no column {', '.join(map(repr, missing))}" if missing else "a column stands twice"
        raise UserError(f"{where}: {fault}; found, parted by commas: {shortened(', '.join(names)) or 'none'}")
    return names


def _typed_rows(path: Path, model: type[BaseModel], reader: CorpusReader) -> Iterator[CorpusRow]:
    """The rows of a table as {column: cell}, without cells that are empty and may be missing."""
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    nullable = [name for name in needed if type(None) in get_args(model.model_fields[name].annotation)]
    for row in _table_rows(path, reader, needed):
        if isinstance(row.value, dict):
            value = {name: cell for name, cell in row.value.items() if cell != "" or name in needed}
            row = CorpusRow(row.where, value | {name: None for name in nullable if value[name] == ""})
        yield row


def _table_rows(path: Path, reader: CorpusReader, needed: Sequence[str] = ()) -> Iterator[CorpusRow]:
    """The rows of a table as {column: cell}; a row of another length is `Malformed`."""
    lines = table_lines(path)
    names = _columns(path, lines, needed)
    for place, cells in lines[1:]:
        wrong = Malformed(f"expected {len(names)} columns, found {len(cells)} (put texts with a comma in quotes)")
        yield reader.row(place, dict(zip(names, cells, strict=True)) if len(cells) == len(names) else wrong)
