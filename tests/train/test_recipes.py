"""A recipe that cannot be meant is one clear error, before anything is loaded."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.errors import UserError
from tests.train.conftest import write_recipe
from train.recipes import parse_recipe, read_recipe

pytestmark = pytest.mark.slow  # TRL's parser loads torch

DATA = {"train_file": "train.jsonl", "valid_file": "valid.jsonl"}


def recipe(folder: Path, task: str = "role", leave_out: str = "", **settings: Any) -> Path:
    path = write_recipe(folder / "recipe.yaml", task, Path("base"), DATA, folder / "out", **settings)
    given = yaml.safe_load(path.read_text())
    given.pop(leave_out, None)
    path.write_text(yaml.safe_dump(given))
    return path


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        read_recipe(path, overrides)
    return str(error.value)


def test_file_and_command_line_make_one_recipe(tmp_path: Path) -> None:
    path = recipe(tmp_path, learning_rate="1e-4", warmup_steps=0.03)
    found = read_recipe(path, ["--lora_r", "16", "--max_steps", "3"])
    assert found.task == "role" and found.file == path
    assert found.training.learning_rate == pytest.approx(1e-4), "YAML reads 1e-4 as text"
    assert (found.model.lora_r, found.training.max_steps, found.training.seed) == (16, 3, 5)
    assert found.model.lora_target_modules == "all-linear"


@pytest.mark.parametrize("override", [("lora_r", 16), ("lora_r", 32), ("weight_decay", 0.25), ("max_steps", 3)])
def test_settings_tell_overrides(tmp_path: Path, override: tuple[str, Any]) -> None:
    """Also one that is the library's default: a run folder and a model card would else show the file's value."""
    name, value = override
    settings = read_recipe(recipe(tmp_path), [f"--{name}", str(value)]).settings()
    assert settings.get(name) == value
    assert "output_dir" not in settings, "where a run lies does not decide its weights"


def test_unknown_setting(tmp_path: Path) -> None:
    message = refused(recipe(tmp_path, lora_rang=8))
    assert "recipe.yaml: lora_rang: unknown setting" in message and "lora_r" in message


def test_unknown_override(tmp_path: Path) -> None:
    assert "--lora_rang" in refused(recipe(tmp_path), "--lora_rang", "8")


@pytest.mark.parametrize(("name", "value"), [("loss", "ordnal"), ("class_weights", "balance")])
def test_value_that_is_no_choice(tmp_path: Path, name: str, value: str) -> None:
    """argparse checks choices on the command line only: from a file, the wrong loss would train without a word."""
    assert f"{name}: {value}" in refused(recipe(tmp_path, "rank", **{name: value})).replace("'", "")


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_attention_dropout_that_is_no_share(tmp_path: Path, rate: float) -> None:
    assert f"attention_dropout: {rate:g} is not a share" in refused(recipe(tmp_path, "rank", attention_dropout=rate))


def test_setting_of_the_other_task(tmp_path: Path) -> None:
    assert "ordinal_weight: unknown setting" in refused(recipe(tmp_path, ordinal_weight=2.0))
    assert read_recipe(recipe(tmp_path, "rank", ordinal_weight=2.0)).data.ordinal_weight == 2.0


def test_recipe_of_the_other_task(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this script trains role \(for that one: train/esc_rank\.py\)"):
        parse_recipe("role", ["--config", str(recipe(tmp_path, "rank"))])


@pytest.mark.parametrize("task", ["", "rang"])
def test_no_such_task(tmp_path: Path, task: str) -> None:
    assert f"task: {task!r} is not role, rank or supporter" in refused(recipe(tmp_path, task))


def test_remote_code(tmp_path: Path) -> None:
    assert "remote code is never run" in refused(recipe(tmp_path, trust_remote_code=True))
    assert "remote code is never run" in refused(recipe(tmp_path), "--trust_remote_code", "true")


@pytest.mark.parametrize("name", ["train_file", "valid_file"])
@pytest.mark.parametrize("task", ["role", "rank"])
def test_no_data(tmp_path: Path, task: str, name: str) -> None:
    message = refused(recipe(tmp_path, task, leave_out=name))
    assert f"{name}: name the JSONL file that `python -m data_prep {task}-sft` wrote" in message


def test_no_base(tmp_path: Path) -> None:
    assert "model_name_or_path: name the base" in refused(recipe(tmp_path, leave_out="model_name_or_path"))


def test_no_file(tmp_path: Path) -> None:
    assert "nowhere.yaml" in refused(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match=r"no recipe: give --config .*esc_rank_embedded\.yaml"):
        parse_recipe("rank", [])
    with pytest.raises(UserError, match="--config: name a recipe"):
        parse_recipe("rank", ["--config"])


def test_not_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("- task\n- role\n")
    assert "a recipe is a mapping of settings" in refused(path)


@pytest.mark.parametrize("instructions", [True, False])
def test_slow_bf16_is_noted(
    tmp_path: Path, instructions: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from train import run

    monkeypatch.setattr(run, "bf16_instructions", lambda: instructions)
    for bf16, noted in ((True, not instructions), (False, False)):
        run.check_machine(read_recipe(recipe(tmp_path, bf16=bf16)))
        assert ("--bf16 false" in capsys.readouterr().err) == noted


@pytest.mark.parametrize("task", ["role", "rank"])
def test_one_process_with_several_gpus_is_refused(tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would wrap the model in DataParallel and multiply the batch by the number of GPUs."""
    script = importlib.import_module(f"train.esc_{task}")
    made = read_recipe(recipe(tmp_path, task))
    monkeypatch.setattr(type(made.training), "n_gpu", 8)
    with pytest.raises(UserError, match=r"one process sees 8 GPUs.*--gpu_ids 0"):
        script.main(made)


def test_a_limit_draws_whole_dialogues(tmp_path: Path) -> None:
    from core.files import write_jsonl
    from tests.train.conftest import per_dimension, rank_examples
    from train.example_files import read_rank

    write_jsonl(tmp_path / "train.jsonl", per_dimension(rank_examples(6)))
    found = read_rank(tmp_path / "train.jsonl", limit=2, seed=1)
    assert len({e.dialogue_id for e in found}) == 2 and len(found) == 6
    assert len(read_rank(tmp_path / "train.jsonl", limit=7)) == 18
