"""What every data step took, kept and dropped, and the manifest that is written beside its output.

A step is balanced: what it took is what it kept plus what it dropped, each drop under a reason. No clock time is kept, so two
runs on the same input with the same seed leave the same bytes.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel
from rich.console import Console

from serve.errors import UserError
from serve.files import sha256_file, write_json, write_jsonl

_EXAMPLES = 3  # places kept for each reason


@dataclass
class Step:
    """Counts of one step.

    `examples` holds the first few places of each reason to drop; `changed` counts what was kept, but not as it was (shortened,
    for instance).
    """

    name: str
    taken: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    changed: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, what: str) -> None:
        """One thing less, and why; `what` is a place (file:line) or an id."""
        self.dropped[reason] += 1
        places = self.examples.setdefault(reason, [])
        if len(places) < _EXAMPLES:
            places.append(what)

    def check(self) -> None:
        """Raise `AssertionError` when something vanished without a reason: that is a bug, not bad input."""
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
    """One data_prep command: its inputs, steps and outputs. `finish` prints the steps and writes `manifest.json`."""

    def __init__(self, out: Path, command: str, seed: int | None = None, settings: dict[str, Any] | None = None) -> None:
        self.out, self._command, self._seed, self._settings = out, command, seed, settings or {}
        self.steps: list[Step] = []
        self.figures: dict[str, Any] = {}  # results that belong beside the counts
        self.on_step: Callable[[str], None] = lambda name: None  # told of every step that begins: a progress bar
        self._inputs: dict[str, dict[str, Any]] = {}
        self._outputs: dict[str, dict[str, Any]] = {}

    def input(self, path: Path) -> None:
        """Remember a file, or every file of a folder, by its sha256."""
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            self._inputs[str(file)] = {"bytes": file.stat().st_size, "sha256": sha256_file(file)}

    def step(self, name: str) -> Step:
        """A new step, counted into the manifest."""
        self.on_step(name)
        self.steps.append(Step(name))
        return self.steps[-1]

    def write(self, name: str, records: Iterable[BaseModel]) -> int:
        """Write records as JSON lines to `out/name`; returns how many. Raises `UserError` rather than write over an input."""
        self.refuse_inputs([name])
        count = write_jsonl(self.out / name, records)
        self.output(name, count)
        return count

    def refuse_inputs(self, names: Iterable[str]) -> None:
        """Raise `UserError` when one of these outputs would replace what this command reads."""
        given = {Path(path).resolve() for path in self._inputs}
        for name in names:
            if (self.out / name).resolve() in given:
                raise UserError(f"--out {self.out}: {name} is read from there and would be replaced; choose another folder")

    def output(self, name: str, records: int | None = None) -> None:
        """Remember a file of `out` that was written by other means."""
        self._outputs[name] = {"sha256": sha256_file(self.out / name)} | ({} if records is None else {"records": records})

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
        """One line a step."""
        for step in self.steps:
            notes = [f"dropped: {reason} {count}" for reason, count in sorted(step.dropped.items())]
            notes += [f"{what} {count}" for what, count in sorted(step.changed.items())]
            tail = f" ({', '.join(notes)})" if notes else ""
            text = f"{step.name}: {step.taken} in, {step.kept} out{tail}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _remove_stale(self) -> None:
        """Files that the same command left here in an earlier run and does not make now: they would pass for its output.

        What somebody has changed since (a sheet that was filled in), or what this run reads, stays.
        """
        given = {Path(path).resolve() for path in self._inputs}
        try:
            before = orjson.loads((self.out / "manifest.json").read_bytes())
            left = before["outputs"].items() if before["command"] == self._command else ()
            for name, known in left:
                path = self.out / name
                stale = name not in self._outputs and path.resolve() not in given and path.is_file()
                if stale and sha256_file(path) == known["sha256"]:
                    path.unlink()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # no manifest of ours

    def finish(self, console: Console) -> dict[str, Any]:
        """Print one line a step and write the manifest."""
        manifest = self.manifest()
        self.print_steps(console)
        self._remove_stale()
        write_json(self.out / "manifest.json", manifest)
        console.print(
            f"written: {self.out}/ ({', '.join(sorted(self._outputs))}, manifest.json)", highlight=False, markup=False
        )
        return manifest
