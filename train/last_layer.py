"""An adapter in the last layer that leaves its keys and values alone: training then reads every dialogue once.

What the layers below give, and the last layer's own keys and values, are the same in every epoch. They are kept from a row's
first visit on; what is left of a step is the last layer at the answers' tokens, a few of hundreds, with the same loss and
gradients as the whole model would have. It takes (hidden size × answers + 2 × key-value width × tokens) values a row: in fp32
1.3 MB for 835 tokens of the embedded model.

Shapes: B rows, T tokens, K answer tokens a row, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import DynamicCache

from train.chat_templates import IGNORED
from train.prefix_tree import visible

if TYPE_CHECKING:
    from peft import LoraConfig

# Their decoder layer takes its keys and values from the cache it is called with, and nothing else from below.
_MODELS = ("llama", "qwen2")
_OTHERS = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class _Seen(NamedTuple):
    """Of one row: the last layer's input at the answers [K, H], its keys and values [heads, T, size]."""

    states: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


class _Fixed:
    """A cache that holds the keys and values [B, heads, T, size] of all tokens already, the new ones' too."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._held = keys, values

    def update(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self._held


class _Enough(Exception):
    """The last layer's keys and values are known: the rest of the pass is not needed."""


class _UpToLast(DynamicCache):
    """Keeps the keys and values of layer `last` alone, and ends the pass there."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Any:
        if layer < self._last:
            return keys, values
        self.keys, self.values = keys, values
        raise _Enough


def applies(base: Any, config: LoraConfig) -> bool:
    """Whether an adapter of `base` would lie in its last layer only, and not in what makes its keys and values."""
    from peft.tuners.tuners_utils import check_target_module_exists

    if base.config.model_type not in _MODELS or base.config._attn_implementation != "sdpa":
        return False
    last = f".layers.{base.config.num_hidden_layers - 1}."
    linear = [name for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)]
    adapted = [name for name in linear if check_target_module_exists(config, name)]
    return bool(adapted) and all(last in name and name.rsplit(".", 1)[-1] in _OTHERS for name in adapted)


class LastLayer:
    """The answers' logits by way of what is kept. `base` is the causal model inside the PEFT model."""

    def __init__(self, base: Any) -> None:
        self._base, self._layer = base, base.model.layers[-1]
        self._seen: dict[int, _Seen] = {}

    def logits(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Logits [B, K, vocabulary] of a `TreePadding` batch at its `places` [B, K]; `model` reads the rows that are new."""
        rows, places = inputs["rows"].tolist(), inputs["places"]
        for place, row in enumerate(rows):
            if row not in self._seen:
                self._seen[row] = self._read(model, inputs, place)
        seen = [self._seen[row] for row in rows]
        tokens = inputs["input_ids"].shape[1]
        states = _stacked((each.states for each in seen), places.shape[1])
        held = _Fixed(_stacked((each.keys for each in seen), tokens), _stacked((each.values for each in seen), tokens))
        positions = inputs["position_ids"].gather(1, places)
        out = self._layer(
            states,
            attention_mask=visible(inputs["until"], places),
            position_ids=positions,
            past_key_values=held,
            use_cache=True,
            position_embeddings=self._base.model.rotary_emb(states, positions),
        )
        return self._base.lm_head(self._base.model.norm(out))

    def _read(self, model: Any, inputs: dict[str, torch.Tensor], place: int) -> _Seen:
        """Row `place` of a batch alone and unpadded, so that what is kept does not depend on its batch."""
        tokens = int(inputs["lengths"][place])
        states: list[torch.Tensor] = []

        def catch(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            states.append(named["hidden_states"] if "hidden_states" in named else given[0])

        cache = _UpToLast(self._base.config.num_hidden_layers - 1)
        hook = self._layer.register_forward_pre_hook(catch, with_kwargs=True)
        training = model.training
        model.eval()  # no dropout: a resumed run, which reads rows at other times, has to draw the same random numbers
        try:
            with torch.no_grad(), suppress(_Enough):
                model(
                    input_ids=inputs["input_ids"][place : place + 1, :tokens],
                    attention_mask=visible(inputs["until"][place : place + 1, :tokens]),
                    position_ids=inputs["position_ids"][place : place + 1, :tokens],
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
        finally:
            hook.remove()
            model.train(training)
        answers = inputs["places"][place][inputs["labels"][place] != IGNORED]
        return _Seen(states[0][0, answers], cache.keys[0].to(states[0].dtype), cache.values[0].to(states[0].dtype))


def _stacked(each: Iterable[torch.Tensor], length: int) -> torch.Tensor:
    """Tensors [..., n, size] of different n, filled up with zeros to [B, ..., length, size]."""
    return torch.stack([F.pad(one, (0, 0, 0, length - one.shape[-2])) for one in each])
