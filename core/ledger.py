"""The ledger of a data command: how many items each step took, kept and dropped (with a reason), and its outputs with their
manifest. No clock time is recorded, so two runs on the same input with the same seed leave the same bytes."""

import functools
import importlib.metadata
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from rich.console import Console

from core.errors import UserError
from core.files import read_object, sha256_file, write_json, write_jsonl

T = TypeVar("T")
R = TypeVar("R")
_EXAMPLES = 3  # places kept for each reason


@dataclass
class BuildStep:
    """Counts of a step. `examples` has the first places for each reason to drop; `changed` counts kept but modified items."""

    name: str
    taken: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    changed: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, what: str) -> None:
        """Count a dropped item; `what` is its place (file:line) or id."""
        self.dropped[reason] += 1
        places = self.examples.setdefault(reason, [])
        if len(places) < _EXAMPLES:
            places.append(what)

    def sieve(
        self, items: Iterable[T], fault: Callable[[T], str | None], what: Callable[[T], str] = attrgetter("id")
    ) -> list[T]:
        """The items without a `fault`, which is the reason to drop the others; `what` names an item."""
        return [item for (item,) in self.make(items, lambda item: fault(item) or (item,), what)]  # items may be strings

    def make(self, items: Iterable[T], record: Callable[[T], R | str], what: Callable[[T], str] = attrgetter("id")) -> list[R]:
        """The `record` of each item; a string is the reason to drop the item instead."""
        records = []
        for item in items:
            self.taken += 1
            result = record(item)
            if isinstance(result, str):
                self.drop(result, what(item))
            else:
                records.append(result)
        self.kept += len(records)
        return records

    def check(self) -> None:
        """Raise `AssertionError` if an item vanished without a reason: a bug, not bad input."""
        lost = self.taken - self.kept - self.dropped.total()
        assert lost == 0, f"step {self.name}: {self.taken} taken, {self.kept} kept, {self.dropped.total()} dropped"

    def row(self) -> dict[str, Any]:
        return {
            "step": self.name,
            "in": self.taken,
            "out": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "examples": dict(sorted(self.examples.items())),
            **({"changed": dict(sorted(self.changed.items()))} if self.changed else {}),
        }


class Build:
    """One data_prep command: its inputs, steps and outputs, which are written to `folder`, a hidden one inside `out`, until
    `finish` adds `manifest.json` and moves everything: a command that fails before that leaves `out` unchanged."""

    def __init__(self, out: Path, command: str, seed: int | None = None, settings: dict[str, Any] | None = None) -> None:
        self.out, self._command, self._seed, self._settings = out, command, seed, settings or {}
        self.steps: list[BuildStep] = []
        self.figures: dict[str, Any] = {}  # results for the manifest
        self.on_step: Callable[[str], None] = lambda name: None  # called when a step begins: a progress bar
        self._inputs: dict[str, dict[str, Any]] = {}
        self._outputs: dict[str, dict[str, Any]] = {}

    @functools.cached_property
    def folder(self) -> Path:
        """The temporary folder for outputs, removed with this object. Raises `UserError` if it cannot be created."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=self.out))
        except OSError as error:
            raise UserError(f"cannot write {self.out}: {error.strerror}") from None
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def input(self, *paths: Path) -> None:
        """Record the sha256 of files, or of every file in a folder."""
        for path in paths:
            for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
                self._inputs[str(file)] = {"bytes": file.stat().st_size, "sha256": sha256_file(file)}

    def step(self, name: str, count: int = 0) -> BuildStep:
        """A new step in the manifest, through which `count` items have passed unchanged."""
        self.on_step(name)
        self.steps.append(BuildStep(name, taken=count, kept=count))
        return self.steps[-1]

    def write(self, name: str, records: Iterable[BaseModel]) -> None:
        """Write records as JSON lines to an output of this name."""
        self.output(name, write_jsonl(self.folder / name, records))

    def output(self, name: str, records: int | None = None) -> None:
        """Record an output that was written to `folder` by other means."""
        self._outputs[name] = {"sha256": sha256_file(self.folder / name)} | ({} if records is None else {"records": records})

    def manifest(self) -> dict[str, Any]:
        for step in self.steps:
            step.check()
        return {
            "command": self._command,
            "version": importlib.metadata.version("esc-eval"),
            "seed": self._seed,
            "settings": self._settings,
            "inputs": dict(sorted(self._inputs.items())),
            "steps": [step.row() for step in self.steps],
            **({"figures": self.figures} if self.figures else {}),
            "outputs": dict(sorted(self._outputs.items())),
        }

    def print_steps(self, console: Console) -> None:
        """One line per step."""
        for step in self.steps:
            notes = [f"dropped: {reason} {count}" for reason, count in sorted(step.dropped.items())]
            notes += [f"{what} {count}" for what, count in sorted(step.changed.items())]
            tail = f" ({', '.join(notes)})" if notes else ""
            console.print(f"{step.name}: {step.taken} in, {step.kept} out{tail}", soft_wrap=True)

    def earlier(self) -> dict[str, Any]:
        """The manifest of an earlier run of the same command in `out`, or {}."""
        try:
            manifest = read_object(self.out / "manifest.json", "manifest")
            return manifest if manifest["command"] == self._command else {}
        except (UserError, KeyError):
            return {}

    def _remove_stale(self) -> None:
        """Remove outputs of an earlier run of the same command that this run does not make: they would pass for its own. Files
        that this run reads, or that somebody has changed since (a sheet that was filled in), stay."""
        inputs = {Path(path).resolve() for path in self._inputs}
        try:
            for name, output in self.earlier().get("outputs", {}).items():
                path = self.out / name
                stale = name not in self._outputs and path.resolve() not in inputs and path.is_file()
                if stale and sha256_file(path) == output["sha256"]:
                    path.unlink()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # no manifest of ours

    def _move(self) -> None:
        written = {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}
        assert written == {*self._outputs, "manifest.json"}, f"unrecorded or missing: {written ^ set(self._outputs)}"
        try:
            for name in written:  # find any obstacle before anything is moved
                (self.out / name).parent.mkdir(parents=True, exist_ok=True)
                if (self.out / name).is_dir():
                    raise UserError(f"cannot write {self.out / name}: a folder is there")
            for name in sorted(self._outputs):
                (self.folder / name).replace(self.out / name)
            self._remove_stale()
            (self.folder / "manifest.json").replace(self.out / "manifest.json")
        except OSError as error:
            raise UserError(f"cannot write {self.out}: {error.filename2 or error.filename}: {error.strerror}") from None
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self, console: Console, quiet: bool = False) -> dict[str, Any]:
        """Print one line per step, and move the outputs and their manifest to `out`. `quiet`: do not print their names."""
        manifest = self.manifest()
        self.print_steps(console)
        write_json(self.folder / "manifest.json", manifest)
        self._move()
        if not quiet:
            console.print(f"written: {self.out}/ ({', '.join([*sorted(self._outputs), 'manifest.json'])})")
        return manifest
