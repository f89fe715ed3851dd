"""The layers below the lowest adapted one give the same output in every epoch: it is kept from a row's first visit on.

Worth it where training visits a row more than once and adapts only upper layers, as on a CPU; it takes hidden size × tokens
values in memory (the embedded model: 576 × 4 bytes a token, 1.8 MB for 800 tokens). Where the last layer alone is adapted,
later visits compute it for the answers' tokens: the others are only looked at, and need no more than keys and values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_LAYER = re.compile(r"\.layers\.(\d+)\.")
# Whose decoder layer is the one that `_last_layer` computes.
_KNOWN = ("llama", "qwen2")


class _Passed(nn.Module):
    """Stands in for a frozen layer whose output is known already."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        if hasattr(layer, "attention_type"):  # which of a model's masks the layer takes: asked of every layer
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


class FrozenTrunk:
    """Outputs of the frozen lower layers by row. `depth` says how many layers are frozen: 0 where the lowest is adapted.

    Shapes: B rows, T tokens, K answer tokens a row, H hidden size.
    """

    def __init__(self, model: Any) -> None:
        trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
        found = [_LAYER.search(f".{name}") for name in trained]
        self.depth = min((int(each[1]) for each in found if each), default=0) if all(found) else 0
        stacks = (getattr(module, "layers", None) for module in model.modules())
        self._layers: Any = next((stack for stack in stacks if isinstance(stack, nn.ModuleList)), None)
        self._passed = [_Passed(self._layers[number]) for number in range(self.depth)]
        self._known: dict[int, torch.Tensor] = {}
        kind = getattr(getattr(model, "config", None), "model_type", None)
        self._last_alone = self.depth == len(self._layers) - 1 > 0 and kind in _KNOWN

    def logits(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The answers' logits [B, K, vocabulary] of a `TreePadding` batch: at its `places` [B, K], for its `rows`.

        Rows that are new are read by the whole model, and what the trunk gives for them is kept. Several processes always call
        the model as a whole, since that is where their gradients are gathered.
        """
        rows = inputs["rows"].tolist()
        given = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
        if self.depth and all(row in self._known for row in rows):
            most = inputs["input_ids"].shape[1]
            states = torch.stack([F.pad(self._known[row], (0, 0, 0, most - len(self._known[row]))) for row in rows])
            if self._last_alone and hasattr(model, "get_base_model"):
                base = model.get_base_model()
                return base.lm_head(base.model.norm(self._last_layer(base, states, inputs)))
            del given["input_ids"]
            with self._passed_by():
                return answer_logits(model, given | {"inputs_embeds": states}, inputs["places"])
        if not self.depth:
            return answer_logits(model, given, inputs["places"])
        with self._keeping(rows, inputs["lengths"].tolist()):
            return answer_logits(model, given, inputs["places"])

    def _last_layer(self, base: Any, states: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Llama's decoder layer at the answers' places [B, K, H], from its input `states` [B, T, H]."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        layer = self._layers[-1]
        attention, size = layer.self_attn, layer.self_attn.head_dim
        at = inputs["places"][..., None].expand(-1, -1, states.shape[-1])

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(-1, (-1, size)).transpose(1, 2)

        normed = layer.input_layernorm(states)
        asked = states.gather(1, at)
        cos, sin = base.model.rotary_emb(states, inputs["position_ids"])
        queries = heads(attention.q_proj(normed.gather(1, at)))
        keys, values = heads(attention.k_proj(normed)), heads(attention.v_proj(normed))
        of_answers = inputs["places"][..., None].expand(-1, -1, size)
        queries, _ = apply_rotary_pos_emb(queries, queries, cos.gather(1, of_answers), sin.gather(1, of_answers))
        _, keys = apply_rotary_pos_emb(keys, keys, cos, sin)
        seen = inputs["attention_mask"][:, 0].gather(1, inputs["places"][..., None].expand(-1, -1, states.shape[1]))
        mixed = F.scaled_dot_product_attention(queries, keys, values, seen[:, None], enable_gqa=True)
        asked = asked + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return asked + layer.mlp(layer.post_attention_layernorm(asked))

    @contextmanager
    def _passed_by(self) -> Iterator[None]:
        whole = [self._layers[number] for number in range(self.depth)]
        for number, layer in enumerate(self._passed):
            self._layers[number] = layer
        try:
            yield
        finally:
            for number, layer in enumerate(whole):
                self._layers[number] = layer

    @contextmanager
    def _keeping(self, rows: list[int], lengths: list[int]) -> Iterator[None]:
        def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            states = named["hidden_states"] if "hidden_states" in named else given[0]
            for row, length, state in zip(rows, lengths, states.detach(), strict=True):
                self._known[row] = state[:length].clone()

        hook = self._layers[self.depth].register_forward_pre_hook(keep, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()


def answer_logits(model: Any, given: dict[str, torch.Tensor], places: torch.Tensor) -> torch.Tensor:
    """Logits [B, K, vocabulary] at `places` [B, K]; the head is computed for these and the other rows' places alone."""
    kept, where = places.unique(return_inverse=True)
    logits = model(**given, logits_to_keep=kept, use_cache=False).logits
    return logits.gather(1, where[..., None].expand(-1, -1, logits.shape[-1]))
