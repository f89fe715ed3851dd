"""The planner's arithmetic against vLLM's own classes and transformers' parameter counts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.settings import load_yaml
from core.specs import load_spec, model_names
from serve.checkpoints.places import materialise
from serve.sizes import ARCHITECTURES, BLOCK, GIB, Size, config_size, known_architecture, size_of
from tests.serve.conftest import spec

KNOWN: dict[str, dict[str, Any]] = load_yaml(ARCHITECTURES, "architectures")
CLASSES = {
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
LISTED = [name for name, fields in KNOWN.items() if fields["model_type"] in CLASSES]
CLOSE = 0.03


def config_of(name: str) -> Any:
    """transformers' config of a listed model, or of the one that it assumes for a kind."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(**KNOWN.get(name, {"model_type": name}))
    config.architectures = [CLASSES[config.model_type]]
    return config


def planned(name: str, folder: Path) -> Size:
    """The planner's size of a listed model, or of a folder that holds nothing but a kind's config.json."""
    if name not in KNOWN:
        config_of(name).save_pretrained(folder)
    size = config_size(KNOWN[name]) if name in KNOWN else size_of(spec(checkpoint=str(folder)))
    assert size is not None
    return size


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED)
def test_parameters_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Its model, made without weights; of experts those that a token takes."""
    pytest.importorskip("torch")
    config_of(name).save_pretrained(tmp_path)
    counted = size_of(spec(checkpoint=str(tmp_path)))
    assert counted is not None
    listed = planned(name, tmp_path)
    for figure in ("parameters", "active", "embeddings"):
        assert getattr(listed, figure) == pytest.approx(getattr(counted, figure), rel=CLOSE)
    assert listed.weights(4) == pytest.approx(counted.weights(4), rel=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [("mixtral", 46.7e9, 12.9e9), ("Qwen/Qwen3-235B-A22B", 235e9, 22e9), ("deepseek-ai/DeepSeek-V3", 671e9, 37e9)],
)
def test_experts_are_counted_as_published(name: str, parameters: float, active: float, tmp_path: Path) -> None:
    """Model cards count the embeddings of a token among those that it takes."""
    shape = planned(name, tmp_path)
    assert shape.parameters == pytest.approx(parameters, rel=0.005)
    assert shape.active + shape.embeddings / 2 == pytest.approx(active, rel=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LISTED, *CLASSES])
def test_the_cache_is_that_of_vllm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its cache classes keep for a request of full length, on each of 1 to 8 GPUs."""
    pytest.importorskip("vllm")
    import torch
    import vllm.model_executor.models.registry as registry
    from vllm.config import ModelConfig, ParallelConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

    # It looks at a model's class in a process of its own, which imports all of vLLM each time.
    monkeypatch.setattr(registry, "_run_in_subprocess", lambda look: look())
    config, batched = config_of(name), 2048
    context = min(8192, config.max_position_embeddings)
    config.save_pretrained(tmp_path)
    model = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, max_model_len=context, dtype="bfloat16")
    shape = planned(name, tmp_path)
    windows = [
        config.sliding_window if kind == "sliding_attention" else None for kind in getattr(config, "layer_types", None) or []
    ] or [getattr(config, "sliding_window", None)] * config.num_hidden_layers
    for split in (1, 2, 4, 8):
        if not shape.splits(split):
            assert config.num_attention_heads % split, f"{name} can be split over {split} GPUs"
            continue
        parallel = ParallelConfig(tensor_parallel_size=split, distributed_executor_backend="mp")
        model.verify_with_parallel_config(parallel)
        heads = model.get_num_kv_heads(parallel)
        kept: dict[str, Any] = {
            "block_size": BLOCK,
            "num_kv_heads": heads,
            "head_size": model.get_head_size(),
            "dtype": torch.bfloat16,
        }
        # On GPUs two batches are in flight; on this CPU vLLM schedules one after the other.
        settings: Any = SimpleNamespace(model_config=model, parallel_config=parallel, max_in_flight_tokens=2 * batched)
        expected = 0
        for window in windows:
            if model.use_mla:
                layer: FullAttentionSpec | SlidingWindowSpec = MLAAttentionSpec(**kept)
            else:
                layer = SlidingWindowSpec(**kept, sliding_window=window) if window else FullAttentionSpec(**kept)
            expected += layer.max_memory_usage_bytes(settings)
        assert shape.cache(context, split, batched) == pytest.approx(expected, rel=CLOSE), f"{name} on {split} GPUs"


@pytest.mark.parametrize(("checkpoint", "each"), [("Qwen/Qwen1.5-14B-Chat", 800), ("internlm/internlm2-chat-7b", 128)])
def test_cache_a_token_by_hand(checkpoint: str, each: int) -> None:
    """40 layers × 2 × 40 heads × 128 × 2 bytes; 32 × 2 × 8 × 128 × 2."""
    size = size_of(spec(checkpoint=checkpoint))
    assert size is not None and size.cache(BLOCK) == each * 1024 * BLOCK
    assert size.cache(8192) == each * 1024 * 8192
    assert size.cache(8192, 2) == size.cache(8192) // 2
    eight = size_of(spec(checkpoint=checkpoint, serve={"fp8": ["cache"]}))
    assert eight is not None and eight.cache(8192) == size.cache(8192) // 2 and eight.weights() == size.weights()


def test_heads_that_cannot_be_divided_are_copied() -> None:
    (yi,) = filter(None, [size_of(load_spec("yi-6b-chat"))])  # 4 key and value heads
    assert yi.cache(4096, 8) == yi.cache(4096, 4) == yi.cache(4096) // 4


@pytest.mark.slow
def test_a_checkpoint_here_is_counted(tmp_path: Path) -> None:
    """By the headers of its weights: the embedded model has 134.5 million parameters, tied."""
    folder = materialise()
    (size,) = filter(None, [size_of(spec(checkpoint="embedded:smollm2-135m-instruct"))])
    assert size.parameters == 134_515_008
    assert size.weights() == pytest.approx((folder / "model.safetensors").stat().st_size, rel=0.001)
    assert size.cache(16) == 30 * 2 * 3 * 64 * 2 * 16
    stated = config_size(json.loads((folder / "config.json").read_text()))
    assert stated is not None and stated.parameters == pytest.approx(size.parameters, rel=CLOSE)


def test_quantised_weights_count_as_they_lie_there(tmp_path: Path) -> None:
    fields = {**KNOWN["Qwen/Qwen1.5-7B-Chat"], "quantization_config": {"quant_method": "awq"}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    header = json.dumps({"w": {"dtype": "I32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4000))
    (size,) = filter(None, [size_of(spec(checkpoint=str(tmp_path)))])
    assert size.weights() == (tmp_path / "model.safetensors").stat().st_size


def test_shapes_are_known_by_name() -> None:
    for place in ("internlm/internlm2-chat-7b", "runs/internlm2-chat-7b-llama", "runs/internlm2-chat-7b"):
        known = known_architecture(place)
        assert known is not None and known[0] == "internlm/internlm2-chat-7b"
    assert known_architecture("org/unheard-of") is None and size_of(spec()) is None
    borrowed = size_of(spec(serve={"architecture": "Qwen/Qwen1.5-14B-Chat"}))
    assert borrowed is not None and borrowed.weights() / GIB == pytest.approx(26.4, abs=0.05)


def test_every_bundled_spec_that_can_be_served_has_a_size() -> None:
    unknown = {
        n
        for n in model_names()
        if (s := load_spec(n)).checkpoint and not s.checkpoint.startswith("embedded:") and not size_of(s)
    }
    assert all(load_spec(name).serve.unservable for name in unknown)


def test_the_first_qwen_has_the_parameters_of_its_card() -> None:
    (size,) = filter(None, [size_of(load_spec("mindchat"))])
    assert size.parameters == pytest.approx(7.72e9, rel=0.001)
