"""A training whose numbers are no longer finite ends there with one clear error, and nothing takes its weights for a model."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pytest
from transformers.trainer_utils import PredictionOutput

from core.errors import UserError
from core.files import write_json
from serve.checkpoints.lora import WEIGHTS
from serve.checkpoints.merge import merge_adapter
from serve.checkpoints.places import base_folder
from tests.train.conftest import train, write_data, write_recipe
from tests.train.test_bad_input import checkpoint
from train.compare import judge_split
from train.models import load_adapted, load_base
from train.recipes import parse_recipe
from train.run import checkpoint_problem

pytestmark = pytest.mark.slow

WILD = {"optim": "sgd", "learning_rate": 3e38, "max_grad_norm": 0, "lora_dropout": 0.0}


def with_nan(source: Path, target: Path, name: str = "model.safetensors") -> Path:
    """A copy of a model folder with one NaN in one tensor, in the middle of the file."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    tensors = load_file(target / name)
    chosen = sorted(tensors)[len(tensors) // 2]
    tensors[chosen].view(-1)[-1] = math.nan
    save_file(tensors, target / name, {"format": "pt"})
    return target


@pytest.mark.parametrize(
    ("task", "settings", "step", "kept"),
    [
        ("rank", {}, "step 2: the loss is nan", []),
        ("role", {"save_steps": 1, "learning_rate": 1e30, "logging_nan_inf_filter": False}, "step 2", ["checkpoint-1"]),
        ("rank", {"max_steps": 1}, "step 1: ", ["checkpoint-1"]),  # found when it is evaluated or saved
    ],
)
def test_a_training_that_diverges_stops_there_and_leaves_no_adapter_and_no_figure(
    tmp_path: Path, tiny: dict[str, Path], task: str, settings: dict[str, Any], step: str, kept: list[str]
) -> None:
    data = write_data(tmp_path, task, train=8, valid=2)
    out = tmp_path / "out"
    recipe = write_recipe(tmp_path / "r.yaml", task, tiny["llama"], data, out, **WILD | {"max_steps": 2} | settings)
    with pytest.raises(UserError, match=f"training diverged at {step}"):
        train(task, recipe)
    assert not (out / "metrics.json").exists() and not list(out.glob("adapter*"))
    assert [place.name for place in out.glob("checkpoint-*")] == kept


def test_weights_that_are_not_finite_are_refused_by_whatever_would_use_them(tmp_path: Path, tiny: dict[str, Path]) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    data = write_data(tmp_path, "rank", train=2, valid=2)
    base, adapter = with_nan(tiny["llama"], tmp_path / "base"), tmp_path / "whole"
    model = AutoModelForCausalLM.from_pretrained(tiny["llama"])
    get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"])).save_pretrained(str(adapter))
    broken = with_nan(adapter, tmp_path / "broken", WEIGHTS)
    recipe = parse_recipe("rank", ["--config", str(write_recipe(tmp_path / "r.yaml", "rank", base, data, tmp_path / "out"))])
    uses: dict[str, Callable[[], object]] = {
        "train, test": lambda: load_base(recipe),
        "test": lambda: load_adapted(recipe, {"broken": broken}),
        "merge, base": lambda: merge_adapter(base, adapter, tmp_path / "merged"),
        "merge, adapter": lambda: merge_adapter(tiny["llama"], broken, tmp_path / "merged"),
        "serve up": lambda: base_folder(str(base), None, "model m: checkpoint"),
    }
    for name, use in uses.items():
        with pytest.raises(UserError, match="contains infinite or undefined numbers"):
            use()
            pytest.fail(name)
    assert not (tmp_path / "merged").exists()
    merge_adapter(tiny["llama"], adapter, tmp_path / "merged")


def test_no_score_is_made_of_what_is_no_number(tmp_path: Path, tiny: dict[str, Path]) -> None:
    """The base is whole, but overflows on the way."""
    data = write_data(tmp_path, "rank", train=2, valid=2)
    write_json(tmp_path / "manifest.json", {"settings": {"method": "joint"}})
    recipe = parse_recipe(
        "rank", ["--config", str(write_recipe(tmp_path / "r.yaml", "rank", tiny["llama"], data, tmp_path / "out"))]
    )
    wild = PredictionOutput(np.full((2, 3, 5), np.nan), np.arange(2.0)[:, None, None] * np.ones((2, 3, 2)), {})
    with (
        patch("train.trainers.RankTrainer.predict", lambda *_: wild),
        pytest.raises(UserError, match="untrained: its numbers are infinite or undefined"),
    ):
        judge_split(recipe, tmp_path / "valid.jsonl", {}, True, tmp_path / "tested")
    assert not list((tmp_path / "tested").glob("judgements*"))


def test_a_checkpoint_is_judged_by_what_it_holds(tmp_path: Path) -> None:
    """transformers writes NaN into trainer_state.json, as a gradient's norm; weights that are NaN are passed over."""
    place = checkpoint(tmp_path / "checkpoint-4")
    (place / "trainer_state.json").write_text('{"log_history": [{"grad_norm": NaN, "loss": Infinity}]}')
    assert checkpoint_problem(place) is None
    (place / "trainer_state.json").write_bytes(orjson.dumps({}))
    broken = with_nan(place, tmp_path / "checkpoint-6", WEIGHTS)
    problem = str(checkpoint_problem(broken))
    assert "contains infinite or undefined numbers" in problem and "cut off" not in problem
