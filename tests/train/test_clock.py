"""What a training says of its speed: tokens and operations, against sums over its examples."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.train.conftest import train, untrained, write_data, write_recipe
from train import esc_rank, esc_role
from train.recipes import parse_recipe
from train.sizes import flops_per_token

pytestmark = pytest.mark.slow
MAINS: dict[Any, Any] = {"role": esc_role.main, "rank": esc_rank.main}


@pytest.mark.parametrize("task, packing", [("role", False), ("role", True), ("rank", False)])
def test_a_pass_is_counted_example_by_example(tmp_path: Path, tiny: dict[str, Path], task: Any, packing: bool) -> None:
    """Padding is not counted, and a packed row's tokens attend to their own dialogue."""
    data = write_data(tmp_path, task, train=6, valid=5)
    given: dict[str, Any] = {"per_device_train_batch_size": 6, "lora_dropout": 0.0} | ({"packing": True} if packing else {})
    path = write_recipe(tmp_path / "r.yaml", task, tiny["llama"], data, tmp_path / "out", **given)
    trainer = untrained(MAINS[task], parse_recipe(task, ["--config", str(path)]))
    clock = trainer._clock
    rows = trainer.train_dataset
    lengths = [n for row in rows["seq_lengths"] for n in row] if packing else [len(row) for row in rows["input_ids"]]
    assert len(lengths) == 6 and len(rows) == (2 if packing else 6)
    clock.on_train_begin()
    for batch in trainer.get_train_dataloader():
        clock.reads(batch)
    clock.on_step_end()
    seconds, found = clock._steps[0][0], clock.since_log()
    assert found["tokens_per_second_per_device"] * seconds == pytest.approx(sum(lengths))
    # A token attends to itself, too, which half of the length does not say.
    operations = sum(n * flops_per_token(clock._shape, n + 1, False) for n in lengths)
    assert found["tflops_per_device"] * seconds * 1e12 == pytest.approx(operations) and clock.since_log() == {}


def test_a_training_logs_and_keeps_its_speed(tmp_path: Path, tiny: dict[str, Path]) -> None:
    """On a CPU no peak is known, so no share of it."""
    out, data = tmp_path / "out", write_data(tmp_path, "role", train=6, valid=5)
    given = {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    train("role", write_recipe(tmp_path / "r.yaml", "role", tiny["llama"], data, out, **given))
    timing = orjson.loads((out / "timing.json").read_bytes())
    history = orjson.loads((out / "checkpoint-4" / "trainer_state.json").read_bytes())["log_history"]
    logged = [row for row in history if "loss" in row]
    assert len(timing["step_seconds"]) == 4 and len(logged) == 2 and "mfu" not in timing
    for figures in (timing, *logged):
        assert figures["tokens_per_second_per_device"] > 0 and 0 < figures["tflops_per_device"] < 10
