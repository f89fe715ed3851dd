"""The memory that a model needs on GPUs: weights, cache, overhead. Every formula and every assumption is written here.

Shapes come from a checkpoint's config.json, or before it is downloaded from configs/serve/architectures.yaml. Parameters are
counted in safetensors headers where the weights are on this machine, and by transformers where only a config.json is; for what
architectures.yaml lists neither torch nor transformers is imported. Tests compare the results with vLLM's own classes.
"""

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import CONFIGS, read_object
from core.settings import load_yaml
from core.specs import ModelSpec
from serve.checkpoints.places import cached, on_hub, tokenizer_folder
from serve.checkpoints.tensors import check_checkpoint, stored_tensors, weight_files

GIB = 2**30
ARCHITECTURES = CONFIGS / "serve" / "architectures.yaml"
BLOCK = 16  # tokens of cache that vLLM hands out at once
LARGE = 70 * GIB  # from here on vLLM takes larger batches (not on an A100, which needs less than is planned)
# Contexts, graphs, the activations and logits of a batch, which is larger on a large GPU. Assumed (an H100 took 2.1 GiB for the
# embedded model, 2.4 for a 7B); vLLM measures it at the start, and its cache is then shown next to the planned one.
OVERHEAD, OF_LARGE = int(2.75 * GIB), int(4.75 * GIB)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class Attention:
    """Layers that keep the same cache: for each token and head so many numbers (`width`: its key and value), for the last
    `window` tokens (None: all). A layer with latent attention has one head, whose width is that of the vector."""

    layers: int
    heads: int
    width: int
    window: int | None = None


@dataclass(frozen=True)
class Size:
    """A served model: its shape, and its bytes on each of the GPUs that one copy of it is split over."""

    parameters: int
    embeddings: int
    """Those of them in embeddings and output layer, which stay in 16 bits."""
    active: int
    """Parameters that a token is multiplied by: without the embeddings and without experts that it does not take."""
    heads: int
    hidden: int
    intermediate: int
    attention: tuple[Attention, ...]
    stored: int | None = None
    """Bytes of weights that are quantised already."""
    dtype_bytes: int = 2
    fp8: tuple[str, ...] = ()
    adapters: int = 0
    """Bytes of LoRA adapters beside the base."""

    def splits(self, gpus: int) -> bool:
        """Whether tensor parallelism over so many GPUs is possible: heads are divided evenly, or copied."""
        heads = [kind.heads for kind in self.attention if kind.heads > 1]
        return self.heads % gpus == 0 and all(n % gpus == 0 or gpus % n == 0 for n in heads)

    def weights(self, tensor_parallel: int = 1) -> int:
        """Parameters × bytes, divided. In fp8, linear layers have one byte per parameter."""
        whole = self.stored or self.parameters * self.dtype_bytes
        if "weights" in self.fp8 and not self.stored:
            whole = (self.parameters - self.embeddings) + self.embeddings * self.dtype_bytes
        return math.ceil((whole + self.adapters) / tensor_parallel)

    def cache(self, tokens: int, tensor_parallel: int = 1, batched: int = 0) -> int:
        """The cache of a dialogue of so many tokens: over all layers heads × width × bytes per token.

        Key and value heads are divided, or copied where there are fewer of them than GPUs; a latent vector is on each. Layers
        with a window keep that and what is being read (`batched`, twice: vLLM schedules the next batch before one ends).
        """
        blocks = [math.ceil(min(tokens, (kind.window or tokens) + 2 * batched) / BLOCK) for kind in self.attention]
        heads = [kind.layers * max(1, kind.heads // tensor_parallel) for kind in self.attention]
        numbers = sum(n * count * kind.width * BLOCK for n, count, kind in zip(blocks, heads, self.attention, strict=True))
        return numbers * (1 if "cache" in self.fp8 else self.dtype_bytes)


def overhead(gpu: int) -> int:
    """Bytes that a server needs on a GPU of so many bytes in addition to weights and cache."""
    return OF_LARGE if gpu >= LARGE else OVERHEAD


def batched_tokens(gpu: int) -> int:
    """Tokens that vLLM's server computes in one batch on a GPU of so many bytes, by default."""
    return 8192 if gpu >= LARGE else 2048


def config_size(config: Mapping[str, Any], counts: Mapping[str, int] | None = None) -> Size | None:
    """The size of the model that a config.json states, with the parameters of its tensors by name (`counts`); None for one that
    is not a decoder of a known kind.

    Without counts the parameters are those that the config states (only architectures.yaml does), else those of the matrices:
    embeddings, output layer unless tied, attention, gated feed-forward layers. Norms and biases, a thousandth at most, are left
    out. Experts and latent attention have no formula here: None.
    """
    text = dict(config.get("text_config") or config)
    try:
        hidden, layers, heads = (int(text[name]) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        intermediate, table = int(text["intermediate_size"]), int(text["vocab_size"]) * hidden
    except (KeyError, TypeError, ValueError):
        return None
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head = int(text.get("head_dim") or hidden // heads)
    latent, experts = text.get("kv_lora_rank"), next((text[name] for name in _EXPERTS if text.get(name)), 0)
    if latent:
        attention = [Attention(layers, 1, latent + text["qk_rope_head_dim"])]
    else:
        kinds = text.get("layer_types") or ["sliding_attention" if text.get("model_type") == "mistral" else ""] * layers
        windows = [text.get("sliding_window") if kind == "sliding_attention" else None for kind in kinds]
        attention = [Attention(windows.count(window), kv_heads, 2 * head, window) for window in dict.fromkeys(windows)]
    embeddings = table * (1 if text.get("tie_word_embeddings", config.get("tie_word_embeddings")) else 2)
    parameters, idle = text.get("parameters"), 0.0
    if counts:
        parameters, embeddings = sum(counts.values()), sum(count for count in counts.values() if count == table)
        of_experts = sum(count for name, count in counts.items() if ".experts." in name)
        idle = of_experts * (1 - (text.get("num_experts_per_tok") or experts) / experts) if experts else 0
    elif not parameters:
        if experts or latent:
            return None
        parameters = embeddings + layers * (2 * hidden * head * (heads + kv_heads) + 3 * hidden * intermediate)
    active = text.get("active_parameters") or int(parameters - idle) - embeddings + table
    return Size(parameters, embeddings, active, heads, hidden, intermediate, tuple(attention))


@cache
def _built(config: str) -> tuple[dict[str, Any], dict[str, int]]:
    """A config.json, given as text, completed with the defaults of transformers' model of that kind, and the parameters of this
    model by name, counted without weights. As given, and none, where transformers is not installed or has no such model."""
    fields = json.loads(config)
    if fields.get("model_type") and all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        with suppress(KeyError, TypeError, ValueError), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
            return model.config.to_dict(), {name: parameter.numel() for name, parameter in model.named_parameters()}
    return fields, {}


@cache
def known_architecture(name: str) -> tuple[str, dict[str, Any]] | None:
    """The key and fields of a hub id, or of a folder named like one, in configs/serve/architectures.yaml."""
    for hub_id, fields in load_yaml(ARCHITECTURES, "architectures").items():
        if name == hub_id or Path(name).name.removesuffix("-llama") == hub_id.split("/")[1]:
            return hub_id, fields
    return None


def _configs(spec: ModelSpec) -> Iterator[tuple[Mapping[str, Any], Path | None]]:
    """The configs of a spec's model on this machine, best first: a folder's or the hub cache's config.json, with the folder;
    then the fields in configs/serve/architectures.yaml, without one."""
    for place in filter(None, (spec.checkpoint, spec.serve.architecture)):
        folder = tokenizer_folder(place)
        if folder is None and on_hub(place) and (config := cached(place, "config.json", spec.revision)):
            folder = config.parent
        if folder is not None and (folder / "config.json").is_file():
            yield read_object(folder / "config.json", "a model's config"), folder
    if listed := known_architecture(spec.serve.architecture or spec.checkpoint or ""):
        yield listed[1], None


def architectures_of(spec: ModelSpec) -> list[str]:
    """The classes that an engine looks a spec's checkpoint up by; none where its config is not on this machine."""
    return next((list(config.get("architectures") or []) for config, _ in _configs(spec)), [])


def size_of(spec: ModelSpec, adapters: int = 0, rank: int = 0) -> Size | None:
    """The size of a spec's checkpoint, with room for so many adapters of a rank; None if unknown. Nothing is downloaded."""
    for config, folder in _configs(spec):
        counts, stored = dict[str, int](), None
        with suppress(UserError):  # the folder of an architecture, or a download that is not finished
            if folder is not None:
                check_checkpoint(folder, "checkpoint")
                files = weight_files(folder)
                if "quantization_config" in config:
                    stored = sum(file.stat().st_size for file in files)
                else:
                    counts = {name: math.prod(tensor.shape) for name, tensor in stored_tensors(files).items()}
        if folder is not None and not counts:
            config, counts = _built(json.dumps(config))
        if size := config_size(config, counts):
            word = 4 if spec.serve.dtype == "float32" else 2
            # vLLM keeps room for an adapter on the inputs and outputs of every linear layer, at so much a rank.
            layers = sum(kind.layers for kind in size.attention)
            keys = max(kind.heads * kind.width // 2 for kind in size.attention)
            width = 2 * (2 * size.hidden) + 2 * (size.hidden + keys) + 3 * (size.hidden + size.intermediate)
            room = adapters * rank * word * layers * width
            return replace(size, stored=stored, dtype_bytes=word, fp8=spec.serve.fp8, adapters=room)
    return None
