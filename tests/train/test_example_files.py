"""A recipe reads its examples from JSONL, Parquet, a folder of `datasets` or the hub, or says in one line why it cannot."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import CONFIGS, write_json
from core.records import Record
from tests.fake_hub import FakeHub
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


HEAD = """---
configs:
- config_name: examples
  default: true
  data_files: [{split: train, path: train.jsonl}, {split: validation, path: valid.jsonl}]
---
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as started:
        yield started


def put(hub: FakeHub, name: str, folder: Path, *beside: str) -> None:
    hub.repos["dataset", name] = {path: (folder / path).read_bytes() for path in ("train.jsonl", "valid.jsonl", *beside)} | {
        "README.md": HEAD.encode()
    }


def read(hub: FakeHub, folder: Path, *names: str, **more: str) -> list[str]:
    """For each name, in a process whose hub this is, how many examples there are, of which rubric, or the error's one line."""
    code = f"""
from pathlib import Path
from core.errors import UserError
from train.example_files import read_rank, read_role, rubric_beside
for name in map(Path, {names}):
    try:
        print(f"{{len(read_rank(name))}} of {{rubric_beside(name).name}}" if "scores" in name.parts else len(read_role(name)))
    except UserError as error:
        print(error)
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(CONFIGS.parent)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=kept | own | more, capture_output=True, text=True, timeout=200, check=False)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_examples_on_the_hub_are_read_or_one_clear_error_says_why_not(hub: FakeHub, tmp_path: Path) -> None:
    """Also what lies beside them, the rubric of a ranker's examples; and without a network what was read before."""
    write_data(tmp_path, "rank", train=6, valid=2)
    put(hub, "me/scores", tmp_path, "rubric.yaml")
    write_data(tmp_path, "role", train=3, valid=2)
    put(hub, "me/talks", tmp_path)
    names = ("me/scores/train", "me/talks/train", "me/talks", "me/talks/tarin", "me/nothing/train", "me/talks.jsonl")
    scores, whole, *told = read(hub, tmp_path, *names)
    assert scores == "6 of esc_eval" and whole == "3"
    assert told[0] == "me/talks: it has the parts train, validation: name one, as me/talks/train"
    for line, name, word in ((told[1], "me/talks", "tarin"), (told[2], "me/nothing", "me/nothing")):
        assert line.startswith(f"{name}: neither a local file nor an available data set on the hub: ") and word in line
    assert "me/talks.jsonl" in told[3] and "hub" not in told[3] and len(told) == 4
    cached, other = read(hub, tmp_path, "me/talks/train", "me/other/train", HF_HUB_OFFLINE="1")
    assert cached == "3" and other.startswith("me/other: neither a local file nor an available data set on the hub: ")
