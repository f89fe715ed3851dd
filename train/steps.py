"""The steps of a training: the order of the examples, padding, trees of sequences with common prefixes, and their speed.

Common prefixes are computed only once, forward and backward: the seven questions about a dialogue share all of it. A row is a
tree in depth-first order: a token sees the tokens on the path from the root to itself, and has the same position as in its
sequence alone, so every sequence gets the same logits as alone.

Shapes: B rows, T tokens of the longest row, K answer tokens of the row with the most, D scores of the row with the most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback
from transformers.integrations import deepspeed

from core.errors import UserError
from core.files import write_json
from core.machine import card_of
from train.examples import IGNORED
from train.run import is_main_process
from train.sizes import TrainingShape, flops_per_token, shape_of

if TYPE_CHECKING:
    from trl import SFTTrainer as _Trainer

    from train.recipes import Recipe
else:
    _Trainer = object

POOL = 16  # batches whose examples are sorted by length together


class EpochSampler(Sampler[int]):
    """A permutation of all examples for each epoch, determined by the seed and the epoch's number alone.

    With `batch` > 0, the examples of a step have similar lengths, the steps are in random order, and a random remainder comes
    last. (transformers' sampler orders fifty steps by length, and draws from a state that a resumed run has not restored yet.)
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed, self._epoch = list(lengths), batch, seed, 0

    def __len__(self) -> int:
        return len(self._lengths)

    def set_epoch(self, epoch: int) -> None:
        """The data loader calls this before every epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        order: list[int] = torch.randperm(len(self._lengths), generator=generator).tolist()
        if not self._batch:
            return iter(order)
        full = len(order) // self._batch * self._batch
        pools = [order[at : min(at + POOL * self._batch, full)] for at in range(0, full, POOL * self._batch)]
        steps = [
            pool[at : at + self._batch]
            for pool in (sorted(pool, key=self._lengths.__getitem__, reverse=True) for pool in pools)
            for at in range(0, len(pool), self._batch)
        ]
        shuffled = [steps[place] for place in torch.randperm(len(steps), generator=generator).tolist()]
        remainder = sorted(order[full:], key=self._lengths.__getitem__, reverse=True)
        return iter([index for step in [*shuffled, remainder] for index in step])


class SoundSteps(_Trainer):
    """A trainer that takes no step beyond `max_steps` (transformers checks only after a step), and ends with `UserError` at the
    first number that is not finite: in a step's loss, in an evaluation, or in the weights of a checkpoint."""

    def training_step(self, *args: Any, **settings: Any) -> torch.Tensor:
        loss = super().training_step(*args, **settings)
        if not torch.isfinite(loss):
            self._diverged(self.state.global_step + 1, f"the loss is {float(loss)}")
        return loss

    def evaluate(self, *args: Any, **settings: Any) -> dict[str, float]:
        figures: dict[str, float] = super().evaluate(*args, **settings)
        if wrong := [name for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)]:
            self._diverged(self.state.global_step, f"{wrong[0]} is {figures[wrong[0]]}")
        return figures

    def _save_checkpoint(self, *args: Any, **settings: Any) -> None:
        for name, weight in self.model.named_parameters():
            if weight.requires_grad and not torch.isfinite(weight).all():
                self._diverged(self.state.global_step, f"{name} holds infinite or undefined numbers")
        super()._save_checkpoint(*args, **settings)

    def _diverged(self, step: int, what: str) -> NoReturn:
        remedy = "Take a lower learning_rate, a max_grad_norm above 0, or bf16, and another --output_dir"
        raise UserError(f"training diverged at step {step}: {what}. Nothing is exported. {remedy}")

    def _run_epoch(self, *args: Any, **settings: Any) -> None:
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **settings)


class SeededOrder(SoundSteps):
    """A trainer with the examples in `EpochSampler`'s order (`train_sampling_strategy`: random or group_by_length). A step
    covers the examples of all processes, so equal global batches give equal steps on one GPU or sixteen."""

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        args, lengths = self.args, [len(ids) for ids in self.train_dataset["input_ids"]]
        grouped = args.train_sampling_strategy == "group_by_length"
        step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._order = EpochSampler(lengths, step if grouped else 0, args.data_seed if args.data_seed is not None else args.seed)
        return self._order

    def _run_epoch(self, *args: Any, epoch: int, **settings: Any) -> None:
        """When several processes resume within an epoch, the loader that skips trained examples hides the sampler from
        transformers, which then cannot set the epoch: the order would be that of the first."""
        self._order.set_epoch(epoch)
        super()._run_epoch(*args, epoch=epoch, **settings)


def padded(rows: Sequence[Sequence[float]], fill: float, left: bool = False) -> torch.Tensor:
    """Lists of numbers as one tensor [B, longest], padded on the right or on the left."""
    longest = max(map(len, rows))
    filling = [[fill] * (longest - len(row)) for row in rows]
    return torch.tensor([[*f, *row] if left else [*row, *f] for f, row in zip(filling, rows, strict=True)])


def left_padded(rows: Sequence[Sequence[int]], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, T] that end together, and their mask [B, T]."""
    return padded(rows, fill, left=True), padded([[1] * len(row) for row in rows], 0, left=True)


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """The position of each token [B, T]: the number of unmasked ones before it."""
    return (mask.cumsum(1) - 1).clamp(min=0)


@dataclass
class RankPadding:
    """Batches of the ranker's rows: of trees (`train.trainers.as_trees`), or of plain rows.

    Trees: `input_ids`, `position_ids`, `until` [B, T]; `places`, `labels` [B, K]. Plain rows are padded on the left, so that
    their answers end together: `input_ids`, `attention_mask`, `position_ids`, `labels` [B, T]. Both: `keys`, `targets`,
    `weights` [B, D], where absent scores have key −1.
    """

    pad: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        column = {name: [row[name] for row in rows] for name in rows[0]}
        scores = {
            "keys": padded(column["keys"], -1).long(),
            "targets": padded(column["targets"], 0.0),
            "weights": padded(column["weights"], 1.0),
        }
        if "places" in column:
            return scores | {
                "input_ids": padded(column["input_ids"], self.pad),
                "until": padded(column["until"], 0),
                "position_ids": padded(column["positions"], 0),
                "places": padded(column["places"], 0),
                "labels": padded(column["labels"], IGNORED),
            }
        ids, mask = left_padded(column["input_ids"], self.pad)
        labels = padded(column["labels"], IGNORED, left=True)
        return scores | {"input_ids": ids, "attention_mask": mask, "position_ids": positions_of(mask), "labels": labels}


@dataclass(frozen=True)
class Tree:
    """T tokens of N sequences. `until[t]` is the end of the subtree of token t: tokens t … until[t] - 1 see it. `paths[n]` are
    the indices in the tree of sequence n's tokens."""

    ids: list[int]
    positions: list[int]
    until: list[int]
    paths: list[list[int]]


def tree(sequences: Sequence[Sequence[int]]) -> Tree:
    """The tree of sequences of any lengths; equal sequences share all their tokens."""
    ids, positions, until = list[int](), list[int](), list[int]()
    paths: list[list[int]] = [[] for _ in sequences]

    def lay(group: list[int], at: int) -> None:
        """Append the tokens from `at` on of sequences that agree before it."""
        opened: list[int] = []
        while group:
            forks: dict[int, list[int]] = {}
            for n in group:
                forks.setdefault(sequences[n][at], []).append(n)
            if len(forks) > 1:
                for members in forks.values():
                    lay(members, at)
                break
            place = len(ids)
            ids.append(sequences[group[0]][at])
            positions.append(at)
            until.append(place + 1)
            opened.append(place)
            for n in group:
                paths[n].append(place)
            at += 1
            group = [n for n in group if len(sequences[n]) > at]
        for place in opened:
            until[place] = len(ids)

    lay([n for n, sequence in enumerate(sequences) if sequence], 0)
    return Tree(ids, positions, until, paths)


def alike(sequences: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[int]]:
    """Groups of sequences to read together: those with one name (a dialogue's) whose neighbours in sorted order share at least
    half of the shorter one. Groups are in the order of their first members, and members in the given order."""
    order = sorted(range(len(sequences)), key=lambda n: (names[n], list(sequences[n])))
    groups: list[list[int]] = []
    for n in order:
        last = groups[-1][-1] if groups else n
        shorter = min(len(sequences[last]), len(sequences[n]))
        if groups and names[last] == names[n] and 2 * shared(sequences[last], sequences[n]) >= shorter:
            groups[-1].append(n)
        else:
            groups.append([n])
    return sorted(sorted(group) for group in groups)


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def visible(until: torch.Tensor) -> torch.Tensor:
    """The attention mask from `until` [B, T] (0 for padding): [B, 1, T, T], true where the row's token sees the column's.
    Padding sees only itself, so that no row of the softmax is empty."""
    column = torch.arange(until.shape[1], device=until.device)
    row = column[:, None]
    return (((row >= column) & (row < until[:, None, :])) | (row == column))[:, None]


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
