"""An output folder is known by what its training reads, not by where that lies, and one training at a time writes to it."""

import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import locked
from data_prep.role_play.examples import RoleExample
from tests.train.conftest import role_examples, write_data, write_recipe
from train.example_files import read_role
from train.examples import Prepared, encode, prepare_role
from train.recipes import ARGUMENTS, IDLE, NOT_SETTINGS, parse_recipe, training_config
from train.run import DATA_FILES, PATHS, open_output

pytestmark = pytest.mark.slow


def claim(folder: Path, base: str, data: Path, **settings: Any) -> None:
    """What both scripts do before the model is loaded."""
    files = {f"{name}_file": str(data / f"{name}.jsonl") for name in ("train", "valid")}
    path = write_recipe(folder / "recipe.yaml", "role", Path(base), files, folder / "out", **settings)
    recipe = parse_recipe("role", ["--config", str(path)])
    open_output(recipe, *(Prepared(Path(file), read_role(Path(file)), []) for file in files.values()))


@pytest.fixture
def claimed(tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    write_data(tmp_path / "data", "role", train=3, valid=2)
    (tmp_path / "deepspeed.json").write_text("{}")
    shutil.copytree(tiny["llama"], tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    claim(tmp_path, str(tmp_path / "base"), tmp_path / "data")
    return tmp_path


def test_the_same_bytes_at_another_place_are_resumed(claimed: Path) -> None:
    claim(claimed, "base", Path("data"))  # relative, where it was absolute
    shutil.copytree(claimed / "data", claimed / "moved data")
    (claimed / "base").rename(claimed / "moved base")
    claim(claimed, "moved base", claimed / "moved data")


def test_other_bytes_at_the_same_place_are_refused(claimed: Path) -> None:
    (claimed / "base" / "config.json").write_bytes((claimed / "base" / "config.json").read_bytes() + b"\n")
    with pytest.raises(UserError, match="made by another recipe or other data .*files.model_name_or_path"):
        claim(claimed, "base", Path("data"))
    shutil.rmtree(claimed / "base")
    with (claimed / "data" / "train.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(UserError, match="made by another recipe or other data"):
        claim(claimed, "base", Path("data"))


def test_every_setting_that_is_a_path_is_known_by_its_content() -> None:
    """Whatever names a file or folder is hashed, or does not decide the weights (where results go)."""
    refused = {name for names in IDLE.values() for name in names}
    for task, ours in ARGUMENTS.items():
        for kind in (ours, training_config(task)):
            for setting in fields(kind):
                said = f"{setting.metadata.get('help') or ''} {setting.name}"
                if re.search(r"\bpath to\b|_(file|path|dir)$", said, re.IGNORECASE):
                    assert setting.name in PATHS | DATA_FILES | NOT_SETTINGS | refused, setting.name


def test_a_second_training_in_one_folder_is_refused(claimed: Path) -> None:
    claim(claimed, "base", Path("data"))  # once more in the same process: the first has ended
    (claimed / "other").mkdir()
    with locked(claimed / "other" / "out" / ".lock", "x"), pytest.raises(UserError, match="output_dir: .*out is in use by"):
        claim(claimed / "other", "base", claimed / "data")


def test_the_marker_before_a_line_that_begins_with_white_space_carries_no_loss(tmp_path: Path, tiny: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    from core.files import write_jsonl

    tokenizer = AutoTokenizer.from_pretrained(tiny["llama"])
    (example,) = role_examples(1)
    assert isinstance(example, RoleExample)
    spaced = [m | {"content": f" \n{m['content']}"} if m["role"] == "assistant" else m for m in example.messages]
    write_jsonl(tmp_path / "train.jsonl", [example.model_copy(update={"messages": tuple(spaced)})])
    prepared = prepare_role(tmp_path / "train.jsonl", read_role(tmp_path / "train.jsonl"), tokenizer, None)
    ids, labels = encode(tokenizer, example.messages)
    assert prepared.rows == [{"input_ids": ids, "labels": labels}]
