"""weights.csv: for each dialogue drawn for people to score, its chance of being drawn and the weight of its scores, 1 /
chance."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field

from core.errors import UserError
from core.records import Identifier, Number
from core.rows import RowModel, read_table
from data_prep.cards.sheets import write_csv

WEIGHTS = "weights.csv"  # beside the dialogues that were drawn, and beside their scores by people
BEFORE = "weights_before.csv"  # beside the dialogues of a further round: weights of those scored before


class SampleWeight(RowModel):
    """A row of weights.csv."""

    dialogue_id: Identifier
    chance: Number = Field(gt=0)
    weight: Number = Field(gt=0)


def write_weights(path: Path, weights: Mapping[str, float]) -> int:
    """Write weights.csv (dialogue, chance, weight) from dialogue → 1 / chance. Returns the number of rows."""
    rows = [{"dialogue_id": id, "chance": repr(1 / weight), "weight": repr(weight)} for id, weight in weights.items()]
    write_csv(path, ("dialogue_id", "chance", "weight"), rows)
    return len(rows)


def read_weights(paths: Iterable[Path]) -> dict[str, float]:
    """Dialogue → weight. Raises `UserError` with file and line for malformed rows and repeated dialogues."""
    weights: dict[str, float] = {}

    def each(where: str, row: SampleWeight) -> None:
        if row.dialogue_id in weights:
            raise UserError(f"{where}: dialogue_id: {row.dialogue_id} is there twice")
        weights[row.dialogue_id] = row.weight

    for path in paths:
        read_table(path, SampleWeight, "weights", each)
    return weights


def weights_beside(files: Iterable[Path]) -> list[Path]:
    """The weights.csv files in the folders of these files."""
    folders = dict.fromkeys(path.parent for path in files)
    return [folder / WEIGHTS for folder in folders if (folder / WEIGHTS).exists()]
