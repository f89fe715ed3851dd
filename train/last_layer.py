"""Training on CPU: an adapter in the last layer that leaves its keys and values alone, so that every dialogue is read once.

All that exists for training on two cores is here. `train.esc_rank` and `train.rank_test` import it on CPU only.

What the layers below give, and the last layer's own keys and values, are the same in every epoch and for every such adapter.
They are kept from a row's first visit on; what is left of a step is the last layer at the answers' tokens, a few of hundreds,
with the same loss and gradients as the whole model would have. It takes (hidden size × answers + 2 × key-value width × tokens)
values a row: in fp32 1.3 MB for 835 tokens of the embedded model. In a folder they also serve runs with other seeds or losses.

Shapes: B rows, T tokens, K answer tokens a row, H hidden size.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from core.files import atomic_path
from train.examples import IGNORED
from train.models import Decoder, PromptGroup, Shares
from train.prefix_tree import alike, tree, visible
from train.trainers import RankTrainer

if TYPE_CHECKING:
    from peft import LoraConfig

# Their decoder layer takes its keys and values from the cache it is called with, and nothing else from below.
_MODELS = ("llama", "qwen2")
_OTHERS = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class _Seen(NamedTuple):
    """Of one row: the last layer's input at the answers [K, H], its keys and values [heads, T, size], seconds of reading []."""

    states: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    seconds: torch.Tensor


class _Fixed:
    """A cache that holds the keys and values [B, heads, T, size] of all tokens already, the new ones' too."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._held = keys, values

    def update(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self._held


class _Enough(Exception):
    """The last layer's keys and values are known: the rest of the pass is not needed."""


class _UpToLast(DynamicCache):
    """Ends the pass at layer `last`, once its keys and values are known: a part of the row each time."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *more: Any, **named: Any) -> Any:
        if layer < self._last:
            return super().update(keys, values, layer, *more, **named)
        self.keys.append(keys)
        self.values.append(values)
        raise _Enough


def applies(base: Any, config: LoraConfig) -> bool:
    """Whether an adapter of `base`, put on or not, lies in its last layer only, and not in what makes its keys and values."""
    from peft.tuners.tuners_utils import check_target_module_exists

    if base.config.model_type not in _MODELS or base.config._attn_implementation != "sdpa":
        return False
    last = f".layers.{base.config.num_hidden_layers - 1}."
    linear = [name.removesuffix(".base_layer") for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)]
    adapted = [name for name in linear if ".lora_" not in name and check_target_module_exists(config, name)]
    return bool(adapted) and all(last in name and name.rsplit(".", 1)[-1] in _OTHERS for name in adapted)


class LastLayer:
    """The answers' logits by way of what is kept. `base` is the causal model inside the PEFT model."""

    def __init__(self, base: Any, folder: Path | None = None) -> None:
        """`folder` keeps what was read, a file a row, named by the hash of row and base; without it, memory alone does."""
        self._base, self._layer, self._folder = base, base.model.layers[-1], folder
        self._name = _hash_of_weights(base) if folder else b""
        self._seen: dict[str, _Seen] = {}
        self.spared = 0.0  # seconds that it once took to read the rows that `logits` did not have to read

    def logits(self, model: Any, inputs: dict[str, torch.Tensor], tokens: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [B, K, vocabulary] of a `TreePadding` batch at its `places` [B, K]; `model` reads the rows that are new.

        With `tokens` [S] theirs alone, [B, K, S]: of a small model, the vocabulary is most of a step.
        """
        places = inputs["places"]
        rows = [self._row(model, inputs, place) for place in range(len(places))]
        length = inputs["input_ids"].shape[1]
        states = _stacked((row.states for row in rows), places.shape[1])
        cache = _Fixed(_stacked((row.keys for row in rows), length), _stacked((row.values for row in rows), length))
        positions = inputs["position_ids"].gather(1, places)
        out = self._layer(
            states,
            attention_mask=visible(inputs["until"], places),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            position_embeddings=self._base.model.rotary_emb(states, positions),
        )
        out, head = self._base.model.norm(out), self._base.lm_head
        return head(out) if tokens is None else F.linear(out, head.weight[tokens])  # neither of _MODELS has a bias there

    def _row(self, model: Any, inputs: dict[str, torch.Tensor], place: int) -> _Seen:
        """Row `place` of a batch, from memory, from the folder, or read now."""
        tokens = int(inputs["lengths"][place])
        answers = inputs["places"][place][inputs["labels"][place] != IGNORED]
        row = (*(inputs[name][place, :tokens] for name in ("input_ids", "position_ids", "until")), answers)
        made_from = hashlib.sha256(self._name)
        for tensor in row:
            made_from.update(tensor.cpu().numpy().tobytes())
        key = made_from.hexdigest()
        file = self._folder / f"{key}.safetensors" if self._folder else None
        if key not in self._seen and file and file.is_file():
            self._seen[key] = _Seen(**load_file(file, str(answers.device)))
        if key in self._seen:
            self.spared += float(self._seen[key].seconds)
            return self._seen[key]
        seen = self._seen[key] = self._read(model, row[0], row[1], row[2], answers)
        if file:
            with atomic_path(file) as path:
                save_file({name: tensor.contiguous() for name, tensor in seen._asdict().items()}, path)
        return seen

    def _read(
        self, model: Any, ids: torch.Tensor, positions: torch.Tensor, until: torch.Tensor, answers: torch.Tensor
    ) -> _Seen:
        """A row [T] alone and unpadded, so that what is kept does not depend on its batch.

        What comes before the first fork of its tree, most of a row, goes without a mask: attention then takes half the time.
        """
        started = time.monotonic()
        states: list[torch.Tensor] = []

        def catch(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            states.append(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])

        cache = _UpToLast(self._base.config.num_hidden_layers - 1)
        hook = self._layer.register_forward_pre_hook(catch, with_kwargs=True)
        training = model.training
        model.eval()  # no dropout: a resumed run, which reads rows at other times, has to draw the same random numbers
        fork = _first_fork(until)
        try:
            for part in (slice(0, fork), slice(fork, len(ids))):
                if part.start == part.stop:
                    continue
                places = torch.arange(part.start, part.stop, device=ids.device)
                with torch.no_grad(), suppress(_Enough):
                    model(
                        input_ids=ids[None, part],
                        attention_mask=None if part.stop == fork else visible(until[None], places[None]),
                        position_ids=positions[None, part],
                        past_key_values=cache,
                        use_cache=True,
                        logits_to_keep=1,
                    )
        finally:
            hook.remove()
            model.train(training)
        keys, values = (torch.cat(parts, 2)[0].to(states[0].dtype) for parts in (cache.keys, cache.values))
        return _Seen(torch.cat(states, 1)[0, answers], keys, values, torch.tensor(time.monotonic() - started))


class LastLayerTrainer(RankTrainer):
    """The ranker's trainer, in which trees are read by way of `LastLayer`."""

    def __init__(self, *args: Any, kept: Path | None, **kwargs: Any) -> None:
        """`kept`: the folder that keeps what was read; None: memory alone does."""
        super().__init__(*args, **kwargs)
        self._last_layer = LastLayer(self.model.get_base_model(), kept)

    def _answers(
        self, model: Any, inputs: dict[str, torch.Tensor], use_cache: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        if "places" not in inputs:
            return super()._answers(model, inputs, use_cache)
        columns = self._scores.to(inputs["labels"].device) if self._over_scale else None
        return self._last_layer.logits(model, inputs, columns).float(), inputs["labels"], None


class LastLayerDecoder(Decoder):
    """Answers of one digit by way of `LastLayer`: of several adapters, only the first reads the dialogues."""

    def __init__(self, last_layer: LastLayer) -> None:
        self._last_layer = last_layer

    def __call__(self, model: Any, batch: Sequence[PromptGroup], tokens: Sequence[int], digits: int) -> Shares:
        scale = torch.tensor(list(tokens), device=model.device)
        return np.concatenate([self._group(model, group, scale) for group in batch])

    def _group(self, model: Any, group: PromptGroup, scale: torch.Tensor) -> Shares:
        """Probabilities [R, 1, S] of one dialogue's answers."""
        prompts = [group.head + tail for tail in group.tails]
        shares = torch.empty(len(prompts), 1, len(scale), dtype=torch.float64)
        for members in alike(prompts, [""] * len(prompts)):  # as in training: in the paper's order each is a row
            prefixes = tree([prompts[n] for n in members])
            row = {
                "input_ids": prefixes.ids,
                "position_ids": prefixes.positions,
                "until": prefixes.until,
                "places": [path[-1] for path in prefixes.paths],
                "labels": [0] * len(prefixes.paths),  # any: each of the places is asked
            }
            inputs = {name: torch.tensor([values], device=model.device) for name, values in row.items()}
            with torch.inference_mode():
                logits = self._last_layer.logits(model, inputs | {"lengths": torch.tensor([len(prefixes.ids)])}, scale)
            shares[members, 0] = logits[0].double().softmax(-1).cpu()
        result: Shares = shares.numpy()
        return result

    def take_spared(self) -> float:
        spared, self._last_layer.spared = self._last_layer.spared, 0.0
        return spared


def _first_fork(until: torch.Tensor) -> int:
    """How many tokens of a row [T] come before its tree forks: all that follow see them."""
    inner = until != len(until)
    return int(inner.int().argmax()) if inner.any() else len(until)


def _hash_of_weights(base: Any) -> bytes:
    """Of the base's own weights, in the precision they are used in."""
    made_from = hashlib.sha256()
    for name, weight in base.named_parameters():
        if "lora_" not in name:
            made_from.update(name.encode() + weight.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return made_from.digest()


def _stacked(tensors: Iterable[torch.Tensor], length: int) -> torch.Tensor:
    """Tensors [..., n, size] of different n, filled up with zeros to [B, ..., length, size]."""
    return torch.stack([F.pad(tensor, (0, 0, 0, length - tensor.shape[-2])) for tensor in tensors])
