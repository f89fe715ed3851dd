"""A recipe reads its examples from a data set on the hub, or says in one line why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.files import CONFIGS
from tests.fake_hub import FakeHub
from tests.train.conftest import write_data, write_recipe

pytestmark = pytest.mark.slow

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


def run(hub: FakeHub, folder: Path, code: str, **more: str) -> str:
    """What code prints in a process of its own whose hub this is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(CONFIGS.parent)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=kept | own | more, capture_output=True, text=True, timeout=200, check=False)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def read(hub: FakeHub, folder: Path, *names: str, **more: str) -> list[str]:
    """For each name how many examples there are, or the error's one line."""
    code = f"""
from pathlib import Path
from core.errors import UserError
from train.example_files import read_role
for name in {names}:
    try:
        print(len(read_role(Path(name))))
    except UserError as error:
        print(error)
"""
    return run(hub, folder, code, **more).splitlines()


def test_a_data_set_on_the_hub_is_read_and_trained_on_as_its_file_is(
    hub: FakeHub, tmp_path: Path, tiny: dict[str, Path]
) -> None:
    """Also what lies beside it: the rubric of a ranker's examples."""
    data = write_data(tmp_path, "rank", train=6, valid=2)
    put(hub, "me/scores", tmp_path, "rubric.yaml")
    named = {"train_file": "me/scores/train", "valid_file": "me/scores/validation"}
    settings = {"max_steps": 2, "save_strategy": "no"}
    write_recipe(tmp_path / "hub.yaml", "rank", tiny["llama"], named, tmp_path / "hub", **settings)
    write_recipe(tmp_path / "file.yaml", "rank", tiny["llama"], data, tmp_path / "file", **settings)
    train = "from train import esc_rank; from train.recipes import parse_recipe; "
    train += "[esc_rank.main(parse_recipe('rank', ['--config', f'{name}.yaml'])) for name in ('hub', 'file')]"
    run(hub, tmp_path, train)
    assert (tmp_path / "hub" / "adapter").resolve().name == (tmp_path / "file" / "adapter").resolve().name


def test_what_the_hub_does_not_give_is_one_clear_error(hub: FakeHub, tmp_path: Path) -> None:
    write_data(tmp_path, "role", train=3, valid=2)
    put(hub, "me/talks", tmp_path)
    whole, *told = read(hub, tmp_path, "me/talks/train", "me/talks", "me/talks/tarin", "me/nothing/train", "me/talks.jsonl")
    assert whole == "3" and told[0] == "me/talks: it has the parts train, validation: name one, as me/talks/train"
    for line, name, word in ((told[1], "me/talks", "tarin"), (told[2], "me/nothing", "me/nothing")):
        assert line.startswith(f"{name}: no file here, and no data set that can be had from the hub: ") and word in line
    assert "me/talks.jsonl" in told[3] and "hub" not in told[3] and len(told) == 4
    cached, other = read(hub, tmp_path, "me/talks/train", "me/other/train", HF_HUB_OFFLINE="1")
    assert cached == "3", "offline, what was read before is enough"
    assert other.startswith("me/other: no file here, and no data set that can be had from the hub: ")
