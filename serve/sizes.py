"""What a model takes on GPUs: weights, cache, overhead. Every formula and every assumption is written here.

Shapes come from a checkpoint's config.json, or before it is downloaded from configs/serve/architectures.yaml; parameters are
counted in safetensors headers where there are weights on this machine. Neither torch nor vllm is imported: a test compares the
results with vLLM's own classes.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import CONFIGS, read_object
from core.specs import EMBEDDED_PREFIX, ModelSpec
from core.yaml_files import load_yaml
from serve.checkpoints.embedded import embedded_folder
from serve.checkpoints.places import local_path
from serve.checkpoints.tensors import check_checkpoint, stored_tensors, weight_files

GIB = 2**30
ARCHITECTURES = CONFIGS / "serve" / "architectures.yaml"
BLOCK = 16  # tokens of cache that vLLM hands out at once
LARGE = 70 * GIB  # GPUs from here on get vLLM's larger batches (an A100 does not: it needs less than is planned)
# Beside weights and cache: contexts, graphs, the activations and logits of a batch, which is larger on a large GPU. Assumed (an
# H100 took 2.1 GiB for the embedded model, 2.4 for a 7B); vLLM measures it, and its cache is shown beside the planned one.
OVERHEAD, OF_LARGE = int(2.75 * GIB), int(4.75 * GIB)
_TIED = {"gemma", "gemma2", "gemma3_text"}  # families whose config.json leaves tie_word_embeddings out and means yes
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_GLM = {  # ChatGLM's names
    "num_layers": "num_hidden_layers",
    "kv_channels": "head_dim",
    "multi_query_group_num": "num_key_value_heads",
    "ffn_hidden_size": "intermediate_size",
    "padded_vocab_size": "vocab_size",
}


@dataclass(frozen=True)
class Attention:
    """Layers that keep the same cache."""

    layers: int
    heads: int
    """Keys and values of so many heads a token; 1 where they are kept as one latent vector."""
    width: int
    """Numbers a head keeps for a token: keys and values together, or the latent vector."""
    window: int | None = None
    """Tokens that they look back; None: all."""


@dataclass(frozen=True)
class Shape:
    """What the arithmetic needs to know of a model."""

    parameters: int
    embeddings: int
    """Those of them in embeddings and output layer, which stay in 16 bits."""
    heads: int
    hidden: int
    intermediate: int
    attention: tuple[Attention, ...]
    active: int
    """Parameters that a token is multiplied by: without the embeddings and without experts that it does not take."""
    stored: int | None = None
    """Bytes of weights that are quantised already."""

    def splits(self, gpus: int) -> bool:
        """Whether tensor parallelism over so many GPUs is possible: query heads are divided evenly, key and value heads too, or
        they are copied."""
        heads = [kind.heads for kind in self.attention if kind.heads > 1]
        return self.heads % gpus == 0 and all(n % gpus == 0 or gpus % n == 0 for n in heads)


@dataclass(frozen=True)
class Size:
    """A served model's bytes on each of the GPUs that one copy of it is split over."""

    shape: Shape
    dtype_bytes: int = 2
    fp8: tuple[str, ...] = ()
    adapters: int = 0
    """Bytes of LoRA adapters beside the base."""

    def weights(self, tensor_parallel: int = 1) -> int:
        """Parameters × bytes, divided. In fp8, linear layers have a byte a parameter."""
        shape = self.shape
        whole = shape.stored or shape.parameters * self.dtype_bytes
        if "weights" in self.fp8 and not shape.stored:
            whole = (shape.parameters - shape.embeddings) + shape.embeddings * self.dtype_bytes
        return math.ceil((whole + self.adapters) / tensor_parallel)

    def cache(self, tokens: int, tensor_parallel: int = 1, batched: int = 0) -> int:
        """What a dialogue of so many tokens keeps: over all layers heads × width × bytes a token.

        Key and value heads are divided, or copied where there are fewer of them than GPUs; a latent vector is on each. Layers
        with a window keep that and what is being read (`batched`, twice: vLLM schedules the next batch before one ends).
        """
        size = 1 if "cache" in self.fp8 else self.dtype_bytes
        total = 0
        for kind in self.shape.attention:
            blocks = math.ceil(tokens / BLOCK)
            if kind.window is not None:
                blocks = min(blocks, math.ceil(min(kind.window - 1 + 2 * batched, tokens) / BLOCK) + 1)
            total += kind.layers * max(1, kind.heads // tensor_parallel) * kind.width * size * blocks * BLOCK
        return total


def overhead(gpu: int) -> int:
    """What a server takes of a GPU of so many bytes beside weights and cache."""
    return OF_LARGE if gpu >= LARGE else OVERHEAD


def batched_tokens(gpu: int) -> int:
    """Tokens that vLLM's server computes in one batch on a GPU of so many bytes, by default."""
    return 8192 if gpu >= LARGE else 2048


def shape_of(config: Mapping[str, Any], parameters: int | None = None) -> Shape | None:
    """The shape that a config.json states; None for one that is not a decoder of a known kind.

    Where the parameters were not counted, they are those of the matrices: embeddings, output layer unless tied, attention,
    gated feed-forward layers, experts. Norms and biases, a thousandth at most, are left out.
    """
    text = dict(config.get("text_config") or config)
    kind = text.get("model_type") or config.get("model_type")
    if kind == "chatglm":
        text |= {ours: text[theirs] for theirs, ours in _GLM.items() if theirs in text}
        if not text.get("multi_query_attention"):
            text["num_key_value_heads"] = text["num_attention_heads"]
    try:
        hidden, layers, heads = (int(text[name]) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        intermediate, vocabulary = int(text["intermediate_size"]), int(text["vocab_size"])
        intermediate //= 2 if kind == "qwen" else 1  # Qwen's first generation counts gate and value together
    except (KeyError, TypeError, ValueError):
        return None
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head = int(text.get("head_dim") or hidden // heads)
    latent = text.get("kv_lora_rank")
    attention: tuple[Attention, ...]
    if latent:
        attention = (Attention(layers, 1, int(latent) + int(text["qk_rope_head_dim"])),)
        of_attention = _latent_attention(text, hidden, heads, int(latent))
    else:
        windows = _windows(text, kind, layers)
        attention = tuple(Attention(windows.count(w), kv_heads, 2 * head, w) for w in dict.fromkeys(windows))
        of_attention = 2 * hidden * head * (heads + kv_heads)
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", kind in _TIED)))
    embeddings = vocabulary * hidden * (1 if tied else 2)
    sparse = {name: text.get("num_experts_per_tok") or text[name] for name in _EXPERTS if text.get(name)}
    whole, taken = (_feed_forward(text | experts, layers, hidden, intermediate) for experts in ({}, sparse))
    active = vocabulary * hidden + layers * of_attention + taken
    parameters = parameters or embeddings + layers * of_attention + whole
    return Shape(parameters, embeddings, heads, hidden, intermediate, attention, active)


def _latent_attention(text: Mapping[str, Any], hidden: int, heads: int, latent: int) -> int:
    """Parameters of a layer of multi-head latent attention."""
    plain, rope, value = (int(text[name]) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    queries = heads * (plain + rope)
    rank = text.get("q_lora_rank")
    of_queries = rank * (hidden + queries) if rank else hidden * queries
    return int(of_queries + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden)


def _windows(text: Mapping[str, Any], kind: str | None, layers: int) -> list[int | None]:
    """How far each layer looks back."""
    window = text.get("sliding_window")
    if not window or text.get("use_sliding_window") is False:
        return [None] * layers
    if kinds := text.get("layer_types"):
        return [window if name == "sliding_attention" else None for name in kinds]
    # Older files leave the pattern to the code: Gemma 2 has every second layer whole, Gemma 3 every sixth.
    every = {"gemma2": 2, "gemma3_text": 6}.get(kind or "", text.get("sliding_window_pattern"))
    return [None if every and (number + 1) % every == 0 else window for number in range(layers)]


def _feed_forward(text: Mapping[str, Any], layers: int, hidden: int, intermediate: int) -> int:
    """Parameters of all layers' feed-forward parts; those of experts, of experts that every token takes, and of the router."""
    experts = next((text[name] for name in _EXPERTS if text.get(name)), None)
    if not experts:
        return layers * 3 * hidden * intermediate
    width = int(text.get("moe_intermediate_size") or intermediate)
    shared = text.get("shared_expert_intermediate_size") or (text.get("n_shared_experts") or 0) * width
    step, first, dense = (
        text.get("decoder_sparse_step") or 1,
        text.get("first_k_dense_replace") or 0,
        text.get("mlp_only_layers"),
    )
    sparse = sum(n >= first and (n + 1) % step == 0 and n not in (dense or []) for n in range(layers))
    of_experts = 3 * hidden * (int(experts) * width + shared) + hidden * int(experts)
    return int(sparse * of_experts + (layers - sparse) * 3 * hidden * intermediate)


@cache
def _architectures() -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = load_yaml(ARCHITECTURES, "architectures")
    return known


def known_architecture(name: str) -> tuple[str, dict[str, Any]] | None:
    """The key and fields of a hub id, or of a folder named like one, in configs/serve/architectures.yaml."""
    for hub_id, fields in _architectures().items():
        if name == hub_id or Path(name).name.removesuffix("-llama") == hub_id.split("/")[1]:
            return hub_id, fields
    return None


def _configs(spec: ModelSpec) -> Iterator[tuple[Mapping[str, Any], Path | None]]:
    """What is known here of a spec's model, best first: the config.json of a folder or of the hub's cache, with the folder if
    its weights are to be there, and the fields in configs/serve/architectures.yaml."""
    for place in filter(None, (spec.checkpoint, spec.serve.architecture)):
        if (folder := _folder(place, spec.revision)) is not None:
            yield read_object(folder / "config.json", "a model's config"), folder if place == spec.checkpoint else None
    if known := known_architecture(spec.serve.architecture or spec.checkpoint or ""):
        yield known[1], None


def architectures_of(spec: ModelSpec) -> list[str]:
    """The classes that an engine looks a spec's checkpoint up by; none where that is not known here."""
    return next((list(config.get("architectures") or []) for config, _ in _configs(spec)), [])


def size_of(spec: ModelSpec, adapters: int = 0, rank: int = 0) -> Size | None:
    """The size of a spec's checkpoint, with room for so many adapters of a rank; None where it is not known yet. Nothing is
    downloaded."""
    for config, folder in _configs(spec):
        shape = shape_of(config)
        if shape is not None and folder is not None:
            with suppress(UserError):  # not whole yet
                check_checkpoint(folder, "checkpoint")
                files = weight_files(folder)
                if "quantization_config" in config:
                    shape = replace(shape, stored=sum(file.stat().st_size for file in files))
                else:
                    shape = shape_of(config, sum(math.prod(tensor.shape) for tensor in stored_tensors(files).values()))
        if shape is not None:
            word = 4 if spec.serve.dtype == "float32" else 2
            return Size(shape, word, spec.serve.fp8, adapters * rank * word * _widths(shape))
    return None


def _widths(shape: Shape) -> int:
    """Inputs and outputs of all linear layers together: vLLM keeps room for an adapter on each, at so much a rank."""
    layers = sum(kind.layers for kind in shape.attention)
    keys = max(kind.heads * kind.width // 2 for kind in shape.attention)
    return layers * (2 * (shape.hidden + shape.hidden) + 2 * (shape.hidden + keys) + 3 * (shape.hidden + shape.intermediate))


def _folder(place: str, revision: str | None) -> Path | None:
    """The folder with a checkpoint's config.json on this machine."""
    if place.startswith(EMBEDDED_PREFIX):
        folder: Path | None = embedded_folder(place.removeprefix(EMBEDDED_PREFIX))
    else:
        try:
            folder = local_path(place, "")
            if folder is None and importlib.util.find_spec("huggingface_hub") is not None:
                from huggingface_hub import try_to_load_from_cache

                cached = try_to_load_from_cache(place, "config.json", revision=revision)
                folder = Path(cached).parent if isinstance(cached, str) else None
        except UserError:
            folder = None
    return folder if folder is not None and (folder / "config.json").is_file() else None
