"""An adapter in the last layer alone: what is kept of a row gives the loss and gradients of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serve.files import write_jsonl
from tests.train.conftest import per_dimension, rank_examples, write_data, write_recipe

pytestmark = pytest.mark.slow

LAST = r".*layers\.1\..*\.(q|o|gate|up|down)_proj"


def trainer(folder: Path, base: Path, form: str, **settings: object) -> Any:
    """A trainer as the script makes it, of five dialogues asked in one way."""
    import torch

    import train.esc_rank as script
    from train.recipes import parse_recipe

    data = write_data(folder, "rank", train=5, valid=2)
    if form == "per_dimension":
        for name, first, count in (("train_file", 0, 5), ("valid_file", 1000, 2)):
            write_jsonl(Path(data[name]), per_dimension(rank_examples(count, first=first)))
    asked = {"lora_dropout": 0.0, "lora_target_modules": LAST, "per_device_train_batch_size": 5, **settings}
    recipe = write_recipe(folder / "r.yaml", "rank", base, data, folder / "out", **asked)
    made = script.build(parse_recipe("rank", ["--config", str(recipe)]))
    assert made is not None
    torch.manual_seed(0)
    for name, weight in made.trainer.model.named_parameters():  # as after training: B of a fresh LoRA is zero
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return made.trainer


@pytest.mark.parametrize("form", ["joint", "per_dimension"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_loss_and_gradients_are_those_of_the_whole_model(
    tmp_path: Path, tiny: dict[str, Path], architecture: str, form: str
) -> None:
    import torch

    made = trainer(tmp_path, tiny[architecture], form, loss="ordinal")
    way, model = made._last_layer, made.model
    assert way is not None
    (batch,) = made.get_train_dataloader()
    few = made.data_collator([made.train_dataset[n] for n in (3, 1)])  # other neighbours, less padding
    passes: list[int] = []
    model.register_forward_pre_hook(lambda *call: passes.append(call[2]["input_ids"].shape[0]), with_kwargs=True)
    model.train()
    for rows, read in ((batch, 5), (few, 0), (batch, 0)):
        found = []
        for each in (way, None):
            made._last_layer = each
            model.zero_grad()
            passes.clear()
            loss = made.compute_loss(model, dict(rows))
            loss.backward()
            if each is not None:
                assert passes == [1] * read  # every row once, alone
            found.append((loss.item(), {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}))
        (loss_a, grad_a), (loss_b, grad_b) = found
        assert loss_a == pytest.approx(loss_b, rel=1e-5)
        assert grad_a.keys() == grad_b.keys() and len(grad_a) == 10  # A and B of five matrices
        for name, gradient in grad_a.items():
            assert gradient.abs().max() > 0
            torch.testing.assert_close(gradient, grad_b[name], rtol=1e-4, atol=1e-6)


def test_reading_a_row_draws_no_random_number(tmp_path: Path, tiny: dict[str, Path]) -> None:
    """Otherwise a resumed run, which reads its rows later, would drop out other values than one that was never killed."""
    import torch

    made = trainer(tmp_path, tiny["llama"], "per_dimension", lora_dropout=0.5)
    made.model.train()
    (batch,) = made.get_train_dataloader()
    losses = []
    for _ in range(2):  # reading all rows, and none
        torch.manual_seed(7)
        losses.append(made.compute_loss(made.model, dict(batch)).item())
    assert made.model.training and losses[0] == losses[1]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"lora_target_modules": r".*layers\.1\..*\.(q|k|o)_proj"}, False),  # the keys would change
        ({"lora_target_modules": r".*layers\.[01]\..*\.o_proj"}, False),  # not the last layer alone
        ({"lora_target_modules": "all-linear"}, False),
        ({"attn_implementation": "eager"}, False),
    ],
)
def test_when_it_applies(tmp_path: Path, tiny: dict[str, Path], changed: dict[str, object], expected: bool) -> None:
    made = trainer(tmp_path, tiny["qwen2"], "joint", **changed)
    assert (made._last_layer is not None) == expected
    assert ("places" in made.train_dataset[0]) == expected


@pytest.mark.parametrize("form", ["joint", "per_dimension"])
def test_loss_over_the_scale(tmp_path: Path, tiny: dict[str, Path], form: str) -> None:
    """Against the plain formula: the right score's share among the scale's tokens, and nothing for the end marker."""
    made = trainer(tmp_path, tiny["llama"], form, loss_over="scale")
    made.model.train()
    (batch,) = made.get_train_dataloader()
    logits, labels, _ = made._answers(made.model, batch)
    tokens = made._scores.tolist()
    assert set(labels.flatten().tolist()) <= set(tokens) and labels.numel() == 15
    shares = logits.detach().double()[..., tokens].log_softmax(-1)
    expected = -sum(shares[b, k, tokens.index(label)] for b, row in enumerate(labels.tolist()) for k, label in enumerate(row))
    found = made.compute_loss(made.model, dict(batch)).item()
    assert found == pytest.approx(expected.item() / 15, rel=1e-5)
    assert made.evaluate()["eval_average_n"] == 6  # two dialogues, three dimensions
