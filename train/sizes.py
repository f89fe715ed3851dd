"""Sizes: parameters counted on the meta device, where a model has shapes but no weights, and estimates from them.

Memory, steps and operations are estimates by formula; the docstrings here state all formulas and assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from core.errors import UserError
from core.specs import EMBEDDED_PREFIX
from serve.checkpoints.places import local_path, materialise
from serve.sizes import ARCHITECTURES, GIB, known_architecture
from train.models import share_qkv
from train.recipes import check_targets, lora_config

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PretrainedConfig

    from train.recipes import Recipe, Task

Strategy = Literal["ddp", "zero2", "zero3"]
STRATEGIES: dict[Strategy, str] = {"ddp": "one GPU or DDP", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
OVERHEAD = 3 * GIB  # CUDA context, NCCL buffers, fragmentation
GATHERED = 10**9  # DeepSpeed's stage3_max_live_parameters: the most weights that ZeRO-3 holds gathered
TILE = (4096, 32768)  # tokens × vocabulary that TRL's fused head computes at once
ANSWER = 10  # a joint answer: seven digits, <|im_end|>, newline, and the position before them


@dataclass(frozen=True)
class TrainingShape:
    """The facts about a base with its adapter that the estimates need."""

    total: int
    """The base's parameters; tied ones count once."""
    trainable: int
    """The adapter's parameters."""
    matmul: int
    """Weights of the base's linear layers, including the output layer: a token is multiplied by each once."""
    layers: int
    hidden: int
    queries: int
    """Heads × head size."""
    keys: int
    """Key-value heads × head size."""
    intermediate: int
    vocabulary: int
    adapted_inputs: int
    """Summed input widths of one layer's adapters."""
    adapted_ranks: int
    """Summed ranks of one layer's adapters."""
    weight_bytes: int
    """Bytes of each of the base's weights."""
    quantised_away: int = 0
    """Bytes that the base saves because its linear layers are quantised."""

    @property
    def trainable_share(self) -> float:
        """Adapter parameters over all (0 to 1)."""
        return self.trainable / (self.total + self.trainable)


def architecture(name: str) -> tuple[PretrainedConfig, str]:
    """The config of a base and, in words, its origin: the base's folder, configs/serve/architectures.yaml, or the hub cache.
    Nothing is downloaded; raises `UserError` for a base in none of these places."""
    from transformers import AutoConfig

    if name.startswith(EMBEDDED_PREFIX):
        return AutoConfig.from_pretrained(materialise(name=name.removeprefix(EMBEDDED_PREFIX))), name
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            return AutoConfig.from_pretrained(folder, local_files_only=True), f"{folder}/config.json"
        if listed := known_architecture(name):
            return AutoConfig.for_model(**listed[1]), f"{listed[0]} in configs/serve/{ARCHITECTURES.name}"
        local_path(name, "model_name_or_path")
        return AutoConfig.from_pretrained(name, local_files_only=True), "the hub cache"
    except (OSError, ValueError) as error:
        problem = f"{name} is neither a folder here nor in the hub cache, nor listed in {ARCHITECTURES}"
        if folder.is_dir():  # such as InternLM2's
            line = str(error).split("\n")[0]
            problem = f"{folder}: no config.json that transformers can read ({line}): see `python -m serve convert`"
        raise UserError(f"model_name_or_path: {problem}") from None


def measure(config: PretrainedConfig, lora: LoraConfig, dtype: str = "auto", fused_qkv: bool = False) -> TrainingShape:
    """Build base and adapter on the meta device (no memory, no weights) and count; weights shared by `fused_qkv` count once.
    Raises `UserError` if the base lacks the adapter's target modules, or its config is not Llama-like."""
    import torch
    from peft import get_peft_model
    from peft.tuners.lora import LoraLayer
    from transformers import AutoModelForCausalLM

    stored = (getattr(config, "dtype", None) or "float32") if dtype == "auto" else dtype
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config)
        total = sum(p.numel() for p in base.parameters())
        matmul = sum(m.weight.numel() for m in base.modules() if isinstance(m, torch.nn.Linear))
        check_targets(base, lora)
        try:
            model = get_peft_model(base, lora)
        except ValueError as error:
            raise UserError(f"lora_target_modules: {error}") from None
        if fused_qkv:
            share_qkv(model)
    adapted = [m for m in model.modules() if isinstance(m, LoraLayer)]
    try:
        heads, layers = config.num_attention_heads, config.num_hidden_layers
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return TrainingShape(
            total=total,
            trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
            matmul=matmul,
            layers=layers,
            hidden=config.hidden_size,
            queries=heads * size,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * size,
            intermediate=config.intermediate_size,
            vocabulary=config.vocab_size,
            adapted_inputs=sum(m.in_features for m in adapted) // layers,
            adapted_ranks=sum(m.r["default"] for m in adapted) // layers,
            weight_bytes=getattr(torch, str(stored).removeprefix("torch.")).itemsize,
        )
    except AttributeError as error:
        raise UserError(f"model_name_or_path: a plan needs a Llama-like base: {error}") from None


def shape_of(recipe: Recipe[Any]) -> TrainingShape:
    """`measure` for a recipe. A quantised weight takes half a byte and a 64th of a scale, which has 4 bytes or, nested, a byte
    and a 256th of 4 bytes. The output layer and the embeddings are not quantised."""
    model = recipe.model
    config, lora = architecture(model.model_name_or_path or "")[0], lora_config(model)
    shape = measure(config, lora, model.dtype or "auto", getattr(recipe.data, "fused_qkv", False))
    if not model.load_in_4bit:
        return shape
    scale = (1 + 4 / 256) / 64 if model.use_bnb_nested_quant else 4 / 64
    inner = shape.matmul - shape.vocabulary * shape.hidden
    return replace(shape, quantised_away=int(inner * (shape.weight_bytes - 0.5 - scale)))


def layer_bytes(shape: TrainingShape, dropout: bool) -> int:
    """Bytes that a layer keeps per token until the backward pass, if it is not recomputed.

    With w bytes per weight in a Llama-like layer (frozen weights do not need their inputs, adapters do, each its own after
    dropout; attention by sdpa or FlashAttention keeps no scores):
    w × (adapter inputs + adapter ranks) + w × 2 × (queries + keys) + w × 3 × intermediate + 4 × 2 × hidden for the norms' fp32
    inputs, and one byte per adapter input for the dropout mask. Without dropout adapters share inputs: an upper bound.
    """
    width = shape.adapted_inputs + shape.adapted_ranks + 2 * (shape.queries + shape.keys) + 3 * shape.intermediate
    return shape.weight_bytes * width + 4 * 2 * shape.hidden + (shape.adapted_inputs if dropout else 0)


def memory(
    shape: TrainingShape, task: Task, rows: int, length: int, checkpointing: bool, dropout: bool, strategy: Strategy, gpus: int
) -> dict[str, int]:
    """Bytes by part on each GPU at the peak of a step with `rows` examples of `length` tokens.

    - adapter: PEFT keeps it in fp32 beside a bf16 base; DeepSpeed casts it to bf16 and keeps an fp32 copy with the optimizer.
    - gradients: the adapter's, in its type. optimizer: Adam's two fp32 moments, 8 bytes per parameter, and the copy.
    - ZeRO-2 divides gradients and optimizer by the GPUs; ZeRO-3 the weights too, less up to a billion gathered at once.
    - activations: without checkpointing layers × `layer_bytes` × tokens. With it, each layer's input, and one layer's bytes.
    - logits: role: TRL's fused head, one tile of 4,096 tokens × 32,768 words in the weights' type, and the fp32 gradient of the
      last hidden states; rank: the answer's positions only × the vocabulary × (weights' type + 3 fp32 copies); supporter: all
      tokens × the vocabulary × three of the weights' type (logits, those divided by the temperature, their gradient). The
      reference of the KL term is the base without its adapter, and takes nothing.
    """
    word, tokens = shape.weight_bytes, rows * length
    adapter = 4 if strategy == "ddp" else word
    states = 8 + (4 if adapter < 4 else 0)
    split_states, split_weights = (gpus if strategy != "ddp" else 1), (gpus if strategy == "zero3" else 1)
    full = layer_bytes(shape, dropout) * tokens
    kept = shape.layers * shape.hidden * word * tokens + full if checkpointing else shape.layers * full
    if task == "role":
        logits = min(tokens, TILE[0]) * min(shape.vocabulary, TILE[1]) * word + tokens * shape.hidden * 4
    elif task == "supporter":
        logits = tokens * shape.vocabulary * 3 * word
    else:
        logits = rows * ANSWER * shape.vocabulary * (word + 3 * 4)
    return {
        "weights": math.ceil((shape.total * word - shape.quantised_away) / split_weights),
        "adapter": math.ceil(shape.trainable * adapter / split_weights),
        "gathered": min(GATHERED, shape.total) * word if split_weights > 1 else 0,
        "gradients": math.ceil(shape.trainable * adapter / split_states),
        "optimizer": math.ceil(shape.trainable * states / split_states),
        "activations": kept,
        "logits": logits,
        "overhead": OVERHEAD,
    }


def count_steps(examples: int, per_device: int, accumulation: int, gpus: int, epochs: float, max_steps: int = -1) -> int:
    """Optimizer steps, as transformers counts them: accumulated batches per GPU, with a short last one; or `max_steps`."""
    if max_steps > 0:
        return max_steps
    batches = math.ceil(math.ceil(examples / per_device) / gpus)
    return math.ceil(epochs * max(1, math.ceil(batches / accumulation)))


def flops_per_token(shape: TrainingShape, length: float, checkpointing: bool) -> float:
    """Floating-point operations per trained token in an example of `length` tokens.

    A frozen weight costs 2 forward and 2 backward (no gradient of its own), an adapter's 2 and 4; checkpointing repeats the
    forward pass: 4 N or 6 N for N weights in linear layers. Causal attention costs 2 × length × queries per layer forward,
    twice that backward, and once more with checkpointing.
    """
    recomputed = 1 if checkpointing else 0
    weights = shape.matmul * (4 + 2 * recomputed) + shape.trainable * (6 + 2 * recomputed)
    return weights + shape.layers * 2 * length * shape.queries * (3 + recomputed)
