"""Batches: the order of the examples, padding, and trees of sequences with common prefixes.

Such prefixes are computed only once, forward and backward: the seven questions about a dialogue share all of it. A row has them
as a tree in depth-first order: a token sees the tokens on the path from the root to itself, and has the same position as in its
sequence alone, so every sequence gets the same logits as alone.

Shapes: B rows, T tokens of the longest row, K answer tokens of the row with the most, D scores of the row with the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import Sampler

from core.errors import UserError
from train.examples import IGNORED

if TYPE_CHECKING:
    from trl import SFTTrainer as _Trainer
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
