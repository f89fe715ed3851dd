"""Bringing a run folder of an earlier form to the present one (`esc-eval migrate`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.errors import UserError
from core.files import locked, read_jsonl
from core.records import Dialogue, HumanScore, Judgement
from evalsuite.runs.formats import numbers
from evalsuite.runs.judgement_sets import FILES, sets_of
from evalsuite.runs.people import read_people
from evalsuite.runs.run_config import NAME, RunConfig


@dataclass(frozen=True)
class Step:
    """From the form before it to that of `version`.

    `change` may be done twice: the version is written after it, so that a folder whose migration was killed still has the form
    before.
    """

    version: str
    told: str
    """What is so after it."""
    change: Callable[[Path, RunConfig], None]


def _check_records(folder: Path, config: RunConfig) -> None:
    """Raise `UserError` for a record that the form does not have: no folder states a form that it is not of."""
    read_people(folder)
    read: dict[Path, type[Dialogue] | type[Judgement] | type[HumanScore]] = {
        folder / "dialogues.jsonl": Dialogue,
        folder / "gold_dialogues.jsonl": Dialogue,
        folder / "gold_scores.jsonl": HumanScore,
    }
    read |= {judged.folder / name: Judgement for judged in sets_of(folder, config) for name in FILES if name.endswith(".jsonl")}
    for path, record in read.items():
        if path.exists():
            read_jsonl(path, record, "records", allow_empty=True)


STEPS = (Step("1.1", f"{NAME} states the form; every record was read and has it", _check_records),)


def migrate(folder: Path) -> tuple[str, list[Step]]:
    """Bring a run folder to the present form. Returns the form that it had, and the steps that were done: none where it has the
    present form already, or a later minor one.

    Raises `UserError`, and leaves the folder as it was, where it is no run folder, in use, damaged or of a newer major form.
    """
    if not (folder / NAME).exists():
        raise UserError(f"not a run folder (no {NAME}): {folder}")
    with locked(folder / ".lock", f"run folder {folder}"):
        config = RunConfig.read(folder, migrating=True)
        had = config.format
        steps = [step for step in STEPS if numbers(step.version) > numbers(had)]
        for step in steps:
            step.change(folder, config)
            config.write_as(step.version)
    return had, steps
