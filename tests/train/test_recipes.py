"""A recipe that cannot be meant is one clear error, before anything is loaded."""

from __future__ import annotations

import importlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.errors import UserError
from tests.train.conftest import untrained, write_data, write_recipe
from train import recipes
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
    from train.examples import read_rank

    write_jsonl(tmp_path / "train.jsonl", per_dimension(rank_examples(6)))
    found = read_rank(tmp_path / "train.jsonl", limit=2, seed=1)
    assert len({e.dialogue_id for e in found}) == 2 and len(found) == 6
    assert len(read_rank(tmp_path / "train.jsonl", limit=7)) == 18


# --- settings of the libraries: each acts, or is refused by name ------------------------------------------------------------

ONE_ROW = {"eval_packing": False, "per_device_eval_batch_size": 1}
# Fields of SFTConfig's own that act on the seeker's training, with what else they need.
ACT: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 40},
    "packing": {"packing": True, **ONE_ROW},
    "packing_strategy": {"packing": True, "packing_strategy": "wrapped", **ONE_ROW},
    "padding_free": {"padding_free": True, "max_length": None, **ONE_ROW},
    "pad_to_multiple_of": {"pad_to_multiple_of": 100},
    "loss_type": {"loss_type": "dft"},
    "label_smoothing_factor": {"label_smoothing_factor": 0.3},
}
ELSEWHERE = {"eval_packing", "activation_offloading", "max_length"}  # of packing; spares a GPU's memory; acts on both tasks


def other(value: Any) -> Any:
    """A value of a setting that is not its default."""
    return {bool: not value, int: 32, float: 0.3, dict: {"x": 1}}.get(type(value), "other")


@pytest.mark.parametrize("task", ["role", "rank"])
def test_every_setting_of_the_sft_trainer_acts_or_is_refused_by_name(tmp_path: Path, task: str) -> None:
    from transformers import TrainingArguments
    from trl import SFTConfig

    refusals = recipes.IDLE | (recipes.IDLE_FOR_RANKER if task == "rank" else {})
    refused_names = {name for names in refusals.values() for name in names}
    own = {f.name for f in fields(SFTConfig)} - {f.name for f in fields(TrainingArguments)} | refused_names
    for name in sorted(own - ELSEWHERE - (ACT.keys() - refused_names)):
        made = read_recipe(recipe(tmp_path, task))
        group = made.training if hasattr(made.training, name) else made.model
        setattr(group, name, other(group.__dataclass_fields__[name].default))
        with pytest.raises(UserError, match=name):
            recipes._check(made)


def test_every_setting_of_the_adapter_reaches_it_or_is_refused_by_name(tmp_path: Path) -> None:
    from trl import ModelConfig

    before = recipes.lora_config(read_recipe(recipe(tmp_path)).model)
    for name in (f.name for f in fields(ModelConfig) if f.name.startswith(("lora_", "use_"))):
        made = read_recipe(recipe(tmp_path))
        setattr(made.model, name, other(getattr(made.model, name)))
        try:
            recipes._check(made)
            assert recipes.lora_config(made.model) != before, name
        except UserError as error:
            assert name.removeprefix("lora_") in str(error)


def test_a_target_module_that_the_base_lacks_is_refused_by_plan_and_script(tmp_path: Path, tiny: dict[str, Path]) -> None:
    from train import esc_role
    from train.plan import make_plan

    data = write_data(tmp_path, "role", train=4, valid=2)
    for targets in (["q_proj", "v_porj"], "no_such_[ab]"):
        missing = targets if isinstance(targets, str) else "v_porj"
        path = write_recipe(
            tmp_path / "r.yaml", "role", tiny["llama"], data, tmp_path / f"out {missing}", lora_target_modules=targets
        )
        for use in (esc_role.main, make_plan):
            with pytest.raises(UserError) as error:
                use(parse_recipe("role", ["--config", str(path)]))
            assert f"lora_target_modules: {missing}" in str(error.value) and "no module of the base" in str(error.value)


def test_settings_that_act_change_the_first_batch_or_its_loss(tmp_path: Path, tiny: dict[str, Path]) -> None:
    from train import esc_role

    def first(**settings: Any) -> tuple[list[int], float]:
        data = write_data(tmp_path, "role", train=6, valid=2)
        path = write_recipe(
            tmp_path / "r.yaml", "role", tiny["llama"], data, tmp_path / f"out{len([*tmp_path.iterdir()])}", **settings
        )
        trainer = untrained(esc_role.main, parse_recipe("role", ["--config", str(path)]))
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.model.eval()
        return [*batch["input_ids"].shape], float(trainer.compute_loss(trainer.model, batch))

    plain, packed = first(), first(**ACT["packing"])
    assert first() == plain, "a setting is seen by what differs"
    for name, settings in ACT.items():
        assert first(**settings) != (packed if name == "packing_strategy" else plain), name
