"""The layers below the lowest adapted one give the same output in every epoch: it is kept from a row's first visit on.

Worth it where training visits a row more than once and adapts only upper layers, as on a CPU; it takes hidden size × tokens
values in memory (the embedded model: 576 × 4 bytes a token, 1.8 MB for 800 tokens).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_LAYER = re.compile(r"\.layers\.(\d+)\.")


class _Passed(nn.Module):
    """Stands in for a frozen layer whose output is known already."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        if hasattr(layer, "attention_type"):  # which of a model's masks the layer takes: asked of every layer
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


class FrozenTrunk:
    """Outputs of the frozen lower layers by row. `depth` says how many layers are frozen: 0 where the lowest is adapted."""

    def __init__(self, model: nn.Module) -> None:
        trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
        found = [_LAYER.search(f".{name}") for name in trained]
        self.depth = min((int(each[1]) for each in found if each), default=0) if all(found) else 0
        stacks = (getattr(module, "layers", None) for module in model.modules())
        self._layers: Any = next((stack for stack in stacks if isinstance(stack, nn.ModuleList)), None)
        self._passed = [_Passed(layer) for layer in self._layers[: self.depth]] if self.depth else []
        self._known: dict[int, torch.Tensor] = {}

    @contextmanager
    def kept(self, rows: list[int], inputs: dict[str, Any], lengths: list[int]) -> Iterator[dict[str, Any]]:
        """What to give the model in place of `inputs` (`input_ids` [B, T], padded on the right) for these rows.

        Where all of them are known, it gets the trunk's outputs as `inputs_embeds` and passes the trunk by; else the whole
        model runs, and the outputs of this visit are kept.
        """
        if not self.depth:
            yield inputs
        elif all(row in self._known for row in rows):
            most = inputs["input_ids"].shape[1]
            states = [nn.functional.pad(self._known[row], (0, 0, 0, most - len(self._known[row]))) for row in rows]
            whole = [self._layers[number] for number in range(self.depth)]
            self._put(self._passed)
            try:
                yield {**{name: v for name, v in inputs.items() if name != "input_ids"}, "inputs_embeds": torch.stack(states)}
            finally:
                self._put(whole)
        else:

            def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
                states = named["hidden_states"] if "hidden_states" in named else given[0]
                for row, length, state in zip(rows, lengths, states.detach(), strict=True):
                    self._known[row] = state[:length].clone()

            hook = self._layers[self.depth].register_forward_pre_hook(keep, with_kwargs=True)
            try:
                yield inputs
            finally:
                hook.remove()

    def _put(self, layers: list[nn.Module]) -> None:
        for number, layer in enumerate(layers):
            self._layers[number] = layer
