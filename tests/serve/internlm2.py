"""A tiny random InternLM2 checkpoint, and a plain forward pass over it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from serve.checkpoints.internlm2 import Architecture, tensor_plan

torch = pytest.importorskip("torch")

SIZES = {
    "vocab_size": 480,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000,
    "bias": False,
    "tie_word_embeddings": False,
}
CONFIG = {
    "model_type": "internlm2",
    "architectures": ["InternLM2ForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"},
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "rope_scaling": None,
    "torch_dtype": "float32",
    **SIZES,
}
TOKENS = torch.tensor([1, 7, 300, 45, 45, 2, 459, 11, 270, 88] * 4)  # 40 tokens: beyond max_position_embeddings


def weights(config: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Random tensors under InternLM2's names."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape, _ in tensor_plan(Architecture.model_validate(config)):
        noise = torch.randn(shape, generator=generator)
        made[name] = 1 + 0.1 * noise if "norm" in name else 0.5 * noise / math.sqrt(shape[-1] if len(shape) > 1 else 10)
    return made


def forward(config: dict[str, Any], w: dict[str, Any], tokens: Any) -> Any:
    """InternLM2's logits [tokens, vocabulary] in fp32, from its definition."""
    heads, kv_heads, hidden = config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]
    dim, groups, n = hidden // heads, heads // kv_heads, len(tokens)
    scaling = config.get("rope_scaling") or {"type": "none"}
    base, positions = float(config["rope_theta"]), torch.arange(n, dtype=torch.float32)
    if scaling["type"] == "linear":
        positions = positions / scaling["factor"]
    if scaling["type"] == "dynamic" and n > config["max_position_embeddings"]:
        stretch = scaling["factor"] * n / config["max_position_embeddings"] - (scaling["factor"] - 1)
        base *= stretch ** (dim / (dim - 2))
    angles = torch.outer(positions, base ** (-torch.arange(0, dim, 2) / dim))
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1)[:, None] for f in (torch.cos, torch.sin))

    def norm(x: Any, name: str) -> Any:
        return w[name] * x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt()

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def rotate(x: Any) -> Any:
        return x * cos + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], dim=-1) * sin

    x = w["model.tok_embeddings.weight"][tokens]
    mask = torch.full((n, n), -torch.inf).triu(1)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        qkv = linear(norm(x, f"{layer}.attention_norm.weight"), f"{layer}.attention.wqkv")
        qkv = qkv.reshape(n, kv_heads, groups + 2, dim)
        q = rotate(qkv[:, :, :groups].reshape(n, heads, dim))
        k = rotate(qkv[:, :, groups]).repeat_interleave(groups, dim=1)
        v = qkv[:, :, groups + 1].repeat_interleave(groups, dim=1)
        attention = (torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim) + mask).softmax(-1)
        x = x + linear(torch.einsum("hqk,khd->qhd", attention, v).reshape(n, hidden), f"{layer}.attention.wo")
        y = norm(x, f"{layer}.ffn_norm.weight")
        gate = torch.nn.functional.silu(linear(y, f"{layer}.feed_forward.w1"))
        x = x + linear(gate * linear(y, f"{layer}.feed_forward.w3"), f"{layer}.feed_forward.w2")
    w = w | ({"output.weight": w["model.tok_embeddings.weight"]} if config["tie_word_embeddings"] else {})
    return linear(norm(x, "model.norm.weight"), "output")


def save_checkpoint(folder: Path, dtype: Any = None, **changes: Any) -> Path:
    """Writes a checkpoint without a tokenizer, in two shards, as InternLM2's are published; returns its folder."""
    from safetensors.torch import save_file

    config = CONFIG | changes
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    made = {key: value.to(dtype or torch.float32) for key, value in weights(config).items()}
    half, weight_map = len(made) // 2, dict[str, str]()
    for number, names in enumerate((list(made)[:half], list(made)[half:]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: made[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
