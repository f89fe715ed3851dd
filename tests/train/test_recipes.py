"""A recipe that cannot be meant is one clear error, before anything is loaded."""

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


# Case → task, what is left out, settings, command line, and words of the error.
CASES: dict[str, tuple[str, str, dict[str, Any], list[str], str]] = {
    "an unknown setting": ("role", "", {"lora_rang": 8}, [], "recipe.yaml: lora_rang: unknown setting: did you mean lora_r"),
    "an unknown override": ("role", "", {}, ["--lora_rang", "8"], "--lora_rang"),
    # argparse checks choices on the command line only: from a file, the wrong loss would train without a word.
    "no choice of ours": ("rank", "", {"loss": "ordnal"}, [], "loss: 'ordnal' is not one of cross_entropy, ordinal"),
    "another script's setting": ("role", "", {"ordinal_weight": 2.0}, [], "ordinal_weight: unknown setting"),
    "no task": ("", "", {}, [], "task: '' is not role, rank or supporter"),
    "no such task": ("rang", "", {}, [], "task: 'rang' is not role, rank or supporter"),
    "remote code": ("role", "", {"trust_remote_code": True}, [], "remote code is never run"),
    "remote code, asked for": ("role", "", {}, ["--trust_remote_code", "true"], "remote code is never run"),
    "no training data": (
        "role",
        "train_file",
        {},
        [],
        "train_file: name the JSONL file that `python -m data_prep role-sft` wrote",
    ),
    "no validation": (
        "rank",
        "valid_file",
        {},
        [],
        "valid_file: name the JSONL file that `python -m data_prep rank-sft` wrote",
    ),
    "no base": ("role", "model_name_or_path", {}, [], "model_name_or_path: name the base"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, case: str) -> None:
    task, leave_out, settings, overrides, words = CASES[case]
    assert words in refused(recipe(tmp_path, task, leave_out, **settings), *overrides)


def test_a_recipe_has_to_be_there_and_of_this_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this script trains role \(for that one: train/esc_rank\.py\)"):
        parse_recipe("role", ["--config", str(recipe(tmp_path, "rank"))])
    assert "nowhere.yaml" in refused(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match=r"no recipe: give --config .*esc_rank_embedded\.yaml"):
        parse_recipe("rank", [])
    with pytest.raises(UserError, match="--config: name a recipe"):
        parse_recipe("rank", ["--config"])
    (tmp_path / "recipe.yaml").write_text("- task\n- role\n")
    assert "a recipe is a mapping of settings" in refused(tmp_path / "recipe.yaml")


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
