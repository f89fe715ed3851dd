"""Adapters trained on InternLM2, for its Llama layout: against a plain forward pass, and what is refused."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from serve.checkpoints import internlm2
from serve.checkpoints.internlm2 import convert_adapter, convert_checkpoint
from serve.checkpoints.lora import adapter_rank
from serve.checkpoints.merge import merged
from tests.serve.conftest import SMALL_VLLM, spec
from tests.serve.internlm2 import CONFIG, TOKENS, forward, rewrite, save_checkpoint, weights
from tests.serve.test_internlm2 import Source, source, tokenizer_files

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

ADAPTED = {"wqkv": (512, 256), "wo": (256, 256), "w1": (96, 256), "w2": (256, 96), "w3": (96, 256)}


def path_of(kind: str, layer: int) -> str:
    return f"model.layers.{layer}.{'attention' if kind in {'wqkv', 'wo'} else 'feed_forward'}.{kind}"


def lora(
    folder: Path, kinds: tuple[str, ...] = ("wqkv",), layers: tuple[int, ...] = (0, 1), ranks: dict[str, int] | None = None,
    dtype: Any = None, **changes: Any,
) -> dict[str, tuple[Any, Any]]:  # fmt: skip
    """Writes a random adapter as PEFT would for InternLM2; returns the (A, B) of each module."""
    generator = torch.Generator().manual_seed(1)
    made: dict[str, tuple[Any, Any]] = {}
    for layer in layers:
        for kind in kinds:
            rank, (rows, columns) = (ranks or {}).get(kind, 8), ADAPTED[kind]
            a, b = (torch.randn(shape, generator=generator) * 0.05 for shape in ((rank, columns), (rows, rank)))
            made[path_of(kind, layer)] = (a, b)
    folder.mkdir()
    named = {
        f"base_model.model.{module}.lora_{side}.weight": matrix.to(dtype or torch.float32)
        for module, pair in made.items()
        for side, matrix in zip("AB", pair, strict=True)
    }
    safetensors.save_file(named, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "org/internlm2-tiny",
        "auto_mapping": {"base_model_class": "InternLM2ForCausalLM"},
        "r": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.1,
        "bias": "none",
        "target_modules": list(kinds),
        **changes,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return made


def adapted(made: dict[str, tuple[Any, Any]], scale: Callable[[str, int], float]) -> dict[str, Any]:
    """The base's weights with the adapter added."""
    w = weights(CONFIG)
    for module, (a, b) in made.items():
        w[f"{module}.weight"] = w[f"{module}.weight"] + scale(module, a.shape[0]) * b @ a
    return w


ALL = ("wqkv", "wo", "w1", "w2", "w3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made_with", "scale", "targets"),
    [
        ({}, lambda _, r: 32 / r, [f"model.layers.{n}.self_attn.{name}_proj" for n in (0, 1) for name in "kqv"]),
        (
            {"kinds": ALL},
            lambda _, r: 32 / r,
            None,
        ),
        ({"kinds": ALL, "target_modules": r".*\.(attention|feed_forward)\..*", "use_rslora": True},
         lambda _, r: 32 / r**0.5, None),
        (
            {"kinds": ALL, "ranks": {"wqkv": 4, "w2": 16}, "rank_pattern": {"wqkv": 4, "feed_forward.w2": 16},
             "alpha_pattern": {"layers.1.attention.wqkv": 64, "wo": 8}},
            lambda module, r: {"model.layers.1.attention.wqkv": 64}.get(module, 8 if module.endswith("wo") else 32) / r,
            None,
        ),
        (
            {"layers": (1,), "layers_to_transform": [1]},
            lambda _, r: 32 / r,
            [f"model.layers.1.self_attn.{name}_proj" for name in "kqv"],
        ),
    ],
    ids=["wqkv", "all", "rslora, by pattern", "ranks and alphas by module", "one layer"],
)  # fmt: skip
def test_a_converted_adapter_gives_the_same_logits_in_peft_and_merged(
    made_with: dict[str, Any],
    scale: Callable[[str, int], float],
    targets: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("ESC_EVAL_CACHE", str(tmp_path / "cache"))
    made = lora(tmp_path / "adapter", **made_with)
    monkeypatch.setattr(internlm2, "convert_tokenizer", lambda *_: None)
    convert_checkpoint(save_checkpoint(tmp_path / "source"), tmp_path / "llama")
    assert convert_adapter(tmp_path / "adapter", tmp_path / "converted", tmp_path / "source")
    assert adapter_rank(tmp_path / "converted") == adapter_rank(tmp_path / "adapter")
    config = json.loads((tmp_path / "converted" / "adapter_config.json").read_text())
    assert targets is None or config["target_modules"] == targets
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (8, 32, 0.1)
    assert config["auto_mapping"] is None and config["base_model_name_or_path"] == "org/internlm2-tiny"

    expected = forward(CONFIG, adapted(made, scale), TOKENS)
    assert (expected - forward(CONFIG, weights(CONFIG), TOKENS)).abs().max() > 0.1, "the adapter changes something"
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    tuned = peft.PeftModel.from_pretrained(base, str(tmp_path / "converted")).eval()
    folder = merged(spec(checkpoint=str(tmp_path / "llama")), tmp_path / "llama", tmp_path / "converted")
    for model in (tuned, AutoModelForCausalLM.from_pretrained(folder)):
        with torch.no_grad():
            assert (model(TOKENS[None]).logits[0] - expected).abs().max() < 1e-5


@pytest.mark.slow
def test_an_adapter_of_the_published_shape_is_grouped_by_its_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTED, "wqkv", (6144, 4096))  # the 7B: 32 heads, 8 key/value heads
    made = lora(tmp_path / "adapter", dtype=torch.bfloat16)
    base = tmp_path / "base.json"
    base.write_text(json.dumps(CONFIG | {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}))
    convert_adapter(tmp_path / "adapter", tmp_path / "converted", base)
    stored = safetensors.load_file(tmp_path / "converted" / "adapter_model.safetensors")
    assert len(stored) == 12 and {str(tensor.dtype) for tensor in stored.values()} == {"torch.bfloat16"}
    a, b = (matrix.to(torch.bfloat16) for matrix in made["model.layers.1.attention.wqkv"])
    named = "base_model.model.model.layers.1.self_attn.{}_proj.lora_{}.weight"
    assert all(torch.equal(stored[named.format(name, "A")], a) for name in "qkv")
    # Group 2 of 8 holds query heads 8 to 11, key head 2 and value head 2, in rows 2·768 to 3·768.
    group = b[2 * 768 : 3 * 768]
    assert torch.equal(stored[named.format("q", "B")][8 * 128 : 12 * 128], group[:512])
    assert torch.equal(stored[named.format("k", "B")][2 * 128 : 3 * 128], group[512:640])
    assert torch.equal(stored[named.format("v", "B")][2 * 128 : 3 * 128], group[640:])
    note = (tmp_path / "converted" / "README.md").read_text()
    assert "`org/internlm2-tiny`" in note
    assert convert_adapter(tmp_path / "adapter", tmp_path / "converted", base) is False


def foreign(folder: Path) -> None:
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    held = {f"{module}.lora_A.weight": torch.ones(8, 256), f"{module}.lora_B.weight": torch.ones(256, 8)}
    safetensors.save_file(held, folder / "adapter_model.safetensors")


BAD_ADAPTERS: dict[str, tuple[Callable[[Path], Any] | dict[str, Any], str]] = {  # beside what test_merge.py has
    "DoRA": ({"use_dora": True}, "use_dora: True is more than a plain LoRA"),
    "targets promised": ({"target_modules": ["wqkv", "w2"]}, "target_modules: names w2, wqkv, but the weights are for wqkv"),
    "Llama already": (foreign, "not LoRA on InternLM2's layers: model.layers.0.self_attn.q_proj"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD_ADAPTERS)
def test_bad_adapters_are_refused_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    spoil, message = BAD_ADAPTERS[case]
    (tmp_path / "base.json").write_text(json.dumps(CONFIG))
    lora(tmp_path / "adapter")
    if isinstance(spoil, dict):
        rewrite(tmp_path / "adapter" / "adapter_config.json", **spoil)
    else:
        spoil(tmp_path / "adapter")
    with pytest.raises(UserError, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "converted", tmp_path / "base.json")
    assert not (tmp_path / "converted").exists() and not list(tmp_path.glob(".converted*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 512}, r"adapter and base do not fit: .*wqkv is 512 × 256, the base has 1024 × 512 in 2 layers"),
        ({"num_hidden_layers": 1}, "adapter and base do not fit: model.layers.1.attention.wqkv"),
        ({"model_type": "qwen2"}, "model_type: internlm2 or llama expected"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    lora(tmp_path / "adapter")
    (tmp_path / "base.json").write_text(json.dumps(CONFIG | changes))
    with pytest.raises(UserError, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "converted", tmp_path / "base.json")


__all__ = ["source", "tokenizer_files"]

PROMPT = [1, 7, 300, 45, 45, 2, 459, 11, 270, 88, 5, 131, 17, 402, 64, 3]
# transformers has no config class for InternLM2 any more; vLLM asks for one before it takes its own model.
CONFIG_CLASS = """
from transformers import PretrainedConfig
class InternLM2Config(PretrainedConfig):
    model_type = "internlm2"
"""
# For each (checkpoint, adapter): the prompt's log-probabilities, without and with the adapter, as {token: value} a position.
SCORE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.lora.request import LoRARequest
prompt, out = json.loads(sys.argv[1]), sys.argv[2]
asked = SamplingParams(max_tokens=1, prompt_logprobs=480, detokenize=False)
answers = []
for folder, adapter in zip(sys.argv[3::2], sys.argv[4::2]):
    llm = LLM(folder, skip_tokenizer_init=True, trust_remote_code=True, dtype="float32", enforce_eager=True, max_model_len=32,
              gpu_memory_utilization=0.2, max_logprobs=480, enable_lora=True, max_lora_rank=8)
    scores = []
    for request in (None, LoRARequest("a", 1, adapter)):
        (answer,) = llm.generate([{"prompt_token_ids": prompt}], asked, lora_request=request)
        scores.append([{token: entry.logprob for token, entry in row.items()} for row in answer.prompt_logprobs[1:]])
    answers.append([llm.llm_engine.model_config.architecture, *scores])
    del llm
    cleanup_dist_env_and_memory()
json.dump(answers, open(out, "w"))
"""


def vllm_scores(pairs: list[tuple[Path, Path]], folder: Path) -> list[tuple[str, Any, Any]]:
    """For each checkpoint and adapter what vLLM, in a process of its own, gives for `PROMPT`: the architecture that it took,
    and the log-probabilities [tokens - 1, vocabulary] without and with the adapter."""
    out = folder / "scores.json"
    environment = {
        **SMALL_VLLM,
        "HF_HOME": str(folder / "hf"),  # where the test's own config class is copied to
    }
    command = [sys.executable, "-c", SCORE, json.dumps(PROMPT), str(out), *(str(place) for pair in pairs for place in pair)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]

    def matrix(rows: list[dict[str, float]]) -> Any:
        return torch.tensor([[row[str(token)] for token in range(480)] for row in rows])

    return [(name, matrix(plain), matrix(adapted)) for name, plain, adapted in json.loads(out.read_text())]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllms_internlm2_and_the_converted_model_agree(source: Source, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = source(auto_map={"AutoConfig": "configuration_internlm2.InternLM2Config"})
    (folder / "configuration_internlm2.py").write_text(CONFIG_CLASS)
    lora(tmp_path / "adapter")
    convert_checkpoint(folder, tmp_path / "llama")
    convert_adapter(tmp_path / "adapter", tmp_path / "converted", folder)
    judge, ours = vllm_scores([(folder, tmp_path / "adapter"), (tmp_path / "llama", tmp_path / "converted")], tmp_path)

    assert (judge[0], ours[0]) == ("InternLM2ForCausalLM", "LlamaForCausalLM")
    assert judge[1].shape == (len(PROMPT) - 1, CONFIG["vocab_size"]) and judge[1].std() > 0.1
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    with torch.no_grad():
        in_transformers = model(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)
    assert (in_transformers - judge[1]).abs().max() < 1e-4
    assert (ours[1] - judge[1]).abs().max() < 1e-4
    assert (judge[2] - judge[1]).abs().max() > 0.1, "the adapter changes something"
    assert (ours[2] - judge[2]).abs().max() < 1e-4
