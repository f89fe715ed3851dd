"""The simulator's trainer: what it counts, against plain sums over whole logits."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from serve.checkpoints.places import materialise
from tests.train.conftest import made_recipe, untrained, write_data

pytestmark = pytest.mark.slow


@pytest.fixture
def trainer(tmp_path: Path, tiny: dict[str, Path]) -> Any:
    data = write_data(tmp_path, "role", train=6, valid=5)
    return untrained(made_recipe(tmp_path, "role", tiny["qwen2"], data))


def plain(model: Any, batch: dict[str, Any]) -> tuple[list[float], list[int]]:
    """Summed negative log-likelihood and number of the labelled tokens of each row."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double().log_softmax(-1)
    sums, counts = [], []
    for row, labels in enumerate(batch["labels"].tolist()):
        scored = [(place, label) for place, label in enumerate(labels) if label != -100]
        sums.append(-sum(logits[row, place - 1, label].item() for place, label in scored))
        counts.append(len(scored))
    return sums, counts


def test_loss_and_perplexity_count_seeker_tokens_only(trainer: Any) -> None:
    trainer.model.eval()
    batch = next(iter(trainer.get_eval_dataloader()))
    sums, counts = plain(trainer.model, batch)
    _, found, _ = trainer.prediction_step(trainer.model, dict(batch), False)
    assert found[:, 0].tolist() == pytest.approx(sums, rel=1e-5) and found[:, 1].tolist() == counts
    # The training loss is the same mean, whether TRL scores all positions or, as here, the labelled ones.
    loss = trainer.compute_loss(trainer.model, dict(batch)).item()
    assert loss == pytest.approx(sum(sums) / sum(counts), rel=1e-5)


def test_evaluation_does_not_depend_on_batches(trainer: Any) -> None:
    found = trainer.evaluate()
    sums, counts = [], []
    for batch in trainer.get_eval_dataloader():
        a, b = plain(trainer.model.eval(), batch)
        sums += a
        counts += b
    assert len(counts) == 5 and found["eval_scored_tokens"] == sum(counts)
    assert found["eval_perplexity"] == pytest.approx(math.exp(sum(sums) / sum(counts)), rel=1e-4)


@pytest.mark.parametrize("base", ["tiny", pytest.param("embedded", marks=pytest.mark.full)])
def test_packed_rows_have_the_loss_gradient_and_perplexity_of_separate_ones(
    tmp_path: Path, tiny: dict[str, Path], base: str
) -> None:
    """In fp32: dialogues of a row do not see each other."""
    import torch

    data = write_data(tmp_path, "role", train=4, valid=3)
    found = {}
    for packing in (False, True):
        settings = {"packing": packing, "max_length": 256, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "v_proj"]}
        settings |= {"per_device_train_batch_size": 4}
        folder = materialise() if base == "embedded" else tiny["llama"]
        trainer = untrained(made_recipe(tmp_path, "role", folder, data, f"out-{packing}", **settings))
        batches = list(trainer.get_train_dataloader())
        assert len(trainer.train_dataset) == (2 if packing else 4) and len(batches) == 1
        assert batches[0]["input_ids"].shape[0] == (1 if packing else 4)
        torch.manual_seed(0)
        for name, weight in trainer.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.02)
        trainer.model.train()
        loss = trainer.compute_loss(trainer.model, dict(batches[0]))
        loss.backward()
        gradient = {name: weight.grad for name, weight in trainer.model.named_parameters() if weight.requires_grad}
        figures = trainer.evaluate()
        found[packing] = (loss.item(), gradient, figures["eval_perplexity"], figures["eval_scored_tokens"])
        assert trainer.args.per_device_eval_batch_size == (1 if packing else 3)
    (loss, gradient, perplexity, tokens), packed = found[False], found[True]
    assert packed[0] == pytest.approx(loss, abs=1e-5) and packed[2] == pytest.approx(perplexity, rel=1e-4)
    assert packed[3] == tokens
    norm = sum(g.square().sum() for g in gradient.values()) ** 0.5
    assert sum((packed[1][name] - g).square().sum() for name, g in gradient.items()) ** 0.5 < 1e-4 * norm


@pytest.mark.parametrize("task", ["role", "rank"])
def test_inputs_are_not_cast_to_the_adapters_precision_under_autocast(
    tmp_path: Path, tiny: dict[str, Path], task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16: the same loss and the same gradients, bit for bit, as with PEFT's casts, and none of them."""
    import torch
    from peft.tuners.lora.layer import LoraLayer

    data = write_data(tmp_path, task, train=6, valid=5)
    settings = {"bf16": True, "dtype": "bfloat16", "lora_dropout": 0.0}
    trainer = untrained(made_recipe(tmp_path, task, tiny["llama"], data, **settings))
    read: list[torch.dtype] = []
    cast = LoraLayer._cast_input_dtype

    def watched(self: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        result = cast(self, x, dtype)
        read.append(result.dtype)
        return result

    monkeypatch.setattr(LoraLayer, "_cast_input_dtype", watched)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.accelerator.prepare_model(trainer.model)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert {weight.dtype for weight in trained} == {torch.float32}
    torch.nn.init.normal_(trained[1], std=0.1)  # a B, which begins at zero and would hide its A
    found = []
    for casting in (False, True):
        if casting:  # what PEFT does by itself
            monkeypatch.setattr("train.trainers.disable_input_dtype_casting", _nothing)
        read.clear()
        model.zero_grad()
        loss = trainer.training_step(model, {name: tensor.clone() for name, tensor in batch.items()})
        assert set(read) == {torch.float32 if casting else torch.bfloat16}
        found.append((loss.item(), [weight.grad.clone() for weight in trained]))
    assert found[0][0] == found[1][0]
    assert all((one == other).all() for one, other in zip(found[0][1], found[1][1], strict=True))


@contextmanager
def _nothing(model: Any, active: bool = True) -> Iterator[None]:
    yield
