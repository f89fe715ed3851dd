"""The ranker's adapter that comes with the package: small, and made from data that this repository builds."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core import specs
from core.files import CONFIGS, sha256_file
from core.settings import load_yaml
from core.specs import BUNDLED_ADAPTERS, load_spec
from data_prep.__main__ import app
from serve.checkpoints.model_card import Training

pytestmark = pytest.mark.slow

ADAPTER = BUNDLED_ADAPTERS / "esc-rank-embedded"
RECIPE = CONFIGS / "train" / "esc_rank_embedded.yaml"


def test_it_is_small_and_holds_nothing_but_tensors_and_text() -> None:
    files = {path.name: path.stat().st_size for path in ADAPTER.iterdir()}
    assert set(files) == {"adapter_config.json", "adapter_model.safetensors", "training.json", "README.md"}
    assert sum(files.values()) < 5_000_000


def test_the_spec_finds_it_and_its_weights_are_part_of_the_fingerprint(tmp_path: Path, monkeypatch: Any) -> None:
    spec = load_spec("embedded-ranker")
    assert spec.adapter is not None and specs.place_of(spec.adapter) == ADAPTER
    before = spec.fingerprint()
    (tmp_path / ADAPTER.name).mkdir()
    weights = bytearray((ADAPTER / "adapter_model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / ADAPTER.name / "adapter_model.safetensors").write_bytes(weights)
    monkeypatch.setattr(specs, "BUNDLED_ADAPTERS", tmp_path)
    assert spec.fingerprint() != before


def test_it_has_the_recipes_form_and_the_data_that_this_repository_builds(tmp_path: Path) -> None:
    """The recipe's layers and loss, though it saw the data more often."""
    data = tmp_path / "data"
    asked = ["--rubric", "esc_eval", "--prompts", "esc_rank", "--method", "per_dimension", "--out", str(data)]
    result = CliRunner().invoke(app, ["rank-sft", "--gold", "synthetic", *asked])
    assert result.exit_code == 0, result.output
    found = Training.model_validate_json((ADAPTER / "training.json").read_bytes())
    assert {each.file.rsplit("/")[-1]: each.sha256 for each in found.data} == {
        name: sha256_file(data / name) for name in ("train.jsonl", "valid.jsonl")
    }
    recipe = load_yaml(RECIPE, "recipe")
    for name in ("model_name_or_path", "lora_r", "lora_alpha", "lora_target_modules", "loss", "loss_over", "max_length"):
        assert found.recipe[name] == recipe[name], name
    assert found.metrics["valid_average_acc"] > found.baselines["majority class"]["valid_average_acc"]
