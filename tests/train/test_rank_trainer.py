"""The ranker's losses and figures by hand, its short logits against the whole ones, and one A for query, key and value."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from core.errors import UserError
from core.files import write_jsonl
from core.records import HumanScore, Judgement
from evalsuite.statistics.agreement import agreement
from serve.checkpoints.internlm2 import Heads, convert_adapter, write_fused
from tests.train.conftest import (
    losses,
    made_recipe,
    per_dimension,
    rank_examples,
    train,
    untrained,
    weights,
    write_data,
    write_recipe,
)

pytestmark = pytest.mark.slow

SCALE = [0, 1, 2, 3, 4]


def test_squared_emd_by_hand() -> None:
    import torch

    from train.trainers import squared_emd

    # Probabilities ½, ¼, ¼ over three scores: cumulative ½, ¾, 1. Right score 0 (1, 1, 1): ¼ + 1/16; right score 2 (0, 0, 1):
    # ¼ + 9/16.
    logits = torch.tensor([[2.0, 1.0, 1.0]]).log().repeat(2, 1)
    assert squared_emd(logits, torch.tensor([0, 2])).tolist() == pytest.approx([0.3125, 0.8125])
    # Certain and right is 0; certain and wrong costs one for every step between.
    sure = torch.full((3, 5), -1e9)
    sure[:, 1] = 0.0
    assert squared_emd(sure, torch.tensor([1, 2, 4])).tolist() == pytest.approx([0.0, 1.0, 3.0])


def test_balanced_weights_have_mean_one() -> None:
    from train.trainers import balanced_weights

    examples: Any = rank_examples(5) + rank_examples(1, first=5)  # fluency 0, 1, 2, 3, 4, 0
    weights = balanced_weights(examples)
    assert weights[("en", "fluency"), 0] == pytest.approx(6 / (5 * 2)) and weights[("en", "fluency"), 3] == pytest.approx(6 / 5)
    given = [weights[("en", "fluency"), e.labels["fluency"]] for e in examples]
    assert sum(given) / len(given) == pytest.approx(1.0)


def test_left_padding_ends_answers_together() -> None:
    from train.steps import RankPadding

    rows = [
        {"input_ids": [5, 6, 7], "labels": [-100, -100, 7], "keys": [0], "targets": [2.5], "weights": [1.0]},
        {"input_ids": [8, 9], "labels": [-100, 9], "keys": [1, 2], "targets": [1.0, 0.0], "weights": [0.5, 2.0]},
    ]
    batch = RankPadding(0)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [0, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2], [0, 0, 1]]
    assert batch["labels"].tolist() == [[-100, -100, 7], [-100, -100, 9]]
    assert batch["keys"].tolist() == [[0, -1], [1, 2]] and batch["targets"].tolist() == [[2.5, 0.0], [1.0, 0.0]]


def trainer(tmp_path: Path, tiny: dict[str, Path], loss: str, data: dict[str, str] | None = None, **settings: object) -> Any:
    """A trainer as the script makes it, on six examples where no `data` are given."""
    data = data or write_data(tmp_path, "rank", train=6, valid=6)
    return untrained(made_recipe(tmp_path, "rank", tiny["llama"], data, loss=loss, lora_dropout=0.0, **settings))


@pytest.mark.parametrize(
    ("loss", "weighted", "over"),
    [("cross_entropy", "none", "vocabulary"), ("ordinal", "balanced", "vocabulary"), ("ordinal", "none", "scale")],
)
def test_loss_is_that_of_whole_logits(tmp_path: Path, tiny: dict[str, Path], loss: str, weighted: str, over: str) -> None:
    """Only the answers' logits are computed; the loss is what all logits and plain formulas give, and so is the one logged."""
    import torch

    settings: dict[str, Any] = {"max_steps": 1, "save_strategy": "no", "per_device_train_batch_size": 4}
    made = trainer(tmp_path, tiny, loss, class_weights=weighted, ordinal_weight=0.5, loss_over=over, **settings)
    batch = next(iter(made.get_train_dataloader()))
    with torch.no_grad():
        found = made.compute_loss(made.model, dict(batch)).item()
        logits = made.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double()
    tokens = made._scores.tolist()
    total, count = 0.0, 0
    for row in range(len(batch["labels"])):
        nth = 0
        for place, label in enumerate(batch["labels"][row].tolist()):
            if label == -100:
                continue
            count += 1
            before = logits[row, place - 1]
            weight = 1.0
            if label in tokens:
                weight = batch["weights"][row, nth].item()
                nth += 1
                p = before[tokens].softmax(0).tolist()
                right = tokens.index(label)
                gaps = [sum(p[: k + 1]) - (1.0 if k >= right else 0.0) for k in range(5)]
                if loss == "ordinal":
                    total += 0.5 * weight * sum(gap**2 for gap in gaps)
            among = before[tokens] if over == "scale" else before
            total += weight * -(before[label] - among.logsumexp(0)).item()
    assert found == pytest.approx(total / count, rel=1e-5)
    assert over != "scale" or count == 4 * 3, "nothing for the end marker"
    made.train()  # transformers counts labels for losses that shift them
    assert made.state.log_history[0]["loss"] == pytest.approx(total / count, rel=1e-4)
    if weighted == "balanced":
        assert len(set(batch["weights"].flatten().tolist())) > 1


@pytest.mark.parametrize(("loss", "weighted"), [("cross_entropy", "none"), ("ordinal", "balanced")])
def test_a_tree_trains_and_validates_as_its_examples_do(
    tmp_path: Path, tiny: dict[str, Path], loss: str, weighted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss, gradients and validation of trees are those of the same examples one by one."""
    import torch

    data = write_data(tmp_path, "rank", train=4, valid=4)
    asked = {"train_file": per_dimension(rank_examples(4)), "valid_file": per_dimension(rank_examples(4, first=1000))}
    for name, examples in asked.items():
        write_jsonl(Path(data[name]), examples)
    count = len(asked["train_file"])
    found = {}
    for form in ("trees", "rows"):
        if form == "rows":
            monkeypatch.setattr("train.esc_rank.may_read_trees", lambda *_: False)
        folder = tmp_path / form
        folder.mkdir()
        batch = {"per_device_train_batch_size": count, "per_device_eval_batch_size": count}
        made = trainer(folder, tiny, loss, data, class_weights=weighted, **batch)
        torch.manual_seed(0)
        for name, weight in made.model.named_parameters():  # as after training: B of a fresh LoRA is zero
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
        made.model.eval()
        (batches,) = made.get_train_dataloader()
        value = made.compute_loss(made.model, dict(batches))
        value.backward()
        gradients = {name: w.grad for name, w in made.model.named_parameters() if w.grad is not None}
        found[form] = value.item(), gradients, made.evaluate(), batches["input_ids"].numel()
    (loss_a, grad_a, valid_a, size_a), (loss_b, grad_b, valid_b, size_b) = found["trees"], found["rows"]
    assert size_a < size_b / 1.5  # the dialogue once, not once a dimension
    assert loss_a == pytest.approx(loss_b, rel=1e-5) and grad_a.keys() == grad_b.keys()
    for name, gradient in grad_a.items():
        torch.testing.assert_close(gradient, grad_b[name], rtol=1e-4, atol=1e-6)
    figures = [name for name in valid_a if name.endswith(("_acc", "_acc_soft", "_kappa", "_spearman", "_ece", "_n", "_loss"))]
    assert len(figures) > 10
    for name in figures:
        assert valid_a[name] == pytest.approx(valid_b[name], rel=1e-5), name


def test_one_question_a_dialogue_stays_a_plain_row(tmp_path: Path, tiny: dict[str, Path]) -> None:
    data = write_data(tmp_path, "rank", train=4, valid=4)
    for name, first in (("train_file", 0), ("valid_file", 1000)):
        write_jsonl(Path(data[name]), per_dimension(rank_examples(4, first=first))[::3])
    batch = next(iter(trainer(tmp_path, tiny, "cross_entropy", data).get_train_dataloader()))
    assert "places" not in batch and batch["attention_mask"].dim() == 2


def test_figures_by_hand() -> None:
    from transformers import EvalPrediction

    from train.trainers import score_metrics

    keys = [("en", "fluency"), ("en", "empathy"), ("zh", "fluency")]
    sure = np.eye(5)[[0, 1, 2, 4]] * 0.9 + 0.02  # verdicts 0, 1, 2, 4 with probability 0.92
    found = np.full((4, 2, 5), -100.0)
    told = np.full((4, 2, 2), -100.0)
    found[:, 0], told[:, 0, 0] = sure, [0, 0, 0, 2]
    told[:, 0, 1] = [0.0, 2.0, 2.0, 4.0]
    found[0, 1], told[0, 1] = sure[2], [1, 0.0]  # one row has a second score: verdict 2, gold 0
    got = score_metrics(keys, SCALE)(EvalPrediction(predictions=found, label_ids=told))
    assert got["en_fluency_acc"] == pytest.approx(2 / 3) and got["en_fluency_acc_soft"] == 1.0 and got["en_fluency_n"] == 3
    assert got["en_empathy_acc"] == 0.0 and got["en_empathy_acc_soft"] == 0.0 and got["zh_fluency_acc"] == 1.0
    assert got["en_fluency_majority_acc"] == pytest.approx(2 / 3)
    assert got["en_average_acc"] == pytest.approx(1 / 3) and got["average_acc"] == pytest.approx((1 / 3 + 1.0) / 2)
    assert got["average_n"] == 5
    assert got["en_fluency_ece"] == pytest.approx(abs(0.92 - 2 / 3))
    # One item: undefined, not 0, and then no average over it: a mean of the others would not compare.
    assert got["zh_fluency_spearman"] is None and got["en_fluency_spearman"] is not None
    assert {got[f"{of}_spearman"] for of in ("en_average", "zh_average", "average")} == {None} and got["average_kappa"] is None
    # Weighted kappa of verdicts 0, 1, 2 with golds 0, 2, 2: 1 − Σ(v−g)² / (Σ over all pairs of (v−g)² / n).
    pairs = [(v - g) ** 2 for v in (0, 1, 2) for g in (0, 2, 2)]
    assert got["en_fluency_kappa"] == pytest.approx(1 - 1 / (sum(pairs) / 3))
    assert got["average_ece"] is not None


def test_undefined_figures_are_none_as_in_the_table() -> None:
    """One verdict on each of two dialogues, all alike: what the trainer logs is what `esc-eval agree` says of the same."""
    from transformers import EvalPrediction

    from train.trainers import SHOWN, score_metrics

    shares = np.array([[[0.0, 0.0, 1.0, 0.0, 0.0]]] * 2)
    logged = score_metrics([("en", "fluency")], SCALE)(EvalPrediction(shares, np.array([[[0.0, 2.0]]] * 2)))
    common: dict[str, Any] = {"language": "en", "rubric": "esc_eval", "dimension": "fluency"}
    sure = {str(score): float(score == 2) for score in SCALE}
    judged = [Judgement(**common, dialogue_id=id, judge="a", value=2.0, distribution=sure) for id in "ab"]
    gold = [HumanScore(**common, dialogue_id=id, annotator="b", value=2.0) for id in "ab"]
    table = agreement(judged, gold)["en"]
    for name in SHOWN:
        assert logged[f"en_fluency_{name}"] == table["fluency"][name], name
        assert logged[f"en_average_{name}"] == logged[f"average_{name}"] == table["average"][name], name
    assert logged["average_kappa"] is None and logged["average_spearman"] is None and logged["average_acc"] == 1


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
