"""Benchmarks' own files, as their publishers give them out, turned into documents that tasks ask.

`configs/ecdbench/local.yaml` says which files belong to which dataset and how they are read (`forms`, beside this file). A
document is a dict: for a task of lm-eval the columns that this task knows, for ours the columns that its file in
configs/ecdbench/tasks names and `gold`, the list of the choices (from 0) that are right. What a file leaves without an answer
is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from core.errors import UserError, near
from core.files import CONFIGS
from core.ledger import BuildStep
from core.rows import CorpusReader, CorpusRow
from core.settings import Settings
from core.yaml_files import read_yaml
from evalsuite.papers.ecdbench.forms import FORMS, SUMMARISED, Doc

SUMMARY = "summary"  # the task that the model answers with a summary, which a judge scores; lm-eval has no part in it


class Part(Settings):
    """One set of files of a dataset: the task that asks them, how they are read, and of which category (None: all).

    `fields` maps the form's names of fields to those in the files, where these differ.
    """

    task: str
    form: str
    files: Annotated[list[str], Field(min_length=1)]
    category: str | None = None
    fields: dict[str, str] = Field(default={})


Files = list[tuple[Part, list[Path]]]


@dataclass
class _RenamingReader(CorpusReader):
    """Reads rows by the form's names of fields, where `Part.fields` has others."""

    fields: dict[str, str] = field(default_factory=dict)

    def jsonl(self, path: Path, first: int = 1) -> Iterator[CorpusRow]:
        return map(self._renamed, super().jsonl(path, first))

    def json_list(self, path: Path) -> Iterator[CorpusRow]:
        return map(self._renamed, super().json_list(path))

    def csv(self, path: Path, needed: Sequence[str] = ()) -> Iterator[CorpusRow]:
        return map(self._renamed, super().csv(path, [self.fields.get(name, name) for name in needed]))

    def _renamed(self, row: CorpusRow) -> CorpusRow:
        if not self.fields or not isinstance(row.value, dict):
            return row
        own = {name: row.value[theirs] for name, theirs in self.fields.items() if theirs in row.value}
        if missing := [theirs for theirs in self.fields.values() if theirs not in row.value]:
            self.malformed(row, f"{missing[0]}: missing (the layout's `fields` names it)")
        return CorpusRow(row.where, row.value | own)


class NothingThere(UserError):
    """Files that can be read, without an item that can be asked."""


class Layout(Settings):
    """Dataset → its parts. Files are paths below the data folder, as patterns."""

    datasets: dict[str, list[Part]]


def layout_of(data: Path | None) -> Layout:
    """Where a data folder's files lie: by a layout.yaml of its own, else by configs/ecdbench/local.yaml."""
    own = data and data / "layout.yaml"
    return load_layout(own if own and own.is_file() else None)


def load_layout(path: Path | None) -> Layout:
    """Where files lie: configs/ecdbench/local.yaml, or one's own. Raises `UserError` for a form that there is not, or that does
    not fit the task."""
    path = path or CONFIGS / "ecdbench" / "local.yaml"
    layout = read_yaml(path, Layout, "layout of local data")
    for name, parts in layout.datasets.items():
        for part in parts:
            if part.form not in FORMS:
                raise UserError(f"{path}: datasets.{name}: unknown form {part.form!r}: {near(part.form, FORMS)}")
            if absolute := [pattern for pattern in part.files if Path(pattern).is_absolute()]:
                raise UserError(f"{path}: datasets.{name}: files: {absolute[0]} is not below the data folder")
            if (part.form in SUMMARISED) != (part.task == SUMMARY):
                raise UserError(
                    f"{path}: datasets.{name}: task {SUMMARY} goes together with the forms {', '.join(sorted(SUMMARISED))}"
                )
    return layout


def find_files(data: Path, part: Part) -> list[Path]:
    """The files of a part, in the patterns' order; [] when any pattern finds none."""
    matches = [sorted(data.glob(pattern)) for pattern in part.files]
    return [path for paths in matches for path in paths] if all(matches) else []


def read_part(part: Part, files: list[Path]) -> tuple[list[Doc], BuildStep]:
    """A part's documents in file order, and the account of what was left out.

    Raises `UserError` with file and line for what cannot be read, and when nothing is left.
    """
    step = BuildStep(part.task)
    reader = _RenamingReader(step, strict=True, tidy=False, fields=part.fields)
    docs = [doc for doc in FORMS[part.form](files, reader) if part.category in (None, doc.get("category"))]
    if not docs:
        what = f" of category {part.category!r}" if part.category else ""
        raise NothingThere(f"{files[0]}: no item{what} that has an answer")
    return docs, step


def read_parts(files: Files) -> list[tuple[Part, list[Doc], BuildStep]]:
    """The documents of all parts of a dataset. A category that its files have no item of is left out, unless it is the only
    one."""
    parts, errors = [], []
    for part, paths in files:
        try:
            parts.append((part, *read_part(part, paths)))
        except NothingThere as error:
            errors.append(error)
    if errors and not parts:
        raise errors[0]
    return parts
