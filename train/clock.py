"""The speed of a training: seconds, tokens on this process's device, and operations of each step."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from transformers import TrainerCallback
from transformers.integrations import deepspeed

from core.errors import UserError
from core.files import write_json
from core.machine import card_of
from train.batches import positions_of
from train.run import is_main_process
from train.sizes import TrainingShape, flops_per_token, shape_of

if TYPE_CHECKING:
    from train.recipes import Recipe


class StepClock(TrainerCallback):
    """Writes `timing.json` after the last step: the seconds of each step of this process (the first includes the warm-up),
    `rates` without the first step and, on a GPU, the peak bytes that tensors took and torch reserved."""

    def __init__(self, recipe: Recipe[Any]) -> None:
        self._recipe = recipe
        self._steps: list[tuple[float, Any]] = []
        self._read: Any = 0
        self._logged = 0

    def reads(self, inputs: dict[str, torch.Tensor]) -> None:
        """Count a pass over rows or trees: its tokens, and the tokens they attend to. The sums stay on the device."""
        mask, positions = inputs.get("attention_mask", inputs.get("until")), inputs.get("position_ids")
        real = torch.ones_like(inputs["input_ids"]) if mask is None else (mask > 0).long()
        attended = (positions_of(real) if positions is None else positions) + 1
        self._read = self._read + torch.stack([real.sum(), (attended * real).sum()])

    @cached_property
    def _shape(self) -> TrainingShape | None:
        """The shape that `python -m train plan` uses; None for an unknown base."""
        # Otherwise transformers would have ZeRO-3 initialise weights that are only counted.
        with patch.object(deepspeed, "_hf_deepspeed_config_weak_ref", None), suppress(UserError):
            return shape_of(self._recipe)
        return None

    def rates(self, first: int) -> dict[str, float]:
        """For the steps from `first` on: tokens per second on this process's device, operations as `plan` counts them (with the
        output layer at every token) in TFLOP/s, and their share of the device's dense bf16 peak (MFU, 0 to 1), if known."""
        steps = self._steps[first:]
        read = [read for _, read in steps if torch.is_tensor(read)]
        if not read:
            return {}
        seconds, (tokens, attended) = sum(time for time, _ in steps), torch.stack(read).sum(0).tolist()
        rates = {"tokens_per_second_per_device": tokens / seconds}
        if self._shape is not None:
            checkpointing = bool(self._recipe.training.gradient_checkpointing)
            # A token attends to half the length on average, so a length of 2 stands for one attended token.
            alone, attending = (flops_per_token(self._shape, length, checkpointing) for length in (0, 2))
            rates["tflops_per_device"] = (tokens * alone + attended * (attending - alone)) / seconds / 1e12
            if torch.cuda.is_available() and (card := card_of(torch.cuda.get_device_name(0))):
                rates["mfu"] = rates["tflops_per_device"] / card.peak
        return rates

    def since_log(self) -> dict[str, float]:
        """`rates` of the steps since the last call."""
        first, self._logged = self._logged, len(self._steps)
        return self.rates(first)

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._ended = self._now()

    on_evaluate = on_save = on_train_begin

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        now = self._now()
        self._steps.append((now - self._ended, self._read))
        self._ended, self._read = now, 0

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        figures: dict[str, Any] = {"step_seconds": [round(seconds, 4) for seconds, _ in self._steps]}
        figures |= self.rates(1 if len(self._steps) > 1 else 0)
        if torch.cuda.is_available():
            figures["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
            figures["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        if is_main_process():
            write_json(Path(self._recipe.training.output_dir) / "timing.json", figures)

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a GPU queues steps, which end later than the call
        return time.perf_counter()
