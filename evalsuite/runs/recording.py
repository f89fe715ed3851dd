"""A recorded run, whose answers another run replays: the whole pipeline without calling a model."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import UserError, near
from core.specs import ModelSpec
from evalsuite.runs.run_config import RunConfig
from serve.store import CallStore

BUNDLED = Path(__file__).parent.parent / "recordings"


@dataclass(frozen=True)
class Recording:
    """The answers of a run folder: a bundled one (by name) or your own (by path)."""

    name: str
    store: Path
    recorded: str
    """The day of its last answer."""
    precisions: Mapping[str, str]
    """Model → its dtype when recorded, which this machine might not choose; calls are found by it."""

    @classmethod
    def read(cls, name: str) -> Recording:
        """Raises `UserError` if there is no such recording, or it has no answers."""
        folder = BUNDLED / name if "/" not in name and (BUNDLED / name).is_dir() else Path(name)
        store = folder / "calls.sqlite"
        if not store.is_file():
            names = [path.name for path in BUNDLED.iterdir()] if BUNDLED.is_dir() else []
            raise UserError(f"replay {name}: no run folder (no calls.sqlite), and no bundled recording: {near(name, names)}")
        try:
            with sqlite3.connect(f"file:{store.absolute()}?mode=ro", uri=True) as answers:
                last = answers.execute("SELECT max(time) FROM calls").fetchone()[0]
        except sqlite3.Error as error:
            raise UserError(f"replay {name}: {store} cannot be read: {error}") from None
        if last is None:
            raise UserError(f"replay {name}: {store} holds no answer")
        models = RunConfig.read(folder).specs()
        precisions = {model: str(claimed["dtype"]) for model, claimed in models.items() if "dtype" in claimed}
        return cls(folder.name, store, time.strftime("%Y-%m-%d", time.gmtime(last)), precisions)

    def spec(self, spec: ModelSpec) -> ModelSpec:
        """A model's spec with its precision in the recording."""
        if spec.serve.dtype != "auto" or spec.name not in self.precisions:
            return spec
        options = spec.serve.model_dump() | {"dtype": self.precisions[spec.name]}
        return spec.model_copy(update={"serve": type(spec.serve).model_validate(options)})

    def into(self, store: CallStore) -> None:
        """Copy the answers into a run's store, where the run finds them."""
        store.add_from(self.store)

    def __str__(self) -> str:
        return f"{self.name}, recorded on {self.recorded}"
