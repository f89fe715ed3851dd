"""Settings of TRL, transformers and PEFT: every one of them acts in a training, or is refused by its name."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from core.errors import UserError
from tests.train.conftest import made_recipe, untrained, write_data
from tests.train.test_recipes import recipe, refused
from train import esc_rank, esc_role, recipes
from train.recipes import read_recipe

pytestmark = pytest.mark.slow  # TRL's parser loads torch

# Fields of SFTConfig's own that act on the seeker's training, with what else they need.
ACT: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 40},
    "packing": {"packing": True},
    "packing_strategy": {"packing": True, "packing_strategy": "wrapped"},
    "padding_free": {"padding_free": True, "max_length": None},
    "pad_to_multiple_of": {"pad_to_multiple_of": 100},
    "loss_type": {"loss_type": "dft"},
    "label_smoothing_factor": {"label_smoothing_factor": 0.3},
}
# Fields that a short training on one process has no use for, by what reads them in another.
READ_BY: dict[str, tuple[str, ...]] = {
    "transformers.TrainingArguments": (
        *("ddp_backend", "ddp_timeout", "deepspeed", "fp16", "fsdp_config", "tf32", "torch_compile"),
    ),
    "transformers.Trainer": ("ignore_data_skip", "restore_callback_states_from_checkpoint"),
    "transformers.trainer_optimizer": ("optim_target_modules",),
    "trl.SFTTrainer": ("liger_kernel_config", "packing_strategy"),
    "transformers.integrations.WandbCallback": ("run_name",),
    "transformers.integrations.integration_utils.TrackioCallback": (
        *("hub_private_repo", "project", "trackio_bucket_id", "trackio_space_id"),
    ),
}
ELSEWHERE = {name for names in READ_BY.values() for name in names}
APART = {"trust_remote_code", "do_eval", "hub_token", "local_rank", "use_liger_kernel"}  # refused for reasons of their own
MAINS: dict[str, Callable[[Any], None]] = {"role": esc_role.main, "rank": esc_rank.main}
# These write all fields down, whatever they are for.
COPIES = {"to_dict", "to_json_string", "to_sanitized_dict", "settings", "_check", "__repr__", "__str__", "__eq__", "<genexpr>"}


def other(value: Any) -> Any:
    """A value of a setting that is not its default."""
    return {bool: not value, int: 32, float: 0.3, dict: {"x": 1}}.get(type(value), "other")


def refusals(task: str) -> set[str]:
    found = recipes.IDLE | (recipes.IDLE_FOR_RANKER if task == "rank" else {})
    return {name for names in found.values() for name in names}


def read_in(task: Any, folder: Path, base: Path) -> set[str]:
    """The fields that anybody reads of the settings of a training of one step with its evaluation and checkpoint."""
    settings = {"max_steps": 1, "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    settings |= {"metric_for_best_model": "eval_perplexity" if task == "role" else "eval_average_acc"}
    data = write_data(folder, task, train=4, valid=2)
    made = made_recipe(folder, task, base, data, **settings)
    known, seen = {f.name for f in fields(made.training)}, set[str]()

    def watched(of: Any, name: str) -> Any:
        if name in known and sys._getframe(1).f_code.co_name not in COPIES:
            seen.add(name)
        return object.__getattribute__(of, name)

    with patch.object(type(made.training), "__getattribute__", watched, create=True):
        MAINS[task](made)
    return seen


@pytest.mark.parametrize("task", MAINS)
def test_every_setting_of_the_trainer_is_read_or_refused_by_name(tmp_path: Path, tiny: dict[str, Path], task: str) -> None:
    """Those of SFTConfig and all that it inherits: a version of the libraries that brings another has to be looked at."""
    from trl import SFTConfig

    seen, refused_names = read_in(task, tmp_path, tiny["qwen2"]), refusals(task)
    every = {f.name for f in fields(SFTConfig)}
    assert sorted(every - seen - ELSEWHERE - refused_names - APART) == []
    assert sorted(ELSEWHERE & refused_names) == sorted({"packing_strategy"} & refused_names), "read or refused, not both"
    for name in sorted(refused_names):
        made = read_recipe(recipe(tmp_path, task))
        group = made.training if hasattr(made.training, name) else made.model
        setattr(group, name, other(group.__dataclass_fields__[name].default))
        with pytest.raises(UserError, match=f"{name}: .* would do nothing"):
            recipes._check(made)


@pytest.mark.parametrize("place", READ_BY)
def test_what_a_short_training_has_no_use_for_is_read_by_the_part_that_has(place: str) -> None:
    module, _, name = place.rpartition(".")
    source = inspect.getsource(getattr(importlib.import_module(module), name))
    for setting in READ_BY[place]:
        assert re.search(rf"(?:self|args|training)\.{setting}\b(?!\s*=[^=])", source), f"{place} does not read {setting}"


@pytest.mark.parametrize("name", sorted(APART))
def test_settings_that_are_refused_for_reasons_of_their_own(tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {name: {"hub_token": "hf_secret", "local_rank": 0}.get(name, True)}
    message = refused(recipe(tmp_path, **given))
    assert f"{name}: " in message and "hf_secret" not in message


def test_evaluation_is_packed_only_with_training(tmp_path: Path) -> None:
    assert "eval_packing: without packing" in refused(recipe(tmp_path, eval_packing=True))
    read_recipe(recipe(tmp_path, packing=True, eval_packing=True))


def test_kernels_reach_the_base_and_nothing_else_does(tmp_path: Path, tiny: dict[str, Path], monkeypatch: Any) -> None:
    """transformers' own loading asks for the package of the kernels; without it, plan and script say so before."""
    from train import models
    from train.plan import make_plan
    from train.run import check_machine

    assert "only use_kernels: true is allowed" in refused(recipe(tmp_path, model_init_kwargs={"use_cache": False}))
    data = write_data(tmp_path, "role", train=4, valid=2)
    made = made_recipe(tmp_path, "role", tiny["llama"], data, model_init_kwargs={"use_kernels": True})
    assert any(note.startswith("model_init_kwargs: use_kernels: comes from the hub") for note in make_plan(made)["notes"])
    with pytest.raises(UserError, match="model_init_kwargs: use_kernels needs the package kernels"):
        check_machine(made)
    asked: list[Any] = []
    monkeypatch.setattr("transformers.PreTrainedModel.set_use_kernels", lambda model, use, *_, **__: asked.append(use))
    models.load_base(made)
    assert asked == [True]


def test_every_setting_of_peft_is_a_recipes_or_unknown_to_it(tmp_path: Path) -> None:
    """Of those that are a recipe's the next test says what they do."""
    from peft import LoraConfig

    known = recipes._known("role")
    for name in {spelling for f in fields(LoraConfig) for spelling in (f.name, f"lora_{f.name}")} - known:
        given: dict[str, Any] = {name: 1}
        assert f"{name}: unknown setting" in refused(recipe(tmp_path, **given))


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
    from train.plan import make_plan

    data = write_data(tmp_path, "role", train=4, valid=2)
    for targets in (["q_proj", "v_porj"], "no_such_[ab]"):
        missing = targets if isinstance(targets, str) else "v_porj"
        made = made_recipe(tmp_path, "role", tiny["llama"], data, f"out {missing}", lora_target_modules=targets)
        for use in (esc_role.main, make_plan):
            with pytest.raises(UserError) as error:
                use(made)
            assert f"lora_target_modules: {missing}" in str(error.value) and "no module of the base" in str(error.value)


def test_settings_that_act_change_the_first_batch_or_its_loss(tmp_path: Path, tiny: dict[str, Path]) -> None:
    def first(**settings: Any) -> tuple[list[int], float]:
        data = write_data(tmp_path, "role", train=6, valid=2)
        trainer = untrained(made_recipe(tmp_path, "role", tiny["llama"], data, f"out{len([*tmp_path.iterdir()])}", **settings))
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.model.eval()
        return [*batch["input_ids"].shape], float(trainer.compute_loss(trainer.model, batch))

    plain, packed = first(), first(**ACT["packing"])
    assert first() == plain, "a setting is seen by what differs"
    for name, settings in ACT.items():
        assert first(**settings) != (packed if name == "packing_strategy" else plain), name
