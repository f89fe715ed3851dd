"""Benchmarks' own files, as their publishers give them out, turned into documents that tasks ask.

`configs/ecdbench/local.yaml` says which files belong to which dataset and how they are read (`evalsuite.fdaef.forms`). A
document is a dict: for a task of lm-eval the columns that this task knows, for ours the columns that its file in
configs/ecdbench/tasks names and `gold`, the list of the choices (from 0) that are right. What a file leaves without an answer
is left out and counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from core.errors import UserError, near
from core.files import CONFIGS, read_yaml
from core.ledger import Step
from core.rows import CorpusReader
from core.settings import Settings
from evalsuite.fdaef.forms import FORMS, Doc

SUMMARY = "summary"  # the task that the model answers with a summary, which a judge scores; lm-eval has no part in it


class Part(Settings):
    """One set of files of a dataset: the task that asks them, how they are read, and of which category (None: all)."""

    task: str
    form: str
    files: Annotated[list[str], Field(min_length=1)]
    category: str | None = None


class Layout(Settings):
    """Dataset → its parts. Files are paths below the data folder, as patterns."""

    datasets: dict[str, list[Part]]


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
            if (part.form == "documents") != (part.task == SUMMARY):
                raise UserError(f"{path}: datasets.{name}: form documents and task {SUMMARY} go together")
    return layout


def find_files(data: Path, part: Part) -> list[Path]:
    """The files of a part, in the patterns' order; [] when any pattern finds none."""
    matches = [sorted(data.glob(pattern)) for pattern in part.files]
    return [path for paths in matches for path in paths] if all(matches) else []


def read_part(part: Part, files: list[Path]) -> tuple[list[Doc], Step]:
    """A part's documents in file order, and the account of what was left out.

    Raises `UserError` with file and line for what cannot be read, and when nothing is left.
    """
    step = Step(part.task)
    docs = [
        doc for doc in FORMS[part.form](files, CorpusReader(step, strict=True)) if part.category in (None, doc.get("category"))
    ]
    if not docs:
        what = f" of category {part.category!r}" if part.category else ""
        raise UserError(f"{files[0]}: no item{what} that has an answer")
    return docs, step
