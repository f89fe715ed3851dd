"""One A for query, key and value, as InternLM2's fused matrix has it: through training, resuming and both layouts."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from core.errors import UserError
from serve.checkpoints.internlm2 import Heads, convert_adapter, write_fused
from tests.train.conftest import losses, train, weights, write_data, write_recipe

pytestmark = pytest.mark.slow


def test_query_key_and_value_keep_one_matrix_and_go_back_to_the_published_layout(tmp_path: Path, tiny: dict[str, Path]) -> None:
    out, data = tmp_path / "out", write_data(tmp_path, "rank")
    given: dict[str, Any] = {"fused_qkv": True, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "k_proj", "v_proj"]}
    train("rank", write_recipe(tmp_path / "r.yaml", "rank", tiny["llama"], data, out, **given))
    trained = weights(out)
    for layer in (0, 1):
        named = f"base_model.model.model.layers.{layer}.self_attn.{{}}_proj.lora_{{}}.weight"
        a, k, v = (trained[named.format(name, "A")] for name in "qkv")
        assert (a == k).all() and (a == v).all()
        assert all(np.abs(trained[named.format(name, "B")]).max() > 0 for name in "qkv"), "every part has learnt"
    # Resumed in the middle, it is the same, bit for bit: the matrix is still one, and has one state of Adam's.
    again = tmp_path / "again"
    (tmp_path / "again").mkdir()
    for name in ("checkpoint-4", "recipe.json"):
        (out / name).rename(again / name)
    train("rank", write_recipe(tmp_path / "r.yaml", "rank", tiny["llama"], data, again, **given))
    resumed = weights(again)
    assert losses(again) == losses(out) and all((resumed[name] == trained[name]).all() for name in trained)

    # As the published ones: wqkv alone; converted as those are, it is what was trained.
    adapter = (out / "adapter").resolve()
    published = out / f"{adapter.name}-internlm2"
    config = orjson.loads((published / "adapter_config.json").read_bytes())
    assert config["target_modules"] == ["wqkv"] and (config["r"], config["lora_dropout"]) == (8, 0.0)
    convert_adapter(published, tmp_path / "converted", tiny["llama"])
    (tmp_path / "adapter").symlink_to(tmp_path / "converted")
    converted = weights(tmp_path)
    assert converted.keys() == trained.keys() and all((converted[name] == trained[name]).all() for name in trained)


def test_an_adapter_with_three_matrices_has_no_fused_form(tmp_path: Path, tiny: dict[str, Path]) -> None:
    out, data = tmp_path / "out", write_data(tmp_path, "rank", train=4)
    given = {"lora_target_modules": ["q_proj", "k_proj", "v_proj"], "max_steps": 1, "save_strategy": "no"}
    train("rank", write_recipe(tmp_path / "r.yaml", "rank", tiny["llama"], data, out, **given))
    with pytest.raises(UserError, match="have different As; wqkv has only one"):
        write_fused((out / "adapter").resolve(), tmp_path / "fused", Heads(4, 2, 16))
    assert not (tmp_path / "fused").exists()
