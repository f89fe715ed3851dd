"""An adapter in the last layer alone: what is kept of a row gives the loss and gradients of the whole model."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from core.files import read_jsonl, write_json, write_jsonl
from core.records import Judgement
from tests.train.conftest import per_dimension, rank_examples, untrained, write_data, write_recipe
from train import rank_test
from train.recipes import read_recipe

pytestmark = pytest.mark.slow

LAST = r".*layers\.1\..*\.(q|o|gate|up|down)_proj"


def trainer(folder: Path, base: Path, form: str, **settings: object) -> Any:
    """A trainer as the script makes it, of five dialogues asked in one way."""
    import torch

    import train.esc_rank as script
    from train.recipes import parse_recipe

    data = write_data(folder, "rank", train=5, valid=2)
    if form != "joint":
        for name, first, count in (("train_file", 0, 5), ("valid_file", 1000, 2)):
            write_jsonl(Path(data[name]), per_dimension(rank_examples(count, first=first), form == "paper"))
    asked = {"lora_dropout": 0.0, "lora_target_modules": LAST, "per_device_train_batch_size": 5, **settings}
    recipe = write_recipe(folder / "r.yaml", "rank", base, data, folder / "out", **asked)
    made = untrained(script.main, parse_recipe("rank", ["--config", str(recipe)]))
    torch.manual_seed(0)
    for name, weight in made.model.named_parameters():  # as after training: B of a fresh LoRA is zero
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return made


def test_it_is_imported_where_a_cpu_trains_and_nowhere_else() -> None:
    """A recipe for GPUs never passes through it."""
    doors = []
    for path in Path(rank_test.__file__).parent.glob("*.py"):
        inside: dict[ast.AST, str] = {}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for child in ast.iter_child_nodes(node):
                inside[child] = ast.unparse(node.test) if isinstance(node, ast.If) else inside.get(node, "")
            if isinstance(node, ast.ImportFrom) and node.module == "train.last_layer":
                doors.append((path.stem, "device.type == 'cpu'" in inside[node]))
    assert sorted(doors) == [("esc_rank", True), ("rank_test", True)]


@pytest.mark.parametrize("form", ["joint", "per_dimension"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_loss_and_gradients_are_those_of_the_whole_model(
    tmp_path: Path, tiny: dict[str, Path], architecture: str, form: str
) -> None:
    import torch

    made = trainer(tmp_path, tiny[architecture], form, loss="ordinal")
    from train.last_layer import LastLayerTrainer
    from train.trainers import RankTrainer

    model = made.model
    assert type(made) is LastLayerTrainer
    (batch,) = made.get_train_dataloader()
    few = made.data_collator([made.train_dataset[n] for n in (3, 1)])  # other neighbours, less padding
    passes = passes_of(model)
    model.train()
    for rows, read in ((batch, 5), (few, 0), (batch, 0)):
        found = []
        for kind in (LastLayerTrainer, RankTrainer):
            made.__class__ = kind
            model.zero_grad()
            passes.clear()
            loss = made.compute_loss(model, dict(rows))
            loss.backward()
            if kind is LastLayerTrainer:
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


def test_attention_dropout_is_for_training_and_leaves_what_is_kept_alone(tmp_path: Path, tiny: dict[str, Path]) -> None:
    import torch

    losses: dict[float, list[float]] = {}
    scores: dict[float, float] = {}
    for rate in (0.0, 0.5):
        folder = tmp_path / str(rate)
        folder.mkdir()
        made = trainer(folder, tiny["qwen2"], "per_dimension", attention_dropout=rate, kept_dir=str(tmp_path / "kept"))
        (batch,) = made.get_train_dataloader()
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            losses.setdefault(rate, []).append(made.compute_loss(made.model.train(), dict(batch)).item())
        scores[rate] = made.evaluate()["eval_loss"]
    assert losses[0.0][0] == losses[0.0][1] == losses[0.0][2]
    assert losses[0.5][0] == losses[0.5][1] != losses[0.5][2]
    assert losses[0.5][0] != losses[0.0][0]
    assert scores[0.0] == scores[0.5]
    assert len(list((tmp_path / "kept").iterdir())) == 7  # five rows and two of validation, read once for both


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
    assert hasattr(made, "_last_layer") == expected
    assert ("places" in made.train_dataset[0]) == expected


@pytest.mark.parametrize("form", ["joint", "per_dimension"])
def test_loss_over_the_scale(tmp_path: Path, tiny: dict[str, Path], form: str) -> None:
    """Against the plain formula: the right score's share among the scale's tokens, and nothing for the end marker."""
    made = trainer(tmp_path, tiny["llama"], form, loss_over="scale")
    made.model.train()
    (batch,) = made.get_train_dataloader()
    logits, labels = made._last_layer.logits(made.model, batch), batch["labels"]
    tokens = made._scores.tolist()
    assert set(labels.flatten().tolist()) <= set(tokens) and labels.numel() == 15
    shares = logits.detach().double()[..., tokens].log_softmax(-1)
    expected = -sum(shares[b, k, tokens.index(label)] for b, row in enumerate(labels.tolist()) for k, label in enumerate(row))
    found = made.compute_loss(made.model, dict(batch)).item()
    assert found == pytest.approx(expected.item() / 15, rel=1e-5)
    assert made.evaluate()["eval_average_n"] == 6  # two dialogues, three dimensions


def passes_of(model: Any) -> list[int]:
    """Rows of every pass through the model from now on, but for those that go on where another ended (a tree's branches)."""
    passes: list[int] = []

    def note(_: Any, given: Any, named: dict[str, Any]) -> None:
        if not named["position_ids"][:, 0].any():
            passes.append(named["input_ids"].shape[0])

    model.register_forward_pre_hook(note, with_kwargs=True)
    return passes


def test_validation_reads_a_row_once_and_finds_what_the_whole_model_finds(tmp_path: Path, tiny: dict[str, Path]) -> None:
    made = trainer(tmp_path, tiny["qwen2"], "per_dimension")
    passes = passes_of(made.model)
    first, again = made.evaluate(), made.evaluate()
    assert passes == [1, 1]
    from train.trainers import RankTrainer

    made.__class__ = RankTrainer
    whole = made.evaluate()
    assert passes == [1, 1, 2]
    for name, value in whole.items():
        if not name.endswith(("runtime", "per_second")):
            assert first[name] == again[name] == (value if value is None else pytest.approx(value, rel=1e-4)), name


def test_a_folder_keeps_rows_for_further_runs_on_the_same_weights(tmp_path: Path, tiny: dict[str, Path]) -> None:
    from safetensors.torch import load_file, save_file

    kept, other = tmp_path / "kept", tmp_path / "other-base"
    shutil.copytree(tiny["llama"], other)
    weights = load_file(other / "model.safetensors")
    weights["model.embed_tokens.weight"][0, 0] += 1
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    found = []
    for name, base, loss, read in (
        ("a", tiny["llama"], "cross_entropy", 5),
        ("b", tiny["llama"], "cross_entropy", 0),
        ("c", tiny["llama"], "ordinal", 0),
        ("d", other, "cross_entropy", 5),
    ):
        folder = tmp_path / name
        folder.mkdir()
        made = trainer(folder, base, "per_dimension", kept_dir=str(kept), loss=loss)
        passes = passes_of(made.model)
        (batch,) = made.get_train_dataloader()
        found.append(made.compute_loss(made.model.train(), batch).item())
        assert passes == [1] * read, name
        assert made._last_layer.spared > 0 or read
    assert found[0] == found[1] < found[2]
    assert len(list(kept.glob("*.safetensors"))) == 10 == len(list(kept.iterdir()))


@pytest.mark.parametrize(
    ("form", "rows"),
    [("joint", 0), ("per_dimension", 2), ("paper", 6)],  # two dialogues, three dimensions; several digits are generated
)
def test_scoring_a_test_split_reads_it_once_for_all_adapters(
    tmp_path: Path, tiny: dict[str, Path], form: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gives the scores that decoding with the whole model gives; the time of reading counts for each of them."""
    import train.last_layer as module

    made = trainer(tmp_path, tiny["llama"], form)
    write_json(tmp_path / "manifest.json", {"settings": {"method": form}})
    made.save_model(str(tmp_path / "one"))
    made.model.base_model.model.model.layers[-1].mlp.up_proj.lora_B["default"].weight.data.neg_()
    made.save_model(str(tmp_path / "two"))
    reads: list[int] = []
    read = module.LastLayer._read

    def counted(*given: Any) -> Any:
        reads.append(1)
        return read(*given)

    monkeypatch.setattr(module.LastLayer, "_read", counted)
    found = {}
    for name in ("kept", "whole"):
        if name == "whole":
            monkeypatch.setattr(module, "applies", lambda *_: False)
        out = tmp_path / name
        adapters = {which: tmp_path / which for which in ("one", "two")}
        rank_test.run(read_recipe(tmp_path / "r.yaml"), tmp_path / "valid.jsonl", adapters, True, out)
        found[name] = [
            record
            for file in ("untrained", "one", "two")
            for record in read_jsonl(out / f"judgements-{file}.jsonl", Judgement, "judgements")
        ]
        timing = orjson.loads((out / "timing.json").read_bytes())
        assert set(timing) == {"untrained", "one", "two"}
    assert len(reads) == rows
    assert len({str(record.distribution) for record in found["kept"]}) == 18
    for a, b in zip(found["kept"], found["whole"], strict=True):
        assert a.distribution is not None and a.distribution == pytest.approx(b.distribution, rel=1e-3, abs=1e-6)
        assert a.model_dump(exclude={"distribution", "expected"}) == b.model_dump(exclude={"distribution", "expected"})


@pytest.mark.parametrize("form", ["joint", "per_dimension"])
def test_the_loss_that_is_logged_is_the_mean_over_all_answers(tmp_path: Path, tiny: dict[str, Path], form: str) -> None:
    """transformers counts labels for losses that shift them, a column fewer than trees have."""
    made = trainer(tmp_path, tiny["llama"], form, max_steps=1)
    (batch,) = made.get_train_dataloader()
    expected = made.compute_loss(made.model.train(), dict(batch)).item()
    made.train()
    assert made.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-5)
