"""What `python -m train plan` says, against counts and sums done by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from core.errors import UserError
from core.files import write_jsonl
from core.machine import TRAINS
from core.tables import to_console
from data_prep.scores.rank_sft import RankExample
from tests.train.conftest import Trains
from train.plan import make_plan, tables
from train.sizes import GIB, OVERHEAD, TrainingShape, architecture, count_steps, flops_per_token, layer_bytes, measure, memory

QWEN, INTERNLM = "Qwen/Qwen1.5-14B-Chat", "internlm/internlm2-chat-7b"
# Seven adapters a layer: q, k, v, gate and up read the hidden state, o the heads' output, down the intermediate one.
QWEN_SHAPE = TrainingShape(
    total=14_167_290_880,
    trainable=62_341_120,
    matmul=40 * (4 * 5120**2 + 3 * 5120 * 13696) + 152064 * 5120,
    layers=40,
    hidden=5120,
    queries=5120,
    keys=5120,
    intermediate=13696,
    vocabulary=152064,
    adapted_inputs=6 * 5120 + 13696,
    adapted_ranks=7 * 16,
    weight_bytes=2,
)
RECIPE: dict[str, Any] = {
    "task": "role",
    "model_name_or_path": QWEN,
    "train_file": "nowhere/train.jsonl",
    "valid_file": "nowhere/valid.jsonl",
    "output_dir": "runs/plan",
    "dtype": "bfloat16",
    "bf16": True,
    "use_peft": True,
    "lora_r": 16,
    "lora_target_modules": "all-linear",
    "max_length": 2048,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 8,
    "num_train_epochs": 2,
}


def recipe_file(folder: Path, **changes: Any) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, **changes}))
    return path


def planned(folder: Path, **changes: Any) -> dict[str, Any]:
    from train.recipes import read_recipe

    return make_plan(read_recipe(recipe_file(folder, **changes), ["--use_cpu", "true"]), "h100", 8)


# --- parameters -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rank", [8, 16])
def test_qwen_14b_counted_by_hand(rank: int) -> None:
    from peft import LoraConfig

    attention = 3 * (5120 * 5120 + 5120) + 5120 * 5120  # q, k, v with biases; o without
    layer = attention + 3 * 5120 * 13696 + 2 * 5120  # gate, up, down; two norms
    total = 40 * layer + 2 * 152064 * 5120 + 5120  # embeddings and output layer (not tied), the last norm
    assert total == 14_167_290_880
    adapter = rank * 40 * (4 * (5120 + 5120) + 3 * (5120 + 13696))  # A: rank × in, B: out × rank
    shape = measure(architecture(QWEN)[0], LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert (shape.total, shape.trainable) == (total, adapter)
    assert rank != 16 or (adapter == 62_341_120 and shape == QWEN_SHAPE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [INTERNLM, "runs/nowhere/internlm2-chat-7b-llama"])
def test_internlm2_7b_counted_by_hand(name: str) -> None:
    from peft import LoraConfig

    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024  # q and o; k and v of 8 heads × 128; no biases
    layer = attention + 3 * 4096 * 14336 + 2 * 4096
    total = 32 * layer + 2 * 92544 * 4096 + 4096
    assert total == 7_737_708_544
    adapter = 16 * 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert adapter == 41_943_040
    config, where = architecture(name)
    shape = measure(config, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert (shape.total, shape.trainable, shape.keys) == (total, adapter, 1024)
    assert where == f"{INTERNLM} in configs/serve/architectures.yaml"
    assert shape.trainable_share == pytest.approx(41_943_040 / 7_779_651_584)


@pytest.mark.slow
def test_a_folder_is_read_from_its_own_config(tmp_path: Path) -> None:
    from peft import LoraConfig

    folder = tmp_path / "Qwen1.5-14B-Chat"  # the name is known, but what lies in it counts
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
    }
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 100, "tie_word_embeddings": True}))
    found, where = architecture(str(folder))
    shape = measure(found, LoraConfig(r=8, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    # Tied: the embeddings count once. No dtype in the config: fp32.
    assert shape.total == 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 100 * 64 + 64
    assert (shape.trainable, shape.weight_bytes, shape.adapted_inputs) == (2 * 8 * (64 + 64), 4, 64)
    assert where == f"{folder}/config.json"
    with pytest.raises(UserError, match="lora_target_modules: .*wqkv"):
        measure(found, LoraConfig(r=8, target_modules=["wqkv"], task_type="CAUSAL_LM"))


@pytest.mark.slow
def test_unknown_bases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nobody/nothing is neither a folder here nor "):
        architecture("nobody/nothing")
    with pytest.raises(UserError, match="does not exist"):
        architecture(str(tmp_path / "absent"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "internlm2"}))
    with pytest.raises(UserError, match="serve convert"):
        architecture(str(tmp_path))


# --- memory, steps, operations --------------------------------------------------------------------------------------------


def test_memory_of_qwen_14b_by_hand() -> None:
    tokens = 2 * 2048
    # One layer, one token: adapters' inputs and ranks, q, k, v and the attention's output, gate, up and their product in bf16;
    # two norms' inputs in fp32; the dropout masks.
    layer = 2 * (6 * 5120 + 13696 + 112) + 2 * (4 * 5120) + 2 * (3 * 13696) + 2 * 4 * 5120 + (6 * 5120 + 13696)
    assert layer_bytes(QWEN_SHAPE, dropout=True) == layer == 297_568
    one = memory(QWEN_SHAPE, "role", 2, 2048, True, True, "ddp", 8)
    assert one == {
        "weights": 28_334_581_760,
        "adapter": 4 * 62_341_120,
        "gathered": 0,
        "gradients": 4 * 62_341_120,
        "optimizer": 8 * 62_341_120,
        "activations": 40 * 5120 * 2 * tokens + layer * tokens,
        "logits": 4096 * 32768 * 2 + tokens * 5120 * 4,
        "overhead": OVERHEAD,
    }
    two = memory(QWEN_SHAPE, "role", 2, 2048, True, True, "zero2", 8)
    eighth = 62_341_120 // 8
    assert two == {**one, "adapter": 2 * 62_341_120, "gradients": 2 * eighth, "optimizer": 12 * eighth}
    three = memory(QWEN_SHAPE, "role", 2, 2048, True, True, "zero3", 8)
    assert three == {**two, "weights": 28_334_581_760 // 8, "adapter": 2 * eighth, "gathered": 2 * 10**9}
    without = memory(QWEN_SHAPE, "role", 2, 2048, False, False, "ddp", 1)
    assert without["activations"] == 40 * (layer - 6 * 5120 - 13696) * tokens
    ranker = memory(QWEN_SHAPE, "rank", 4, 2048, True, True, "ddp", 1)
    assert ranker["logits"] == 4 * 10 * 152064 * (2 + 12)


def test_steps_by_hand() -> None:
    # 13,300 / 2 = 6,650 batches; on 8 GPUs 831.25 → 832 each; 832 / 8 = 104 steps; two epochs.
    assert count_steps(13_300, 2, 8, 8, 2) == 208
    assert count_steps(5_965, 4, 4, 1, 1) == 373  # 1,492 batches, 373 steps
    assert count_steps(3, 4, 8, 8, 1) == 1
    assert count_steps(13_300, 2, 8, 8, 2, max_steps=60) == 60


def test_operations_by_hand() -> None:
    shape = replace(QWEN_SHAPE, layers=2, queries=10, matmul=1000, trainable=100)
    assert flops_per_token(shape, 50, False) == 4 * 1000 + 6 * 100 + 2 * (2 * 50 * 10) * 3
    assert flops_per_token(shape, 50, True) == 6 * 1000 + 8 * 100 + 2 * (2 * 50 * 10) * 4


def tiny(layers: int, attention: str, dtype: str, dropout: float = 0.0) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    config = AutoConfig.for_model("llama", **sizes, num_hidden_layers=layers, tie_word_embeddings=False)
    lora = LoraConfig(r=8, target_modules="all-linear", lora_dropout=dropout, task_type="CAUSAL_LM")
    base = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(getattr(torch, dtype))
    return get_peft_model(base, lora), measure(config, lora, dtype)


@pytest.mark.slow
def test_activations_are_what_autograd_keeps() -> None:
    import torch
    from peft.helpers import disable_input_dtype_casting

    def kept(layers: int, dropout: float) -> int:
        model, _ = tiny(layers, "sdpa", "bfloat16", dropout)
        ours = {p.untyped_storage()._cdata for p in model.parameters()}
        found: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            # What belongs to weights (and their casts) does not grow with the tokens.
            if tensor.untyped_storage()._cdata not in ours and 256 in tensor.shape:
                found[tensor.untyped_storage()._cdata] = tensor
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with hooks, disable_input_dtype_casting(model), torch.autocast("cpu", torch.bfloat16):  # as `AdapterTrainer` has it
            model.base_model.model.model(input_ids=torch.randint(0, 64, (1, 256)))
        return sum(tensor.untyped_storage().nbytes() for tensor in found.values())

    shape = tiny(2, "sdpa", "bfloat16")[1]
    with_dropout, without = ((kept(4, rate) - kept(2, rate)) / 2 / 256 for rate in (0.1, 0.0))
    # A CPU keeps the mask in bf16, two bytes; a GPU keeps one.
    assert layer_bytes(shape, dropout=True) == pytest.approx(with_dropout - shape.adapted_inputs, rel=0.02)
    assert 0.8 * layer_bytes(shape, dropout=False) < without < layer_bytes(shape, dropout=False)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_operations_are_what_torch_counts(checkpointing: bool) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, shape = tiny(3, "eager", "float32")
    model.train()
    model.enable_input_require_grads()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.randint(0, 64, (1, 256)), use_cache=False).logits.sum().backward()
    # Eager attention computes both triangles; ours is causal.
    attention = flops_per_token(shape, 256, checkpointing) - flops_per_token(shape, 0, checkpointing)
    expected = 256 * (flops_per_token(shape, 256, checkpointing) + attention)
    # The output layer is not run again, which 6 N does not say: 1 % here.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


# --- the command ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_adds_up(tmp_path: Path) -> None:
    found = planned(tmp_path)
    assert (found["total_parameters"], found["trainable_parameters"]) == (14_167_290_880, 62_341_120)
    assert (found["examples"], found["steps"], found["global_batch"]) == (13_300, 208, 128)
    assert "paper" in found["examples_from"]
    assert found["tokens"] == 2 * 13_300 * found["mean_tokens"] and found["tokens_at_most"] == 2 * 13_300 * 2048
    # TRL turns gradient checkpointing on. 8 H100s at 30 % of 989 TFLOP/s.
    seconds = found["tokens"] * flops_per_token(QWEN_SHAPE, found["mean_tokens"], True) / (8 * 989e12 * TRAINS)
    assert found["hours"] == pytest.approx(seconds / 3600)
    for strategy, parts in found["memory_bytes"].items():
        assert parts["total"] == sum(size for part, size in parts.items() if part != "total")
        assert found["fits"][strategy] == (parts["total"] <= 79 * GIB)
    assert not planned(tmp_path, per_device_train_batch_size=16, gradient_checkpointing=False)["fits"]["zero3"]
    fewer = planned(tmp_path, max_steps=10)
    assert fewer["steps"] == 10 and fewer["tokens"] == 10 * 128 * fewer["mean_tokens"]
    # Packed: rows of 2,048 tokens, of which two are a pass; the same tokens and operations.
    packed = planned(tmp_path, packing=True)
    assert packed["rows"] == -(-13_300 * found["mean_tokens"] // 2048)
    assert packed["steps"] == -(-packed["rows"] // 128) * 2 and packed["passes"] == packed["rows"]
    assert (packed["tokens"], packed["hours"]) == (found["tokens"], found["hours"])
    (note,) = [note for note in packed["notes"] if note.startswith("packing: ")]
    assert f"{packed['rows']:,} passes with 5.9 dialogues each in place of 13,300 with 2" in note
    console = Console(width=160, record=True, quiet=True)
    for table in tables(found):
        to_console(table, console)


def example(language: Any, number: int) -> RankExample:
    return RankExample(
        id=f"{language}-{number}",
        prompt=({"role": "user", "content": "x" * 97 if language == "en" else "字" * 9},),
        completion=({"role": "assistant", "content": "3"},),
        language=language,
        dialogue_id=f"{language}-{number}",
        group="g",
        dimension="empathy",
        labels={"empathy": 3},
        target={"empathy": 3.0},
    )


@pytest.mark.slow
def test_the_ranker_counts_the_papers_dialogues_or_the_files(tmp_path: Path) -> None:
    rank = {"task": "rank", "model_name_or_path": INTERNLM, "max_length": 64}
    assert planned(tmp_path, **rank)["examples"] == 5_965  # 8,522 × 0.7 = 5,965.4
    assert planned(tmp_path, **rank, language="zh")["examples"] == 2_721  # 324 × 12 × 0.7 = 2,721.6
    rows = [example(language, number) for language in ("en", "zh") for number in range(3)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    files = {**rank, "train_file": str(tmp_path / "train.jsonl")}
    found = planned(tmp_path, **files, language="zh")
    assert found["examples"] == 3 and found["mean_tokens"] == (27 + 1) / 4 + 2 * 5
    assert planned(tmp_path, **files, language="en")["mean_tokens"] == (97 + 1) / 4 + 2 * 5
    assert planned(tmp_path, **{**files, "max_length": 20}, language="en")["mean_tokens"] == 20
    # Three questions about a dialogue are one row, in which what they share counts once.
    shared = " ".join(f"word{letter}" for letter in "abcdefghijklmnopq")
    asked = [
        row.model_copy(
            update={
                "id": f"{row.id}-{question}",
                "prompt": ({"role": "user", "content": f"{row.id.replace('-', '')} {shared} {question}"},),
                "dimension": question,
                "labels": {question: 3},
                "target": {question: 3.0},
            }
        )
        for row in rows[:3]
        for question in ("empathy", "skill", "fluency")
    ]
    write_jsonl(tmp_path / "train.jsonl", asked)
    found, apart = (
        planned(tmp_path, **files | {"max_length": 999}, attn_implementation=kind) for kind in ("sdpa", "flash_attention_2")
    )
    assert (found["examples"], apart["examples"]) == (3, 9) and "9 in trees" in found["examples_from"]
    begins = 4 * 5 + len(f"en0 {shared} ")  # bytes, with the tokens before a message; counted once, not three times
    assert found["tokens"] == pytest.approx(apart["tokens"] - 2 * (3 * 2 * begins / 4), abs=1), "two epochs, three dialogues"


@pytest.mark.slow
def test_json_on_the_command_line(tmp_path: Path, trains: Trains) -> None:
    asked = [str(recipe_file(tmp_path)), "--json", "--gpu", "l40s", "--gpus", "2", "--lora_r", "8"]
    code, printed, _ = trains("plan", *asked)
    assert not code
    found = json.loads(printed)
    assert set(found) == {
        *("recipe", "task", "base", "architecture_from", "total_parameters", "trainable_parameters", "trainable_share"),
        *("lora_rank", "gpu", "gpus", "gpu_memory_bytes", "memory_bytes", "fits", "examples", "examples_from", "epochs"),
        *("global_batch", "steps", "mean_tokens", "mean_tokens_from", "max_tokens", "tokens", "tokens_at_most"),
        *("flops", "mfu", "hours", "hours_at_most", "notes", "server_memory_bytes", "passes", "rows"),
    }
    assert found["gpu"] == "L40S 48 GB" and found["gpus"] == 2
    assert found["lora_rank"] == 8 and found["trainable_parameters"] == 62_341_120 // 2


@pytest.mark.slow
def test_a_recipe_that_cannot_be_served_exits_2(tmp_path: Path, trains: Trains) -> None:
    path = recipe_file(tmp_path, use_dora=True)
    code, printed, errors = trains("plan", str(path), "--json")
    assert code == 2 and not printed and errors.splitlines()[-1].startswith(f"error: {path}: use_dora: ")
