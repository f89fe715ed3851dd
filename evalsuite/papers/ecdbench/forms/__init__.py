"""Shared parts of the readers of publishers' files: rows checked against a model, lines, tabs, folders of texts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, create_model

from core.errors import UserError
from core.files import read_text
from core.people_tables import csv_records
from core.rows import CorpusReader, CorpusRow, RowModel

T = TypeVar("T")
Doc = dict[str, Any]
ReadForm = Callable[[list[Path], CorpusReader], Iterator[Doc]]
Text = Annotated[str, Field(min_length=1)]


def parsed(model: type[RowModel], rows: Iterable[CorpusRow], reader: CorpusReader) -> Iterator[tuple[CorpusRow, Any]]:
    """Every row with its value as a record of the model."""
    for row in rows:
        with reader.accounting(row):
            yield row, model.model_validate(row.value)


def in_files(read: Callable[[Path], Iterable[T]], files: Sequence[Path]) -> Iterator[T]:
    """The items that `read` gives of each file, file by file."""
    return chain.from_iterable(map(read, files))


def row_of(**fields: Any) -> type[RowModel]:
    """The model of a file's rows: fields with their types, or (type, default) for those that may be missing."""
    definitions: dict[str, Any] = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()}
    model: type[RowModel] = create_model("Row", __base__=RowModel, **definitions)
    return model


def at_least(fewest: int, item: Any, most: int | None = None) -> Any:
    """The type of a list of `fewest` to `most` items."""
    return Annotated[list[item], Field(min_length=fewest, max_length=most)]


def form_of(
    model: type[RowModel],
    document: Callable[[Any], Doc] = RowModel.model_dump,
    read: Callable[[CorpusReader, Path], Iterable[CorpusRow]] = CorpusReader.jsonl,
) -> ReadForm:
    """A form whose documents are made from the rows of files, by default of JSON lines. `document` may raise `Dropped` (the
    item is left out) and `Malformed`."""

    def read_form(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
        for row in in_files(partial(read, reader), files):
            with reader.accounting(row):
                yield document(model.model_validate(row.value))

    return read_form


def csv_of(model: type[RowModel], document: Callable[[Any], Doc] = RowModel.model_dump) -> ReadForm:
    """A form of CSV files with a column for each field of the model."""
    needed = [field.alias or name for name, field in model.model_fields.items()]
    return form_of(model, document, partial(CorpusReader.csv, needed=needed))


def lines_of(file: Path, keep_blank: bool = False) -> list[str]:
    """A file's lines, without blank ones by default."""
    return [line for line in read_text(file, "data file").split("\n") if keep_blank or line.strip()]


def tabbed(
    files: Sequence[Path], reader: CorpusReader, width: int, header: str | None = None
) -> Iterator[tuple[CorpusRow, list[str]]]:
    """The tab-separated fields of every line, without quoting. A first line that begins with `header` is left out."""
    for file in files:
        for number, line in enumerate(lines_of(file, keep_blank=True), start=1):
            fields = line.removesuffix("\r").split("\t") if line.strip("\r") else []
            if not fields or (number == 1 and header is not None and line.split(maxsplit=1)[0] == header.split()[0]):
                continue
            row = reader.row(f"{file}:{number}", None)
            if len(fields) != width:
                reader.malformed(row, f"expected {width} fields separated by tabs, found {len(fields)}")
            yield row, fields


def tabbed_records(files: Sequence[Path], reader: CorpusReader, needed: Sequence[str]) -> Iterator[CorpusRow]:
    """The lines of tab-separated files, without quoting, as dicts by the names in the first line (GLUE's form)."""
    for file in files:
        head, *lines = lines_of(file, keep_blank=True)
        names = head.removesuffix("\r").split("\t")
        if missing := [name for name in needed if name not in names]:
            raise UserError(f"{file}:1: no column {', '.join(map(repr, missing))} among tab-separated {', '.join(names)}")
        for number, line in enumerate(lines, start=2):
            fields = line.removesuffix("\r").split("\t")
            if not line.strip():
                continue
            row = reader.row(f"{file}:{number}", dict(zip(names, fields, strict=False)))
            if len(fields) != len(names):
                reader.malformed(row, f"expected {len(names)} fields separated by tabs, found {len(fields)}")
            yield row


def bare_csv(files: Sequence[Path], reader: CorpusReader, width: int) -> Iterator[tuple[CorpusRow, list[str]]]:
    """The records of CSV files without a header."""
    for file in files:
        for line, fields in csv_records(file, read_text(file, "data file")):
            row = reader.row(f"{file}:{line}", fields)
            if len(fields) != width:
                reader.malformed(row, f"expected {width} columns, found {len(fields)}")
            yield row, fields


def folders_of(classes: Sequence[str], document: Callable[[str], Doc]) -> ReadForm:
    """A form of files of one text each, in one folder per class, whose index in `classes` is the right answer."""

    def read(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
        for file in files:
            row = reader.row(str(file), None)
            if file.parent.name not in classes:
                reader.malformed(row, f"folder {file.parent.name!r} is none of the classes {', '.join(classes)}")
            if text := read_text(file, "data file").strip():
                yield document(text) | {"gold": [classes.index(file.parent.name)]}
            else:
                reader.step.drop("no text", row.where)

    return read


def label_of(row: CorpusRow, reader: CorpusReader, field: str, value: str, labels: Sequence[str]) -> int:
    """The index of a label in `labels`; an unknown label is an error."""
    if value not in labels:
        reader.malformed(row, f"{field}: expected {', '.join(labels[:-1])} or {labels[-1]}, found {value!r}")
    return labels.index(value)
