"""The ranker's adapter that comes with the package: small, made from data that this repository builds, and trained again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from core import specs
from core.files import CONFIGS, sha256_file
from core.specs import BUNDLED_ADAPTERS, load_spec
from core.yaml_files import load_yaml
from data_prep.__main__ import app
from serve.checkpoints.model_card import Training
from tests.train.conftest import untrained

pytestmark = pytest.mark.slow

ADAPTER = BUNDLED_ADAPTERS / "esc-rank-embedded"
RECIPE = CONFIGS / "train" / "esc_rank_embedded.yaml"
FIRST_STEPS = Path(__file__).parent / "bundled_adapter.json"  # what the training itself logged first


def training() -> Training:
    return Training.model_validate_json((ADAPTER / "training.json").read_bytes())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic set's training data, by the command of the Makefile."""
    folder = tmp_path_factory.mktemp("rank")
    asked = ["--rubric", "esc_eval", "--prompts", "esc_rank", "--method", "per_dimension", "--out", str(folder / "data")]
    result = CliRunner().invoke(app, ["rank-sft", "--gold", "synthetic", *asked])
    assert result.exit_code == 0, result.output
    return folder / "data"


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


def test_it_was_trained_by_the_recipe_on_the_data_that_this_repository_builds(data: Path) -> None:
    found = training()
    assert {each.file.rsplit("/")[-1]: each.sha256 for each in found.data} == {
        name: sha256_file(data / name) for name in ("train.jsonl", "valid.jsonl")
    }
    for name, value in load_yaml(RECIPE, "recipe").items():
        if name not in ("output_dir", "kept_dir", "train_file", "valid_file", "report_to", "seed"):
            assert str(found.recipe[name]) == str(value), name
    assert found.metrics["valid_average_acc"] > found.baselines["majority class"]["valid_average_acc"]


@pytest.mark.full
def test_its_first_steps_train_again(data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from transformers import TrainerCallback

    from train.esc_rank import main
    from train.recipes import parse_recipe

    recorded = orjson.loads(FIRST_STEPS.read_bytes())

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step >= recorded["step"]

    monkeypatch.chdir(tmp_path)
    files = ["--train_file", str(data / "train.jsonl"), "--valid_file", str(data / "valid.jsonl"), "--output_dir", "out"]
    trainer = untrained(main, parse_recipe("rank", ["--config", str(RECIPE), "--seed", str(training().seed), *files]))
    trainer.add_callback(Stop())
    trainer.train()
    found = trainer.state.log_history[0]
    assert found["step"] == recorded["step"]
    assert found["loss"] == pytest.approx(recorded["loss"], rel=1e-3)
    assert found["grad_norm"] == pytest.approx(recorded["grad_norm"], rel=0.01)
