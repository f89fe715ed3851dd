"""A recipe reads its examples from JSONL, from Parquet, and from the folder that `role-sft` writes for `datasets`."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import write_json
from core.records import Record
from tests.train.conftest import per_dimension, rank_examples, role_examples, write_data
from train.example_files import read_rank, read_role, rubric_beside
from train.examples import Prepared

pytestmark = pytest.mark.slow

READ: dict[str, Any] = {"role": read_role, "rank": read_rank}
EXAMPLES: dict[str, list[Record]] = {"role": role_examples(4), "rank": [*rank_examples(2), *per_dimension(rank_examples(2, 9))]}


def written(folder: Path, task: str) -> dict[str, Path]:
    """The examples in each form: rows of Arrow have null where an example has no score of a dimension."""
    from datasets import Dataset, DatasetDict

    table = Dataset.from_list([example.model_dump(mode="json") for example in EXAMPLES[task]])
    table.to_parquet(str(folder / "train.parquet"))
    DatasetDict({"train": table, "valid": table}).save_to_disk(str(folder / "dataset"))
    return {"parquet": folder / "train.parquet", "folder": folder / "dataset" / "train"}


@pytest.mark.parametrize("task", READ)
def test_every_form_gives_the_same_examples_and_is_known_by_its_bytes(tmp_path: Path, task: str) -> None:
    write_data(tmp_path, "rank", train=1, valid=1)  # for the rubric beside
    write_json(tmp_path / "manifest.json", {"settings": {"prompts": {"pack": "esc_rank"}}})
    for path in written(tmp_path, task).values():
        assert READ[task](path) == EXAMPLES[task]
        identity = Prepared(path, EXAMPLES[task], []).identity()
        assert identity["prompts"] == "esc_rank" and rubric_beside(path).name == "esc_eval"
        moved = Path(shutil.move(path, tmp_path / f"moved {path.name}"))
        assert Prepared(moved, EXAMPLES[task], []).identity()["sha256"] == identity["sha256"]


def test_what_cannot_be_read_names_the_place(tmp_path: Path) -> None:
    paths = written(tmp_path, "role")
    with pytest.raises(UserError, match=r"it has the parts train, valid: name one, as .*dataset/train"):
        read_role(tmp_path / "dataset")
    with pytest.raises(UserError, match=r"train\.parquet: row 1: prompt, completion"):
        read_rank(paths["parquet"])
    paths["parquet"].write_bytes(paths["parquet"].read_bytes()[:-9])
    (tmp_path / "empty").mkdir()
    for path in (paths["parquet"], tmp_path / "empty", tmp_path / "none.parquet"):
        with pytest.raises(UserError, match=f"{path.name}: no role-play examples that"):
            read_role(path)
