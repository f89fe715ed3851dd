"""Shared parts of the readers of publishers' files: rows checked against a model, lines, tabs, folders of texts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, create_model

from core.errors import UserError
from core.files import read_text
from core.people_tables import csv_records
from core.rows import CorpusReader, CorpusRow, RowModel

T = TypeVar("T")
Doc = dict[str, Any]
ReadForm = Callable[[list[Path], CorpusReader], Iterator[Doc]]
Text = Annotated[str, Field(min_length=1)]
Bit = Literal["0", "1"]


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


def tabs_of(
    model: type[RowModel], document: Callable[[Any], Doc], names: Sequence[str] | None = None, header: str | None = None
) -> ReadForm:
    """A form of tab-separated files with the columns `names` (see `tabbed`), by default with those of the model."""
    needed = [field.alias or name for name, field in model.model_fields.items()]
    return form_of(model, document, partial(tabbed, names=names, needed=needed, header=header))


def lines_of(file: Path, keep_blank: bool = False) -> list[str]:
    """A file's lines, without blank ones by default."""
    return [line for line in read_text(file, "data file").split("\n") if keep_blank or line.strip()]


def tabbed(
    reader: CorpusReader,
    file: Path,
    names: Sequence[str] | None = None,
    needed: Sequence[str] = (),
    header: str | None = None,
) -> Iterator[CorpusRow]:
    """The lines of a file as dicts by `names`, or by those in its first line, which must have the `needed` ones (GLUE's form).
    Fields are separated by tabs, without quoting. With `names`, a first line that begins like `header` is left out."""
    lines = [line.removesuffix("\r") for line in lines_of(file, keep_blank=True)]
    heads = names or lines[0].split("\t")
    if missing := [name for name in needed if name not in heads]:
        raise UserError(f"{file}:1: no column {', '.join(map(repr, missing))} among tab-separated {', '.join(heads)}")
    headed = names is None or (header is not None and lines[0].split(maxsplit=1)[:1] == header.split()[:1])
    for number, line in enumerate(lines[headed:], start=1 + headed):
        if line.strip():
            fields = line.split("\t")
            row = reader.row(f"{file}:{number}", dict(zip(heads, fields, strict=False)))
            if len(fields) != len(heads):
                reader.malformed(row, f"expected {len(heads)} fields separated by tabs, found {len(fields)}")
            yield row


def bare_csv(reader: CorpusReader, file: Path, names: Sequence[str]) -> Iterator[CorpusRow]:
    """The records of a CSV file without a header, as dicts."""
    for line, fields in csv_records(file, read_text(file, "data file")):
        row = reader.row(f"{file}:{line}", dict(zip(names, fields, strict=False)))
        if len(fields) != len(names):
            reader.malformed(row, f"expected {len(names)} columns, found {len(fields)}")
        yield row


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
